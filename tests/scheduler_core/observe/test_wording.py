"""Output for people: each kind of placement in a line, and the summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler_core.observe.comparison import ObservedPlacement
from scheduler_core.observe.document import placement_document, report_document
from scheduler_core.observe.summary import render_summary
from scheduler_core.observe.wording import log_line
from tests.conftest import Golden
from tests.machines import MACHINES
from tests.scheduler_core.explain.fleets import DGX1, PAIRS, QUADS
from tests.scheduler_core.observe.observed_clusters import ObservedCluster, bound
from tests.scheduler_core.observe.placements import (
    broke,
    broke_needlessly,
    busy,
    dark,
    good,
    halved,
    last,
    ran,
    shared,
    single,
    unknown_set,
    waits,
    worse,
    worse_by_unknown,
)

BLIND = MACHINES["nvlink_unknown"]()


def one_island_over_pcie() -> ObservedPlacement:
    return ObservedCluster({"dgx": DGX1}).place(bound("train", 2, "dgx"), 0, 5)


def unknown_machine() -> ObservedPlacement:
    return ObservedCluster({"odd": BLIND}).place(bound("train-3", 2, "odd"), 0, 1)


def unknown_node() -> ObservedPlacement:
    (found,) = halved().pods(bound("train-3", 2, "gone"))
    return found


def unknown_alternative() -> ObservedPlacement:
    """Two GPUs are left on each node; by all else that is known, ``odd`` is the better one."""
    held = len(BLIND.gpus) - 2
    ran = (bound("a", 6, "gpu-7"), bound("b", held, "odd"))
    observed = ObservedCluster({"gpu-7": QUADS, "odd": BLIND}, *ran, a=(0, 1, 2, 4, 5, 6), b=range(held))
    return observed.place(bound("train-3", 2, "gpu-7"), 3, 7)


def single_unknown() -> ObservedPlacement:
    observed = ObservedCluster({"gpu-7": QUADS}, bound("a", 1, "gpu-7"), a=(0,))
    observed.pods(bound("infer", 1, "gpu-7"))
    return last(observed)


LINES: dict[Callable[[], ObservedPlacement], str] = {
    worse: "-73.9 GB/s  team/train-3 got 4 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "gpu-2 had 4 free in one island (200 GB/s)",
    good: "            team/train-3 got 4 GPUs of gpu-2 in one island (200 GB/s)",
    worse_by_unknown: "     worse  team/infer got 2 GPUs of gpu-1 over PCIe (SYS, at most 63 GB/s); "
    "gpu-1 had 2 free over PCIe (NODE, at most 63 GB/s)",
    one_island_over_pcie: "-68.5 GB/s  team/train got 2 GPUs of dgx in one island but over PCIe "
    "(SYS, at most 31.5 GB/s); dgx had 2 free in one island (100 GB/s)",
    waits: "would wait  team/train-3 got 4 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "gputopo would have let it wait: no node fit the request",
    unknown_set: "         ?  team/train-3 got 4 GPUs of gpu-7, not reported which: "
    "at worst over PCIe (SYS, at most 126.1 GB/s), at best in one island (200 GB/s)",
    unknown_machine: "         ?  team/train-3 got 2 GPUs of odd over an unknown interconnect",
    unknown_node: "         ?  team/train-3 got 2 GPUs of gone; their interconnect is not known",
    unknown_alternative: "         ?  team/train-3 got 2 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "the alternatives are not known",
    single: "            team/infer got 1 GPU of gpu-7",
    broke_needlessly: " -1 island  team/infer got 1 GPU of gpu-2 and broke a free island of 4; "
    "gpu-7 had a free GPU in a partly used island",
    broke: " -1 island  team/infer got 1 GPU of gpu-2 and broke a free island of 4; "
    "no other node certainly had a free GPU in a partly used island",
    single_unknown: "         ?  team/infer got 1 GPU of gpu-7; whether it broke an island is not known",
    shared: "            team/web got shares of GPUs or MIG devices of gpu-7: not compared",
    ran: " -537 GB/s  team/old holds 2 GPUs of gpu-1 over PCIe (SYS, at most 63 GB/s); "
    "when empty, this node has 2 in one island (600 GB/s)",
}


@pytest.mark.parametrize("made", LINES, ids=lambda each: each.__name__)
def test_a_line_of_the_log(made: Callable[[], ObservedPlacement]) -> None:
    assert log_line(made()) == f"11:06:40Z   {LINES[made]:>10}"


def no_agent() -> ObservedCluster:
    return ObservedCluster({"old": None})


def idle() -> ObservedCluster:
    observed = ObservedCluster({"gpu-1": PAIRS})
    observed.pods(bound("p", 2, "gpu-1"))
    return observed


def hard() -> ObservedCluster:
    """Nothing that was placed could be compared in numbers."""
    rtx = MACHINES["rtx4090"]()
    observed = ObservedCluster({"gpu-1": rtx}, bound("a", 2, "gpu-1"))
    observed.place(bound("p", 2, "gpu-1"), 0, 7)
    observed.pods(bound("q", 2, "gpu-1", interconnect="nvlink"))
    observed.observer.finish()
    return observed


@pytest.mark.parametrize("made", [busy, no_agent, idle, hard, dark], ids=lambda each: each.__name__.replace("_", "-"))
def test_the_summary(made: Callable[[], ObservedCluster], request: pytest.FixtureRequest, golden: Golden) -> None:
    observed = made()
    name = request.node.callspec.id
    summary = render_summary(observed.observer.report(observed.now + 3600))
    golden(Path(__file__).parent / "golden" / f"{name}.txt", summary)


def test_a_placement_as_a_document() -> None:
    pcie = {"kind": "pcie", "gbps": 126.1, "lanes": None, "distance": "SYS"}
    nvlink = {"kind": "nvlink", "gbps": 200.0, "lanes": 4, "distance": None}
    got = {"ring": pcie, "oneIsland": False, "numaNodes": 2}
    offer = {"node": "gpu-2", "ring": nvlink, "oneIsland": True, "numaNodes": 1}

    assert json.loads(json.dumps(placement_document(worse()))) == {
        "apiVersion": "gputopo.io/v1",
        "kind": "ObservedPlacement",
        "at": "2026-11-18T11:06:40Z",
        "ranBefore": False,
        "namespace": "team",
        "pod": "train-3",
        "scheduler": "default-scheduler",
        "node": "gpu-7",
        "gpus": 4,
        "indices": [2, 3, 6, 7],
        "verdict": "worse",
        "lostGbps": 73.9,
        "got": {"worst": got, "best": got},
        "byUs": offer,
        "best": offer,
        "brokeIslandOf": None,
        "sparingNode": None,
        "unchecked": [],
        "text": LINES[worse].removeprefix("-73.9 GB/s  "),
    }


def test_unknown_values_of_a_document_are_null() -> None:
    found = placement_document(single_unknown())
    single_ring = {"ring": None, "oneIsland": True, "numaNodes": 1}

    assert (found["indices"], found["lostGbps"], found["brokeIslandOf"]) == (None, None, None)
    assert found["got"] == {"worst": single_ring, "best": single_ring}
    assert placement_document(unknown_node())["got"] is None
    assert placement_document(unknown_node())["byUs"] is not None
    assert placement_document(waits())["byUs"] is None
    assert placement_document(broke())["brokeIslandOf"] == 4


def test_the_report_as_a_document() -> None:
    observed = busy()

    found = json.loads(json.dumps(report_document(observed.observer.report(observed.now + 3600))))

    assert {key: found[key] for key in ("kind", "since", "until", "pending")} == {
        "kind": "PlacementReport",
        "since": "2026-11-18T11:06:40Z",
        "until": "2026-11-18T12:06:40Z",
        "pending": 1,
    }
    assert found["now"] == {
        "nodes": 3,
        "unknownNodes": 1,
        "gpus": 20,
        "free": 1,
        "freeInIslands": 1,
        "freeInWholeIslands": 0,
        "islandsByFreeGpus": {"1": 1},
    }
    total = found["placed"]["total"]
    assert total == {
        "placed": 5,
        "compared": 3,
        "oneIsland": 2,
        "couldBeOneIsland": 3,
        "byUsInOneIsland": 3,
        "worse": 1,
        "lostGbps": 73.9,
        "worseByUnknown": 0,
        "wouldWait": 0,
        "unknown": 1,
        "single": 1,
        "brokeIslands": 1,
        "brokeNeedlessly": 1,
        "shared": 0,
        "withUncheckedRules": 1,
    }
    assert found["placed"]["byNamespace"] == {"team": total}
    assert found["placed"]["byScheduler"] == {"default-scheduler": total}
    assert {size: each["placed"] for size, each in found["placed"]["bySize"].items()} == {"1": 1, "2": 2, "4": 2}
    assert [each["pod"] for each in found["placed"]["costliest"]] == ["train-3"]
    assert [each["pod"] for each in found["ranBefore"]["costliest"]] == ["old"]
    assert found["ranBefore"]["total"]["lostGbps"] == 537.0
