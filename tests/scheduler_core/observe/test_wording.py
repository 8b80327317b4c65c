"""What people read: each kind of placement in a line, and the summary."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler_core.observe.comparison import Placement
from scheduler_core.observe.document import placement_document, report_document
from scheduler_core.observe.summary import summary
from scheduler_core.observe.wording import line
from tests.machines import MACHINES
from tests.scheduler_core.explain.fleets import DGX1, PAIRS, QUADS
from tests.scheduler_core.observe.scenes import Scene, bound, shares

BLIND = MACHINES["nvlink_unknown"]()


def halved() -> Scene:
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return Scene({"gpu-7": QUADS, "gpu-2": QUADS}, *ran, a=(0, 1), b=(4, 5))


def last(scene: Scene) -> Placement:
    (found,) = scene.observer.finish()
    return found


def worse() -> Placement:
    return halved().place(bound("train-3", 4, "gpu-7"), 2, 3, 6, 7)


def good() -> Placement:
    return halved().place(bound("train-3", 4, "gpu-2"), 0, 1, 2, 3)


def worse_by_unknown() -> Placement:
    rtx = MACHINES["rtx4090"]()
    return Scene({"gpu-1": rtx, "gpu-2": rtx}).place(bound("infer", 2, "gpu-1"), 0, 7)


def one_island_over_pcie() -> Placement:
    return Scene({"dgx": DGX1}).place(bound("train", 2, "dgx"), 0, 5)


def waits() -> Placement:
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return Scene({"gpu-7": QUADS}, *ran, a=(0, 1), b=(4, 5)).place(
        bound("train-3", 4, "gpu-7", island="required"), 2, 3, 6, 7
    )


def unknown_set() -> Placement:
    scene = Scene({"gpu-7": QUADS}, *(bound(name, 1, "gpu-7") for name in "abc"))
    scene.pods(bound("train-3", 4, "gpu-7"))
    return last(scene)


def unknown_machine() -> Placement:
    return Scene({"odd": BLIND}).place(bound("train-3", 2, "odd"), 0, 1)


def unknown_node() -> Placement:
    (found,) = halved().pods(bound("train-3", 2, "gone"))
    return found


def unknown_alternative() -> Placement:
    """Two GPUs are left on each node; by all else that is known, ``odd`` is the better one."""
    held = len(BLIND.gpus) - 2
    ran = (bound("a", 6, "gpu-7"), bound("b", held, "odd"))
    scene = Scene({"gpu-7": QUADS, "odd": BLIND}, *ran, a=(0, 1, 2, 4, 5, 6), b=range(held))
    return scene.place(bound("train-3", 2, "gpu-7"), 3, 7)


def single() -> Placement:
    return halved().place(bound("infer", 1, "gpu-7"), 2)


def broke_needlessly() -> Placement:
    return halved().place(bound("infer", 1, "gpu-2"), 2)


def broke() -> Placement:
    return Scene({"gpu-2": QUADS}).place(bound("infer", 1, "gpu-2"), 2)


def single_unknown() -> Placement:
    scene = Scene({"gpu-7": QUADS}, bound("a", 1, "gpu-7"), a=(0,))
    scene.pods(bound("infer", 1, "gpu-7"))
    return last(scene)


def shared() -> Placement:
    scene = halved()
    scene.pods(shares("web", 2, "gpu-7"))
    return last(scene)


def ran() -> Placement:
    (found,) = Scene({"gpu-1": PAIRS}, bound("old", 2, "gpu-1"), old=(0, 2)).ran
    return found


LINES: dict[Callable[[], Placement], str] = {
    worse: "-73.9 GB/s  team/train-3 got 4 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "gpu-2 had 4 free in one island (200 GB/s)",
    good: "            team/train-3 got 4 GPUs of gpu-2 in one island (200 GB/s)",
    worse_by_unknown: "     worse  team/infer got 2 GPUs of gpu-1 over PCIe (SYS, at most 63 GB/s); "
    "gpu-1 had 2 free over PCIe (NODE, at most 63 GB/s)",
    one_island_over_pcie: "-68.5 GB/s  team/train got 2 GPUs of dgx in one island but over PCIe "
    "(SYS, at most 31.5 GB/s); dgx had 2 free in one island (100 GB/s)",
    waits: "would wait  team/train-3 got 4 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "we would have let it wait: no node suited what it asks",
    unknown_set: "         ?  team/train-3 got 4 GPUs of gpu-7, nobody says which: "
    "at worst over PCIe (SYS, at most 126.1 GB/s), at best in one island (200 GB/s)",
    unknown_machine: "         ?  team/train-3 got 2 GPUs of odd joined nobody knows how",
    unknown_node: "         ?  team/train-3 got 2 GPUs of gone; how these are joined is not known",
    unknown_alternative: "         ?  team/train-3 got 2 GPUs of gpu-7 over PCIe (SYS, at most 126.1 GB/s); "
    "what else there was is not known",
    single: "            team/infer got 1 GPU of gpu-7",
    broke_needlessly: " -1 island  team/infer got 1 GPU of gpu-2 and broke an island of 4 that was free; "
    "gpu-7 had one in an island that was broken already",
    broke: " -1 island  team/infer got 1 GPU of gpu-2 and broke an island of 4 that was free; "
    "no node surely had one to give in an island that was broken already",
    single_unknown: "         ?  team/infer got 1 GPU of gpu-7; whether it broke an island is not known",
    shared: "            team/web got shares of GPUs or MIG devices of gpu-7: not judged",
    ran: " -537 GB/s  team/old holds 2 GPUs of gpu-1 over PCIe (SYS, at most 63 GB/s); "
    "such a machine has 2 in one island (600 GB/s) when nothing else runs there",
}


@pytest.mark.parametrize("made", LINES, ids=lambda each: each.__name__)
def test_a_line_of_the_log(made: Callable[[], Placement]) -> None:
    assert line(made()) == f"11:06:40Z   {LINES[made]:>10}"


def busy() -> Scene:
    """Some ran, some were placed, well and badly, and one waits for its kubelet's word."""
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"), bound("old", 2, "gpu-1"), bound("z", 1, "gpu-1"))
    machines = {"gpu-7": QUADS, "gpu-2": QUADS, "gpu-1": PAIRS, "blind": None}
    scene = Scene(machines, *ran, a=(0, 1), b=(4, 5), old=(0, 2), z=(1,))
    claims = {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}
    scene.place(bound("train-3", 4, "gpu-7", claims), 2, 3, 6, 7)
    scene.place(bound("infer", 1, "gpu-2"), 0)
    scene.place(bound("train-4", 4, "gpu-2", island="required"), 4, 5, 6, 7)
    scene.place(bound("far", 2, "gpu-2"), 1, 2)
    scene.pods(bound("dark", 2, "blind"))
    scene.pods(bound("last", 1, "gpu-2"))
    return scene


