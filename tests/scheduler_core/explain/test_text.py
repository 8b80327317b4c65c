"""The story at a terminal: whole texts, and what holds for all of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from scheduler_core.explain import Explanation, explain, refusal, text
from scheduler_core.explain.gpu_wording import spot_words
from scheduler_core.explain.model import Spot, Subject
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record, request
from tests.scheduler_core.explain.fleets import ACROSS, DGX2, PAIRS, POLICY, QUADS, fleet, told
from tests.scheduler_core.explain.test_near_misses import TIES

GOLDEN = Path(__file__).parent / "golden"
BUSY = record(
    "node-7", QUADS, held={"train-3": [2, 3], "a": [6], "b": [7]},
    pods=[occupant("train-3", 2), occupant("a", 1), occupant("b", 1)],
)  # fmt: skip
NEW = request(4, "train-4", island="required")
STORIES = {
    "fits": told(
        request(4)._replace(scheduler="gputopo-scheduler"),
        record("whole", QUADS, held={}),
        record("pairs", PAIRS, held={}),
        record("labels", labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}, allocatable={"nvidia.com/gpu": 4}),
        BUSY,
        record("cpu"),
    ),
    "nowhere": msgspec.structs.replace(
        told(NEW, BUSY, *(msgspec.structs.replace(BUSY, name=f"other-{at}") for at in range(5))),
        scheduler_said="0/6 nodes are available: 6 no NVLink island with enough free GPUs (see: gputopo why pod).",
    ),
    "in-the-way": told(request(2, numa="required"), record("node-1", ACROSS, held={})),
    "too-large": told(request(9), record("n", QUADS, held={})),
    "not-listed": told(request(6), record("n", DGX2, held={})),
    "bound-unsettled": told(
        request(2),
        record("n", PAIRS, held={"new": [2, 3]}, pods=[occupant("new", 2), occupant("late", 2)]),
        bound="n",
    ),
    "bound": told(
        request(2, numa="required"),
        record("n", PAIRS, held={"new": [1, 2]}, pods=[occupant("new", 2)]),
        bound="n",
    ),
    "bound-well": told(
        request(2),
        record("n", PAIRS, held={"new": [2, 3]}, pods=[occupant("new", 2)]),
        bound="n",
    ),
    "bound-unknown": told(request(2), record("n", PAIRS, pods=[occupant("new", 2)]), bound="n"),
    "may-crash": told(request(3), record("ties", TIES, held={})),
    "many-outcomes": told(request(2), record("wide", DGX2, held={})),
    "malformed": refusal("team", "p", "the pod's request is malformed: gputopo.io/island: 'yes' is not required"),
    "no-node": explain(request(1), fleet(record("cpu")), None, POLICY, NOW),
}


@pytest.mark.parametrize("name", STORIES)
def test_text(name: str) -> None:
    """To write them anew after a change: delete them, run this, and read what git shows."""
    golden = GOLDEN / f"{name}.txt"
    shown = text(STORIES[name], 100)
    if not golden.exists():
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(shown, encoding="utf-8")

    assert shown == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STORIES)
def test_sentences_are_folded(name: str) -> None:
    """Tables are not."""
    narrow, plain = text(STORIES[name], 60), text(STORIES[name], 100_000)

    assert all(len(line) <= 60 for line in narrow.splitlines() if "  " not in line.strip() and "(" not in line)
    assert narrow.split() == plain.split()
    assert text(STORIES[name], 5) == text(STORIES[name], 40)


def test_nothing_acts_on_the_terminal() -> None:
    nasty = Explanation(pod=Subject("team", "\x1b[2Jé"), malformed="it says \x07")

    assert text(nasty, 100) == "pod team/\\x1b[2Jé is refused on every node: it says \\x07\n"
    assert text(nasty, 100, ascii_only=True) == "pod team/\\x1b[2J\\xe9 is refused on every node: it says \\x07\n"


@pytest.mark.parametrize(
    ("spot", "words"),
    [
        pytest.param(Spot((0,), (1,), (0,)), "GPU0: NUMA node 0", id="one GPU"),
        pytest.param(
            Spot((0, 1), None, None, "unknown"),
            "GPU0,1: ring unknown, islands unknown, NUMA node unknown",
            id="unknown",
        ),
        pytest.param(
            Spot((0, 1), (1, 1), (0, 1), "pcie", None, "SYS"),
            "GPU0,1: ring ? GB/s pcie SYS, islands 1+1, NUMA node 0+1",
            id="PCIe of unknown speed",
        ),
        pytest.param(
            Spot((0, 1), (2,), (0,), "nvlink", 112.5),
            "GPU0,1: ring 112.5 GB/s nvlink, one island, NUMA node 0",
            id="ring",
        ),
    ],
)
def test_a_set_in_words(spot: Spot, words: str) -> None:
    assert spot_words(spot) == words


def test_one_gpu_where_nobody_sees_the_links() -> None:
    (best,) = told(request(1), record("n", MACHINES["nvlink_unknown"](), held={})).best

    assert best.outcomes is not None
    assert best.outcomes[0].islands is None
    assert profile(1).gpus == len(best.outcomes[0].gpus)
