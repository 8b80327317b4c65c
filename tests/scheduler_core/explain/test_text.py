"""The explanation at a terminal: whole texts, and what holds for all of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from scheduler_core.explain import Explanation, explanation_text
from scheduler_core.explain.gpu_wording import gpu_set_words
from scheduler_core.explain.model import ExcludedNodes, ExplainedPod, GpuSet
from tests.conftest import Golden
from tests.machines import MACHINES
from tests.scheduler_core.builders import profile, record, request
from tests.scheduler_core.explain.explanations import EXPLANATIONS
from tests.scheduler_core.explain.fleets import explained

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_text(name: str, golden: Golden) -> None:
    golden(GOLDEN / f"{name}.txt", explanation_text(EXPLANATIONS[name], 100))


@pytest.mark.parametrize("name", EXPLANATIONS)
def test_sentences_are_folded(name: str) -> None:
    """Tables are, too."""
    narrow, plain = explanation_text(EXPLANATIONS[name], 60), explanation_text(EXPLANATIONS[name], 100_000)

    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert narrow.split() == plain.split()
    assert explanation_text(EXPLANATIONS[name], 5) == explanation_text(EXPLANATIONS[name], 20)


def test_nothing_acts_on_the_terminal() -> None:
    nasty = Explanation(pod=ExplainedPod("team", "\x1b[2Jé"), malformed="it says \x07")
    forged = Explanation(pod=ExplainedPod("team", "a\nb"), malformed="no")

    assert explanation_text(nasty, 100) == "pod team/\\x1b[2Jé is rejected on every node: it says \\x07\n"
    assert explanation_text(forged, 100) == "pod team/a\\nb is rejected on every node: no\n"
    assert (
        explanation_text(nasty, 100, ascii_only=True)
        == "pod team/\\x1b[2J\\xe9 is rejected on every node: it says \\x07\n"
    )


@pytest.mark.parametrize(
    ("spot", "words"),
    [
        pytest.param(GpuSet((0,), (1,), (0,)), "GPU0: NUMA node 0", id="one GPU"),
        pytest.param(
            GpuSet((0, 1), None, None, "unknown"),
            "GPU0,1: ring unknown, islands unknown, NUMA node unknown",
            id="unknown",
        ),
        pytest.param(
            GpuSet((0, 1), (1, 1), (0, 1), "pcie", None, "SYS"),
            "GPU0,1: ring ? GB/s pcie SYS, islands 1+1, NUMA node 0+1",
            id="PCIe of unknown speed",
        ),
        pytest.param(
            GpuSet((0, 1), (2,), (0,), "nvlink", 112.5),
            "GPU0,1: ring 112.5 GB/s nvlink, one island, NUMA node 0",
            id="ring",
        ),
    ],
)
def test_a_set_in_words(spot: GpuSet, words: str) -> None:
    assert gpu_set_words(spot) == words


def test_one_gpu_with_unknown_links() -> None:
    (best,) = explained(request(1), record("n", MACHINES["nvlink_unknown"](), held={})).best

    assert best.outcomes is not None
    assert best.outcomes[0].islands is None
    assert profile(1).gpus == len(best.outcomes[0].gpus)


def test_nodes_that_kube_scheduler_excludes_are_not_called_nodes_without_devices() -> None:
    found = msgspec.structs.replace(
        explained(request(1)), nodes=0, other_nodes=0, barred=(ExcludedNodes("the node is cordoned", ("a",)),)
    )

    text = explanation_text(found, 100)

    assert "kube-scheduler would exclude all nodes with such devices." in text
    assert "No node has such devices" not in text
