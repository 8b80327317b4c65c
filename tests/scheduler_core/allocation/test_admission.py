"""Predicted admissions under the policies of the Topology Manager."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.model import Link, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation import admission
from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.device_plugin import Prediction, most_work, preferred_sets, search_work
from scheduler_core.allocation.gpu_sets import MAX_SETS, ExactSets, SomeSet, exact_sets
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.allocation.numa_alignment import (
    UNKNOWN_KUBELET,
    KubeletModel,
    NumaCapacity,
    NumaPolicy,
    possible_alignments,
)
from scheduler_core.request.device_request import ContainerStep, ContainerSteps
from tests.machines import MACHINES
from tests.scheduler_core.allocation.admission_campaign import cases, check_case, total
from tests.scheduler_core.allocation.machines16 import MACHINES16
from tests.scheduler_core.allocation.random_graphs import _gpus

H100 = shape_of(MACHINES["hgx_h100"]())  # GPUs 0 to 3 on NUMA node 0, 4 to 7 on NUMA node 1
ACROSS = shape_of(MACHINES["a100_bridged_across"]())  # each bridge joins two NUMA nodes
REJECTING = (NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE)


def model(policy: NumaPolicy, *, pod_scope: bool = False, closest: bool = False) -> KubeletModel:
    """Return a kubelet whose managers of CPUs and memory do not take part."""
    alignments = possible_alignments(policy, pod_scope=pod_scope, closest=closest, by_socket=False)
    return KubeletModel(alignments, False, False)


def predicted(kubelet: KubeletModel, free: int, *steps: ContainerStep) -> Prediction:
    """Return the prediction on an HGX H100."""
    return predict_sets(H100, ExactSets((free,)), steps, kubelet)


def test_bridged_pairs_across_numa_nodes_are_not_predicted_under_best_effort() -> None:
    """The plugin alone would give a bridged pair; the kubelet offers it the GPUs of one NUMA node."""
    pair, numa = (ContainerStep(2),), ACROSS.numa
    alone = predict_sets(ACROSS, ExactSets((ACROSS.whole,)), pair, model(NumaPolicy.NONE)).sets
    aligned = predict_sets(ACROSS, ExactSets((ACROSS.whole,)), pair, model(NumaPolicy.BEST_EFFORT)).sets

    assert isinstance(alone, ExactSets)
    assert isinstance(aligned, ExactSets)
    assert all(ACROSS.is_one_island(mask) for mask in alone.masks)
    assert not any(ACROSS.is_one_island(mask) for mask in aligned.masks)
    assert all(len({numa[at] for at in range(4) if mask >> at & 1}) == 1 for mask in aligned.masks)


@pytest.mark.parametrize(
    ("policy", "free", "size", "sets"),
    [
        pytest.param(NumaPolicy.BEST_EFFORT, 0b01110111, 4, None, id="no node has enough: of all"),
        pytest.param(NumaPolicy.RESTRICTED, 0b01110111, 4, set(), id="a node has the capacity, but none has it free"),
        pytest.param(NumaPolicy.RESTRICTED, 0xFF, 6, None, id="no node has the capacity"),
        pytest.param(NumaPolicy.SINGLE_NUMA_NODE, 0xFF, 6, set(), id="single: never over two nodes"),
        pytest.param(NumaPolicy.BEST_EFFORT, 0b11110111, 4, {0xF0}, id="the node that has enough"),
        pytest.param(NumaPolicy.RESTRICTED, 0b11110111, 4, {0xF0}, id="restricted: the same"),
    ],
)
def test_policies(policy: NumaPolicy, free: int, size: int, sets: set[int] | None) -> None:
    found = predicted(model(policy), free, ContainerStep(size))

    if sets is None:  # as without a policy
        assert found == predicted(model(NumaPolicy.NONE), free, ContainerStep(size))
    else:
        assert found.sets == exact_sets(sets)


def test_pod_scope_keeps_all_containers_on_one_node() -> None:
    two = (ContainerStep(2), ContainerStep(2))
    free = 0b11110011  # two on node 0, four on node 1

    assert predicted(model(NumaPolicy.RESTRICTED), free, *two).sets != ExactSets((0xF0,))
    assert predicted(model(NumaPolicy.RESTRICTED, pod_scope=True), free, *two).sets == ExactSets((0xF0,))
    assert predicted(model(NumaPolicy.SINGLE_NUMA_NODE, pod_scope=True), 0b00110011, *two).sets == ExactSets(())


@pytest.mark.parametrize("policy", REJECTING)
def test_reused_gpus_hold_a_container_to_their_numa_node(policy: NumaPolicy) -> None:
    """The init container gets the two GPUs left on node 0; the container needs a third, which is on node 1."""
    reusing = (ContainerStep(2, False), ContainerStep(3))

    assert predicted(model(policy), 0b11110011, *reusing).sets == ExactSets(())
    assert predicted(model(policy), 0b11110111, *reusing).sets == ExactSets((0b0111,))


def test_reused_gpus_come_first_under_best_effort() -> None:
    """Two GPUs on node 0 are reused, although node 1 alone could hold the container."""
    found = predicted(model(NumaPolicy.BEST_EFFORT), 0b11110011, ContainerStep(2, False), ContainerStep(3)).sets

    assert isinstance(found, ExactSets)
    assert all(mask & 0b11 == 0b11 for mask in found.masks)


def test_unknown_policy_allows_the_outcomes_of_every_policy() -> None:
    unknown = predict_sets(ACROSS, ExactSets((ACROSS.whole,)), (ContainerStep(2),), UNKNOWN_KUBELET).sets

    assert isinstance(unknown, ExactSets)
    for policy in NumaPolicy:
        known = predict_sets(ACROSS, ExactSets((ACROSS.whole,)), (ContainerStep(2),), model(policy)).sets
        assert isinstance(known, ExactSets)
        assert set(known.masks) <= set(unknown.masks)


@pytest.mark.parametrize(("free", "size"), [(0xFF, 8), (0xFF, 6), (0xEE, 4)], ids=["8 of 8", "6 of 8", "4 of 3 + 3"])
def test_rejections_under_an_unknown_policy_are_not_predicted(free: int, size: int) -> None:
    """As ``docs/pods.md`` says: otherwise no pod with 8 GPUs would fit a machine with two NUMA nodes."""
    assert _masks(predicted(UNKNOWN_KUBELET, free, ContainerStep(size)))
    assert not _masks(predicted(model(NumaPolicy.SINGLE_NUMA_NODE), free, ContainerStep(size)))


def pinning(policy: NumaPolicy, *nodes: NumaCapacity, memory: bool = False) -> KubeletModel:
    """Return a kubelet with the static CPU Manager, or the Static Memory Manager."""
    return msgspec.structs.replace(model(policy), exclusive_cpus=not memory, pinned_memory=memory, numa_nodes=nodes)


@pytest.mark.parametrize(
    ("policy", "sets"),
    [
        pytest.param(NumaPolicy.BEST_EFFORT, {0x30, 0x50, 0x60, 0x90, 0xA0, 0xC0}, id="best-effort"),
        pytest.param(NumaPolicy.RESTRICTED, {0x30, 0x50, 0x60, 0x90, 0xA0, 0xC0}, id="restricted"),
        pytest.param(NumaPolicy.SINGLE_NUMA_NODE, {0x30, 0x50, 0x60, 0x90, 0xA0, 0xC0}, id="single-numa-node"),
    ],
)
def test_gpus_come_from_the_node_with_free_cpus(policy: NumaPolicy, sets: set[int]) -> None:
    kubelet = pinning(policy, NumaCapacity(0, 32, 4), NumaCapacity(1, 32, 32))
    found = predicted(kubelet, 0xFF, ContainerStep(2, cpus=8)).sets

    assert isinstance(found, ExactSets)
    assert set(found.masks) <= sets


@pytest.mark.parametrize("policy", REJECTING)
def test_cpus_and_gpus_free_on_different_nodes_are_rejected(policy: NumaPolicy) -> None:
    cpus = pinning(policy, NumaCapacity(0, 32, 4), NumaCapacity(1, 32, 32))
    memory = pinning(
        policy, NumaCapacity(0, memory=100, free_memory=10), NumaCapacity(1, memory=100, free_memory=90), memory=True
    )

    assert predicted(cpus, 0x0F, ContainerStep(2, cpus=8)).sets == ExactSets(())
    assert predicted(memory, 0x0F, ContainerStep(2, memory=50)).sets == ExactSets(())
    assert predicted(memory, 0xFF, ContainerStep(4, memory=50)).sets == ExactSets((0xF0,))


def test_gpus_may_cross_nodes_where_cpus_decide_under_best_effort() -> None:
    """CPUs are free on node 0 only, with one GPU; the other GPU comes from node 1."""
    kubelet = pinning(NumaPolicy.BEST_EFFORT, NumaCapacity(0, 32, 32), NumaCapacity(1, 32, 0))
    found = predicted(kubelet, 0b01110001, ContainerStep(2, cpus=8)).sets

    assert isinstance(found, ExactSets)
    assert all(mask & 1 for mask in found.masks)


def test_unknown_free_cpus_allow_every_alignment() -> None:
    unknown = msgspec.structs.replace(pinning(NumaPolicy.BEST_EFFORT), numa_nodes=None)
    single = msgspec.structs.replace(pinning(NumaPolicy.SINGLE_NUMA_NODE), numa_nodes=None)
    four = ContainerStep(4, cpus=8)

    assert {0x0F, 0xF0} <= set(_masks(predicted(unknown, 0xFF, four)))
    assert set(_masks(predicted(single, 0xFF, four))) == {0x0F, 0xF0}


def test_memory_of_a_group_of_nodes_is_not_given_to_one_node_under_any_policy() -> None:
    """Pods hold memory of both nodes together: 40 of 60 are free on each, and neither gives 40 to another pod."""
    group = (0, 1)
    nodes = (
        NumaCapacity(0, memory=100, free_memory=60, group=group),
        NumaCapacity(1, memory=100, free_memory=60, group=group),
    )
    for policy in (NumaPolicy.BEST_EFFORT, *REJECTING):
        kubelet = KubeletModel(
            possible_alignments(policy, pod_scope=False, closest=False, by_socket=False), False, True, nodes
        )

        assert (
            predicted(kubelet, 0xFF, ContainerStep(2, memory=40)).sets == ExactSets(())
            or policy is NumaPolicy.BEST_EFFORT
        )
    other = (
        NumaCapacity(0, memory=100, free_memory=10, group=(0,)),
        NumaCapacity(1, memory=100, free_memory=10, group=(1,)),
    )
    kubelet = KubeletModel(
        possible_alignments(NumaPolicy.BEST_EFFORT, pod_scope=False, closest=False, by_socket=False), False, True, other
    )
    assert predicted(kubelet, 0xFF, ContainerStep(2, memory=15)).sets == ExactSets(())


@pytest.mark.parametrize("policy", list(NumaPolicy))
def test_the_plugin_crashes_on_a_one_sided_link_under_every_policy(policy: NumaPolicy) -> None:
    """One NUMA node and two GPUs: with single-numa-node, too, the kubelet asks the plugin about both."""
    links = Nvlink(links=(Link(a=0, b=1, lanes=0, expected_lanes=1, one_sided=True),))
    shape = shape_of(
        NodeTopology(gpus=_gpus(2, [0, 0]), nvlink=links, pcie=((None, PcieDistance.PIX), (PcieDistance.PIX, None)))
    )

    assert predict_sets(shape, ExactSets((0b11,)), (ContainerStep(2),), model(policy)).may_crash
    assert not predict_sets(shape, ExactSets((0b11,)), (ContainerStep(1),), model(policy)).may_crash


def test_hints_for_cpus_are_unknown_with_align_by_socket() -> None:
    """CPUs are free on node 0 only; whether both nodes are one socket, and so as good, is not known."""
    nodes = (NumaCapacity(0, 32, 32), NumaCapacity(1, 32, 0))
    alignments = possible_alignments(NumaPolicy.RESTRICTED, pod_scope=False, closest=False, by_socket=True)
    kubelet = KubeletModel(alignments, True, False, nodes)

    assert set(_masks(predicted(kubelet, 0xFF, ContainerStep(4, cpus=8)))) == {0x0F, 0xF0}
    assert _masks(predicted(kubelet, 0xFF, ContainerStep(4))) == (0x0F,)


def test_uneven_links_may_be_read_at_either_end() -> None:
    """GPU 0 reports two NVLinks to GPU 1, GPU 1 three; the pair of 2 and 3 has 250 points, which lies between."""
    links = Nvlink(links=(Link(a=0, b=1, lanes=2, expected_lanes=3), Link(a=1, b=2, lanes=2)))
    distance = {frozenset((1, 2)): PcieDistance.PIX}
    pcie = tuple(
        tuple(None if a == b else distance.get(frozenset((a, b)), PcieDistance.SYS) for b in range(3)) for a in range(3)
    )
    shape = shape_of(NodeTopology(gpus=_gpus(3), nvlink=links, pcie=pcie))

    found = predict_sets(shape, ExactSets((0b111,)), (ContainerStep(2),), model(NumaPolicy.NONE)).sets

    assert found == ExactSets((0b011, 0b110))


def test_every_policy_scope_and_option_on_random_machines() -> None:
    """A sample of the campaign; ``docs/testing.md`` has the figures of the whole."""
    found = total(check_case(case, range(6)) for case in cases(machines=24, per_config=1, seed=7))

    assert found.cases == 24 * 13
    assert found.admissions > 150
    assert found.refused > 50
    assert not found.wrong


def _masks(found: Prediction) -> tuple[int, ...]:
    assert isinstance(found.sets, ExactSets)
    return found.sets.masks


STEPS: tuple[ContainerSteps, ...] = ((ContainerStep(2),), (ContainerStep(1, False), ContainerStep(2)))


@pytest.mark.parametrize("steps", STEPS)
def test_without_numa_nodes_no_policy_has_an_effect(steps: ContainerSteps) -> None:
    vm = shape_of(MACHINES["cloud_vm"]())
    alone = predict_sets(vm, ExactSets((0xFF,)), steps, model(NumaPolicy.NONE))

    assert all(predict_sets(vm, ExactSets((0xFF,)), steps, model(policy)) == alone for policy in NumaPolicy)


@pytest.mark.parametrize("name", MACHINES16)
@pytest.mark.parametrize("sizes", [(2, 2, 6), (2, 2, 8), (1, 1, 1, 1, 6), (3, 3, 3)])
def test_the_work_for_several_containers_is_bounded_with_many_gpus(
    name: str, sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes, states, searches = [0], [0], set[tuple[int, int]]()
    shape = shape_of(MACHINES16[name]())
    allocate = admission._allocate

    def counting(*inputs: Any) -> tuple[bool, int]:
        crashes, found = allocate(*inputs)
        outcomes[0], states[0] = outcomes[0] + found, states[0] + 1
        return crashes, found

    def searching(of: Any, free: int, size: int, required: int = 0) -> Prediction:
        searches.add((of.symmetry.canonical(free), size))
        return preferred_sets(of, free, size, required)

    monkeypatch.setattr(admission, "_allocate", counting)
    monkeypatch.setattr("scheduler_core.allocation.admission.preferred_sets", searching)
    admission.predict_exact.cache_clear()
    steps = tuple(map(ContainerStep, sizes))

    found = predict_sets(shape, ExactSets((0xFFFF,)), steps).sets
    several = predict_sets(shape, ExactSets((0x7FFF, 0xBFFF, 0xFFFE)), steps).sets

    assert outcomes[0] <= 10 * MAX_SETS  # three sets of free GPUs are too many to follow any of them
    assert states[0] <= MAX_SETS
    assert sum(search_work(shape, free, size) for free, size in searches) <= most_work(shape)
    for sets in (found, several):
        assert isinstance(sets, SomeSet) or {mask.bit_count() for mask in sets.masks} == {sum(sizes)}


def test_two_containers_are_followed_with_many_gpus() -> None:
    found = predict_sets(shape_of(MACHINES["dgx2"]()), ExactSets((0xFFFF,)), (ContainerStep(2), ContainerStep(2))).sets

    assert isinstance(found, ExactSets)
    assert len(found.masks) == 1820  # any four of 16
