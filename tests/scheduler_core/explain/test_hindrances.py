"""Details beyond a reason: why a topology is not confirmed, and that no such island exists."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.nodegpus import NodeGpus
from gputopo.model import Gpu, NodeTopology
from scheduler_core.cache.node_record import NodeRecord, with_gpus
from tests.machines import MACHINES
from tests.scheduler_core.builders import kubelet_report, record, request
from tests.scheduler_core.explain.fleets import H100, PAIRS, explained

CARDS = MACHINES["rtx4090"]()
FREE = record("a", PAIRS, held={})
SILENT = "the agent is silent, so the topology is not confirmed (time since its last report)"
CHECK = "check that its pod runs on each of these nodes, and read its log"
ASKED = request(2, island="required")
RESTORED = "a running agent restores it within a heartbeat, and names the field manager in an Event of the Node"


@pytest.mark.parametrize(
    ("gpus", "why", "nearest"),
    [
        pytest.param(
            None,
            "a: the Node carries a topology and has no NodeGpus that confirms it: start the agent, or, if "
            "no agent is to run there, remove the annotation gputopo.io/topology",
            "fits on a if its agent confirms the topology that the Node carries: start the agent, or check its log",
            id="no NodeGpus",
        ),
        pytest.param(
            kubelet_report(H100, {}),
            "a: its NodeGpus is about another topology than the Node carries: this lasts seconds, unless the agent "
            f"cannot write the Node (check its log), or another client edited its NodeGpus or the annotation "
            f"gputopo.io/topology: {RESTORED}",
            "fits on a if its agent confirms the topology that the Node carries: start the agent, or check its log",
            id="another topology",
        ),
        pytest.param(
            kubelet_report(PAIRS, {}, "2026-11-18T12:00:00Z"),
            "a: clock skew: its NodeGpus was observed more than 10 minutes from now, so its age is unknown; set "
            "the clock of the node, or of the extender",
            "fits on a if its agent confirms the topology that the Node carries: start the agent, or check its log",
            id="clock ahead",
        ),
        pytest.param(
            kubelet_report(PAIRS, {}, "2026-11-18T08:00:00Z"),
            f"{SILENT}: a (3h); {CHECK}",
            "fits on a if its agent still reports what it reported 3h ago: start the agent, or check its log",
            id="silent agent",
        ),
    ],
)
def test_why_a_topology_is_not_confirmed(gpus: NodeGpus | None, why: str, nearest: str) -> None:
    found = explained(ASKED, msgspec.structs.replace(FREE, gpus=gpus))

    assert [each.reason for each in found.refused] == ["UNKNOWN_TOPOLOGY"]
    assert found.notes == (why,)
    assert nearest in [each.text for each in found.nearest]


def test_each_silent_agent_is_named_with_its_age() -> None:
    times = {"b": "2026-11-18T10:30:00Z", "a": "2026-11-17T11:00:00Z", "c": "yesterday"}
    nodes = [msgspec.structs.replace(FREE, name=name, gpus=kubelet_report(PAIRS, {}, at)) for name, at in times.items()]

    assert explained(ASKED, *nodes).notes == (
        f"{SILENT}: a (24h), b (36m), c (invalid time of its last report); {CHECK}",
    )


def test_many_silent_agents_are_counted() -> None:
    old = kubelet_report(PAIRS, {}, "2026-11-18T08:00:00Z")
    nodes = [msgspec.structs.replace(FREE, name=f"n{at:02}", gpus=old) for at in range(20)]

    (note,) = explained(ASKED, *nodes).notes

    assert "n15 (3h) and 4 more" in note


def test_an_annotation_that_cannot_be_read_is_the_reason() -> None:
    """The node's labels still describe the GPUs, but not their links: no topology is stale."""
    facts = msgspec.structs.replace(FREE.machine, described=False, annotation_error="the annotation is damaged: '{'")
    labelled = msgspec.structs.replace(facts, topology=NodeTopology(gpus=(Gpu(index=0), Gpu(index=1))))

    found = explained(ASKED, msgspec.structs.replace(FREE, machine=labelled))

    assert [each.reason for each in found.refused] == ["UNKNOWN_TOPOLOGY"]
    why = "its annotation gputopo.io/topology cannot be read: the annotation is damaged: '{'"
    assert found.notes == (f"a: {why}; if edited, {RESTORED}",)