def no_agent() -> Scene:
    return Scene({"old": None})


def idle() -> Scene:
    scene = Scene({"gpu-1": PAIRS})
    scene.pods(bound("p", 2, "gpu-1"))
    return scene


def hard() -> Scene:
    """Nothing that was placed could be compared in numbers."""
    rtx = MACHINES["rtx4090"]()
    scene = Scene({"gpu-1": rtx}, bound("a", 2, "gpu-1"))
    scene.place(bound("p", 2, "gpu-1"), 0, 7)
    scene.pods(bound("q", 2, "gpu-1", interconnect="nvlink"))
    scene.observer.finish()
    return scene


def dark() -> Scene:
    """Nothing can be compared."""
    scene = Scene({"old": None})
    scene.pods(bound("p", 2, "old"))
    return scene


@pytest.mark.parametrize("made", [busy, no_agent, idle, hard, dark], ids=lambda each: each.__name__.replace("_", "-"))
def test_the_summary(made: Callable[[], Scene], request: pytest.FixtureRequest) -> None:
    scene = made()
    name = request.node.callspec.id
    golden = Path(__file__).parent / "golden" / f"{name}.txt"

    assert summary(scene.observer.report(scene.now + 3600)) == golden.read_text()


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


def test_what_is_unknown_in_a_document_is_null() -> None:
    found = placement_document(single_unknown())
    single_ring = {"ring": None, "oneIsland": True, "numaNodes": 1}

    assert (found["indices"], found["lostGbps"], found["brokeIslandOf"]) == (None, None, None)
    assert found["got"] == {"worst": single_ring, "best": single_ring}
    assert placement_document(unknown_node())["got"] is None
    assert placement_document(unknown_node())["byUs"] is not None
    assert placement_document(waits())["byUs"] is None
    assert placement_document(broke())["brokeIslandOf"] == 4


def test_the_report_as_a_document() -> None:
    scene = busy()

    found = json.loads(json.dumps(report_document(scene.observer.report(scene.now + 3600))))

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
