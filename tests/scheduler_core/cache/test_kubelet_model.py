"""The model of the kubelet of a node."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.nodegpus import KubeletFacts, NumaResources
from gputopo.labels.keys import TOPOLOGY_MANAGER
from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.allocation.numa_alignment import (
    NO_ALIGNMENT,
    UNKNOWN_KUBELET,
    NumaAlignment,
    NumaCapacity,
    NumaPolicy,
)
from scheduler_core.cache.node_record import NodeRecord, without_pod
from scheduler_core.cache.node_state import NodeState, state_from_record
from scheduler_core.request.device_request import ContainerStep
from tests.machines import MACHINES
from tests.scheduler_core.builders import kubelet_report, occupant, record

H100 = MACHINES["hgx_h100"]()
NUMA = (NumaResources(0, 32, 4), NumaResources(1, 32, 32))
PINNING = KubeletFacts("restricted", "container", False, True, False, NUMA)


def reported(facts: KubeletFacts | None, **more: object) -> NodeRecord:
    """Return a node whose agent publishes these facts."""
    found = record("n", H100, held={"a": [0]}, pods=[occupant("a", 1)], **more)  # type: ignore[arg-type]
    assert found.gpus is not None
    return msgspec.structs.replace(found, gpus=msgspec.structs.replace(found.gpus, kubelet=facts))


def state(found: NodeRecord) -> NodeState:
    return state_from_record(found, stale=False, confirmation_pending=False)


def labelled(policy: str) -> dict[str, str]:
    return {TOPOLOGY_MANAGER.key: policy}


@pytest.mark.parametrize(
    ("facts", "labels", "alignments"),
    [
        pytest.param(None, {}, UNKNOWN_KUBELET.alignments, id="nothing known: every policy"),
        pytest.param(None, labelled("none"), NO_ALIGNMENT, id="the label"),
        pytest.param(None, labelled("sometimes"), UNKNOWN_KUBELET.alignments, id="a label with another text"),
        pytest.param(
            None,
            labelled("restricted"),
            (
                NumaAlignment(NumaPolicy.RESTRICTED, False, True, False),
                NumaAlignment(NumaPolicy.RESTRICTED, True, True, False),
            ),
            id="the label does not name scope and options",
        ),
        pytest.param(
            KubeletFacts("restricted", "pod", False, align_by_socket=False),
            {},
            (NumaAlignment(NumaPolicy.RESTRICTED, True, False),),
            id="the configuration",
        ),
        pytest.param(
            KubeletFacts("none", "container", False),
            labelled("single-numa-node"),
            (
                *NO_ALIGNMENT,
                NumaAlignment(NumaPolicy.SINGLE_NUMA_NODE, False, True),
                NumaAlignment(NumaPolicy.SINGLE_NUMA_NODE, True, True),
            ),
            id="the file and the label disagree: either",
        ),
        pytest.param(KubeletFacts("custom", "pod"), {}, UNKNOWN_KUBELET.alignments, id="a policy of another kubelet"),
    ],
)
def test_alignments(facts: KubeletFacts | None, labels: dict[str, str], alignments: tuple[NumaAlignment, ...]) -> None:
    assert state(reported(facts, labels=labels)).kubelet.alignments == alignments


@pytest.mark.parametrize(
    ("options", "cpus", "admitted"),
    [
        pytest.param({"full_physical_cores": True, "cpus_per_core": 2}, 3, False, id="half of a core"),
        pytest.param({"full_physical_cores": True, "cpus_per_core": 2}, 4, True, id="whole cores"),
        pytest.param({"full_physical_cores": True, "cpus_per_core": 1}, 3, True, id="one thread per core"),
        pytest.param({"full_physical_cores": True}, 4, None, id="threads unknown"),
        pytest.param({"full_physical_cores": False}, 3, True, id="off"),
        pytest.param({"cpus_per_core": 2}, 3, None, id="option unknown"),
        pytest.param({"cpus_per_core": 2}, 4, True, id="option unknown, whole cores"),
        pytest.param(
            {"exclusive_cpus": False, "full_physical_cores": True, "cpus_per_core": 2}, 3, True, id="not static"
        ),
        pytest.param({"full_physical_cores": True, "cpus_per_core": 2}, 0, True, id="no exclusive CPUs"),
    ],
)
def test_full_physical_cores(options: dict[str, object], cpus: int, admitted: bool | None) -> None:
    facts = msgspec.structs.replace(KubeletFacts("none", "container", False, True, False), **options)

    assert state(reported(facts)).kubelet.admits_cpus((ContainerStep(1, cpus=cpus),)) is admitted


def test_align_by_socket_of_the_configuration() -> None:
    facts = KubeletFacts("restricted", "pod", False, align_by_socket=True)

    assert state(reported(facts)).kubelet.alignments == (NumaAlignment(NumaPolicy.RESTRICTED, True, False, True),)


@pytest.mark.parametrize(
    ("facts", "labels"),
    [
        pytest.param(KubeletFacts("restricted", "container", exclusive_cpus=True, numa_nodes=NUMA), {}, id="report"),
        pytest.param(KubeletFacts(exclusive_cpus=True, numa_nodes=NUMA), labelled("restricted"), id="label"),
        pytest.param(KubeletFacts(exclusive_cpus=True, numa_nodes=NUMA), labelled("single-numa-node"), id="single"),
    ],
)
@pytest.mark.parametrize(("cpus", "rejected"), [(4, False), (5, True), (32, True), (33, True)])
def test_rejections_for_cpus_are_predicted_without_the_configuration(
    facts: KubeletFacts, labels: dict[str, str], cpus: int, *, rejected: bool
) -> None:
    """GPUs are free on NUMA node 0 only, where 4 CPUs are free; ``align-by-socket`` counts as off."""
    found = state(reported(facts, labels=labels))
    steps = found.kubelet.steps_of((ContainerStep(2),), (ContainerStep(2, cpus=cpus),))

    assert found.shape is not None
    predicted = predict_sets(found.shape, ExactSets((0b1111,)), steps, found.kubelet).sets

    assert isinstance(predicted, ExactSets)
    assert (predicted.masks == ()) is rejected


def test_align_by_socket_of_the_configuration_counts_for_the_policy_of_the_label() -> None:
    facts = KubeletFacts("none", "container", False, align_by_socket=True)

    found = state(reported(facts, labels=labelled("restricted"))).kubelet

    assert [each.by_socket for each in found.alignments] == [False, True, True]


def test_align_by_socket_is_impossible_with_single_numa_node() -> None:
    found = state(reported(KubeletFacts("single-numa-node", "container"))).kubelet

    assert not any(each.by_socket for each in found.alignments)


def test_cpus_of_numa_nodes_are_known_until_pods_come_or_go() -> None:
    exclusive = occupant("b", 1)
    request = exclusive.profile.device_request._replace(aligned_steps=(ContainerStep(1, cpus=4),))
    exclusive = exclusive._replace(profile=exclusive.profile._replace(device_request=request))
    settled = reported(PINNING)
    coming = msgspec.structs.replace(settled, pods=(*settled.pods, exclusive))

    assert state(settled).kubelet.numa_nodes == (NumaCapacity(0, 32, 4), NumaCapacity(1, 32, 32))
    assert state(coming).kubelet.numa_nodes is None
    assert state(without_pod(coming, "b")).kubelet.numa_nodes is None


def test_cpus_without_the_static_policy_do_not_matter() -> None:
    facts = msgspec.structs.replace(PINNING, exclusive_cpus=False)

    found = state(reported(facts)).kubelet

    assert (found.exclusive_cpus, found.pinned_memory, found.numa_nodes) == (False, False, None)
    assert found is state(reported(facts)).kubelet


def test_withdrawn_gpu_is_not_free() -> None:
    withdrawn = reported(KubeletFacts(withdrawn=(H100.gpus[5].uuid or "",)), allocatable={"nvidia.com/gpu": 7})

    assert state(withdrawn).free == ExactSets((0b11011110,))


@pytest.mark.parametrize("names", [("GPU-of-another-node",), ()], ids=["another GPU", "none yet"])
def test_withdrawn_gpus_that_the_node_contradicts_are_unknown(names: tuple[str, ...]) -> None:
    unnamed = state(reported(None, allocatable={"nvidia.com/gpu": 7}))

    assert state(reported(KubeletFacts(withdrawn=names), allocatable={"nvidia.com/gpu": 7})).free == unnamed.free


def test_pods_are_followed_past_a_withdrawn_gpu() -> None:
    facts = KubeletFacts("none", withdrawn=(H100.gpus[0].uuid or "",))
    found = record("n", H100, held={}, pods=[occupant("new", 4)], allocatable={"nvidia.com/gpu": 7})
    gpus = msgspec.structs.replace(kubelet_report(H100, {}), kubelet=facts)

    assert state(msgspec.structs.replace(found, gpus=gpus)).free == ExactSets((0b1110, 0b11111110))