def test_many_nodes_of_one_kind_are_counted() -> None:
    silent = [with_gpus(msgspec.structs.replace(FREE, name=f"n{at}"), None) for at in range(6)]

    (note,) = explained(ASKED, *silent).notes

    assert note.startswith("n0, n1, n2, n3 and 2 more: the Node carries a topology")


@pytest.mark.parametrize(
    ("machine", "wishes", "means", "do"),
    [
        pytest.param(
            CARDS,
            {"island": "required"},
            "None of these nodes has NVLink between its GPUs (NVIDIA-GeForce-RTX-4090).",
            "Waiting does not help: add nodes with NVLink, or set gputopo.io/island: preferred.",
            id="no NVLink",
        ),
        pytest.param(
            CARDS,
            {"interconnect": "nvlink"},
            "None of these nodes has NVLink between its GPUs (NVIDIA-GeForce-RTX-4090).",
            "Waiting does not help: add nodes with NVLink, or remove gputopo.io/interconnect.",
            id="no NVLink, by interconnect",
        ),
        pytest.param(
            PAIRS,
            {"island": "required"},
            "None of these nodes has an NVLink island of 4 GPUs, free or not: the largest has 2.",
            "Waiting does not help: request 2 GPUs or fewer per pod, add nodes with larger islands, or set "
            "gputopo.io/island: preferred.",
            id="pairs",
        ),
    ],
)
def test_island_that_will_never_be_is_not_waited_for(
    machine: NodeTopology, wishes: dict[str, str], means: str, do: str
) -> None:
    (refusal,) = explained(request(4, **wishes), record("a", machine, held={})).refused

    assert (refusal.means, refusal.advice) == (means, do)


@pytest.mark.parametrize(
    ("records", "wishes"),
    [
        pytest.param([record("a", H100, held={})], {"island": "ignore", "interconnect": "nvswitch"}, id="fits"),
        pytest.param([FREE], {"interconnect": "nvswitch"}, id="an NVSwitch is asked for"),
    ],
)
def test_other_refusals_keep_their_advice(records: list[NodeRecord], wishes: dict[str, str]) -> None:
    found = explained(request(2, **wishes), *records)

    assert all("Waiting does not help" not in each.advice for each in found.refused)


def test_labels_need_no_confirmation() -> None:
    labelled = record("a", labels={"nvidia.com/gpu.count": "4"}, allocatable={"nvidia.com/gpu": 4})

    found = explained(ASKED, labelled)

    assert [each.reason for each in found.refused] == ["UNKNOWN_TOPOLOGY"]
    assert found.notes == (
        (
            "a: no agent describes these GPUs, and no label decides this shape; missing: gputopo.io/islands "
            "(gputopo labels)"
        ),
    )


def test_waiting_is_not_advised_where_no_numa_node_has_so_many_gpus() -> None:
    (found,) = explained(request(8, numa="required"), record("a", H100, held={})).refused

    assert found.means == "None of these nodes has 8 GPUs on one NUMA node, free or not: the largest number is 4."
    assert found.advice == (
        "Waiting does not help: request 4 GPUs or fewer per pod, or set gputopo.io/numa: preferred."
    )


def test_waiting_is_not_advised_where_no_node_has_so_many_gpus() -> None:
    (found,) = explained(request(9), record("a", H100, held={})).refused

    assert found.means == "None of these nodes has 9 nvidia.com/gpu, free or not: the largest number is 8."
    assert "does not help: request 8 or fewer per pod" in found.advice
