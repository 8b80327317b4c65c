"""Free GPUs: by hand on four and eight GPUs, and compared with a random simulated kubelet."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.model import Gpu, Health, Link, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation.admission import predict_exact, predict_sets
from scheduler_core.allocation.device_plugin import Prediction
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, subsets
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.allocation.occupancy import Occupant, OpenAdmissions, PendingAdmission, follow_admissions
from scheduler_core.cache.node_record import NodeRecord, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.allocation.machines16 import all_alike
from tests.scheduler_core.allocation.random_graphs import graphs, kubelet
from tests.scheduler_core.builders import NOW, kubelet_report, mask, occupant, profile, record
from tests.simulated_node.kubelet import Container, Pod
from tests.simulated_node.preferred import pair_scores

PAIRS = MACHINES["a100_bridged"]()  # islands {0, 1} and {2, 3}
H100 = MACHINES["hgx_h100"]()
DGX2 = MACHINES["dgx2"]()


def _state(observed: NodeRecord) -> NodeState:
    return state_of(observed, NOW, Policy())


def test_kubelet_report_is_used() -> None:
    found = _state(record(topology=PAIRS, held={"a": [0, 2]}, pods=[occupant("a", 2)]))

    assert found.free == ExactSets((0b1010,))
    assert found.free_counts == (("nvidia.com/gpu", 2),)


def test_pod_bound_since_the_report_has_a_predicted_set() -> None:
    found = _state(record(topology=PAIRS, held={}, pods=[occupant("a", 2, admitted=True)]))

    assert found.free == ExactSets((0b0011, 0b1100))


def test_pod_may_be_admitted_after_the_next_pod() -> None:
    found = _state(record(topology=PAIRS, held={}, pods=[occupant("a", 2)]))

    assert found.free == ExactSets((0b0011, 0b1100, 0b1111))


def test_order_of_admission_is_unknown() -> None:
    """Any single GPU first, then two GPUs: always a whole pair, since one pair is always left."""
    pods = [occupant("one", 1, admitted=True), occupant("two", 2, admitted=True)]

    found = _state(record(topology=PAIRS, held={}, pods=pods))

    assert found.free == ExactSets((0b0001, 0b0010, 0b0100, 0b1000))


def test_departed_pod_may_have_held_gpus_at_admission() -> None:
    """``old`` had a pair and has gone, so the pair is free; ``new`` may have been admitted before that, or after."""
    held = {"old": [0, 1]}

    found = _state(record(topology=PAIRS, held=held, pods=[occupant("new", 1, admitted=True)]))

    assert found.free == ExactSets((0b0111, 0b1011, 0b1101, 0b1110))
    assert _state(record(topology=PAIRS, held={"old": [0, 1]}, pods=[occupant("new", 2)])).free == ExactSets(
        (0b0011, 0b1100, 0b1111)
    )


def test_unreported_departed_pods_may_have_held_gpus_too() -> None:
    """While two single GPUs were in use, perhaps one of each pair, ``new`` could get no pair."""
    gone = [occupant("gone-1", 1), occupant("gone-2", 1)]
    new = occupant("new", 2, admitted=True)

    found = _state(record(topology=PAIRS, held={}, pods=[new], departed=gone))

    assert found.free == ExactSets((0b0011, 0b0101, 0b0110, 0b1001, 0b1010, 0b1100))


def test_pod_with_a_reused_name_is_another_pod() -> None:
    """A StatefulSet's pod was replaced under the same name: the report is about its predecessor."""
    former = occupant("web-0", 2)._replace(uid="former")

    found = _state(record(topology=PAIRS, held={"web-0": [0, 1]}, pods=[occupant("web-0", 2)], departed=[former]))

    assert found.free == ExactSets((0b0011, 0b1100, 0b1111))


def test_no_kubelet_report() -> None:
    assert _state(record(topology=PAIRS)).free == ExactSets((0b1111,))
    assert _state(record(topology=PAIRS, pods=[occupant("a", 1)])).free == SomeSet(0b1111, 3)


def test_report_of_a_part_of_a_pod() -> None:
    """The kubelet does not report the devices that init containers keep."""
    found = _state(record(topology=PAIRS, held={"a": [0]}, pods=[occupant("a", 2)]))

    assert found.free == SomeSet(0b1110, 2)


def test_report_with_unknown_gpus_is_ignored() -> None:
    other = MACHINES["dgx1"]()
    observed = record(topology=PAIRS, pods=[occupant("a", 2)])

    assert _state(msgspec.structs.replace(observed, gpus=kubelet_report(other, {"a": [6, 7]}))).free == SomeSet(
        0b1111, 2
    )


def test_mig_devices_and_replicas_are_not_whole_gpus() -> None:
    observed = record(topology=PAIRS, held={"a": [0]}, pods=[])
    assert observed.gpus is not None
    assert observed.gpus.allocations is not None
    (allocation,) = observed.gpus.allocations
    cut = msgspec.structs.replace(allocation, mig_device="MIG-1")
    shared = msgspec.structs.replace(allocation, replica=1)

    for each, waiting in ((cut, ExactSets((0b0011, 0b1100))), (shared, SomeSet(0b1111, 2))):
        gpus = msgspec.structs.replace(observed.gpus, allocations=(each,))
        pods = (occupant("b", 2, admitted=True),)
        assert _state(msgspec.structs.replace(observed, gpus=gpus, pods=pods)).free == waiting


class TestUnhealthyGpus:
    """The device plugin offers fewer GPUs than exist, and does not tell which are missing."""

    def test_any_gpu_may_be_unhealthy(self) -> None:
        found = _state(record(topology=PAIRS, held={}, allocatable={"nvidia.com/gpu": 3}))

        assert found.free == ExactSets((0b0111, 0b1011, 0b1101, 0b1110))

    def test_pods_keep_unhealthy_gpus(self) -> None:
        found = _state(
            record(topology=PAIRS, held={"a": [0, 1]}, pods=[occupant("a", 2)], allocatable={"nvidia.com/gpu": 3})
        )

        assert found.free == ExactSets((0b0100, 0b1000, 0b1100))

    def test_with_waiting_pods_only_the_number_is_known(self) -> None:
        found = _state(record(topology=PAIRS, held={}, pods=[occupant("a", 1)], allocatable={"nvidia.com/gpu": 3}))

        assert found.free == SomeSet(0b1111, 2)

    def test_too_many_to_list(self) -> None:
        found = _state(record(topology=DGX2, held={}, allocatable={"nvidia.com/gpu": 8}))

        assert found.free == SomeSet(0xFFFF, 8)


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([occupant(f"p{at}", 1) for at in range(9)], id="too many pods"),
        pytest.param([occupant("p", 7)], id="too many choices"),
        pytest.param(
            [occupant("a", 3), occupant("b", 3, island="required"), occupant("c", 3, numa="ignore")],
            id="too many worlds",
        ),
    ],
)  # fmt: skip
def test_too_many_orders_give_any_set(pods: list[Occupant]) -> None:
    found = _state(record(topology=all_alike(), held={}, pods=pods))

    assert found.free == SomeSet(0xFFFF, 16 - sum(pod.profile.gpus for pod in pods))
    assert found.open_admissions is None


def test_report_that_contradicts_the_pods_is_not_followed() -> None:
    """Three pods of two GPUs on four GPUs."""
    pods = [occupant(name, 2, admitted=True) for name in "abc"]

    assert _state(record(topology=PAIRS, held={}, pods=pods)).free == SomeSet(0b1111, 0)


def test_departed_pod_may_have_been_rejected() -> None:
    """go-gpuallocator pads a set of three on such a machine, and the device plugin crashes."""
    near, far = PcieDistance.PIX, PcieDistance.PXB
    topology = NodeTopology(
        gpus=tuple(Gpu(index=at, numa_node=0, health=Health.OK) for at in range(5)),
        nvlink=Nvlink(links=(Link(a=0, b=3, lanes=1), Link(a=1, b=4, lanes=12))),
        pcie=tuple(tuple(None if a == b else far if {a, b} == {2, 4} else near for b in range(5)) for a in range(5)),
    )
    gone = [occupant("refused", 3), occupant("refused-too", 3)]

    found = _state(record(topology=topology, held={}, pods=[occupant("new", 1)], departed=gone))

    assert found.free == ExactSets((0b01111, 0b10111, 0b11011, 0b11101, 0b11110, 0b11111))


def test_outcomes_have_the_free_gpus_at_each_admission() -> None:
    shape = shape_of(PAIRS)
    course = follow_admissions(
        shape, OpenAdmissions(0b1111, (PendingAdmission(profile(2)), PendingAdmission(profile(1))))
    )

    assert course is not None
    assert course.admissions == {
        *((free, profile(2)) for free in (0b1111, 0b0111, 0b1011, 0b1101, 0b1110)),
        *((free, profile(1)) for free in (0b1111, 0b0011, 0b1100)),
    }


def test_pods_with_equal_requests_are_followed_as_one_kind() -> None:
    """Other constraints do not matter: eight different pods would be too many."""
    shape = shape_of(H100)
    alike = follow_admissions(shape, OpenAdmissions(shape.whole, (PendingAdmission(profile(1)),) * 8))
    differing = [profile(1, min_vram=f"{at}Gi") for at in range(1, 9)]
    found = follow_admissions(shape, OpenAdmissions(shape.whole, tuple(map(PendingAdmission, differing))))

    assert alike is not None
    assert found is not None
    assert found.free == alike.free == frozenset(range(256))
    assert found.admissions == {(free, each) for free, _ in alike.admissions for each in differing}


def test_open_admissions_are_followed_once_whatever_the_order_and_the_constraints_of_the_pods() -> None:
    shape = shape_of(all_alike())
    one, two, three = (PendingAdmission(profile(size)) for size in (1, 2, 3))
    constrained = PendingAdmission(profile(3, min_vram="1Gi"))
    found = follow_admissions(shape, OpenAdmissions(0x0F0F, (one, two, three)))
    before = predict_exact.cache_info()

    assert found is not None
    for order in ((two, three, one), (three, one, two), (constrained, two, one)):
        other = follow_admissions(shape, OpenAdmissions(0x0F0F, order))

        assert other is not None
        assert other.free == found.free
    assert predict_exact.cache_info() == before  # nothing was searched again


def test_admission_on_a_node_of_one_gpu_is_followed() -> None:
    shape = shape_of(MACHINES["wsl"]())
    found = follow_admissions(shape, OpenAdmissions(1, (PendingAdmission(profile(1)),)))

    assert found is not None
    assert found.free == {1, 0}


@settings(deadline=None, max_examples=120)
@given(graphs(most=6), st.integers(0, 2**32))
def test_free_gpus_of_the_kubelet_were_predicted(topology: NodeTopology, seed: int) -> None:
    """Random events: pods bound, admitted late and out of order, ended; the agent reports now and then."""
    random = Random(seed)
    manager = kubelet(topology, pair_scores(topology), random)
    everything = (1 << len(topology.gpus)) - 1
    observed = record(topology=topology, held={})
    bound: list[Occupant] = []  # not admitted yet
    for step in range(10):
        held = sum(each.profile.gpus for each in observed.pods)
        deed = random.choice(("bind", "bind", "admit", "admit", "end", "look"))
        if deed == "bind" and held < len(topology.gpus):
            pod = occupant(f"p{step}", random.randint(1, len(topology.gpus) - held))
            observed = with_pod(observed, pod)
            bound.append(pod)
        elif deed == "admit" and bound:
            pod = bound.pop(random.randrange(len(bound)))
            if manager.admit(Pod(pod.uid, "team", pod.name, (Container("c", {"nvidia.com/gpu": pod.profile.gpus}),))):
                observed = without_pod(observed, pod.uid)  # the plugin crashed: the pod failed
            elif random.random() < 0.5:  # its status says so
                observed = with_pod(observed, pod._replace(admitted=True))
        elif deed == "end" and len(observed.pods) > len(bound):
            done = random.choice([each for each in observed.pods if each not in bound])
            manager.remove(done.uid)
            observed = without_pod(observed, done.uid)
        elif deed == "look":
            allocated = {pod.name: [each.gpu for each in manager.devices_of(pod.uid)] for pod, _ in manager.pods}
            observed = with_gpus(observed, kubelet_report(topology, allocated))

    free = everything & ~sum(mask(*{each.gpu for each in manager.devices_of(pod.uid)}) for pod, _ in manager.pods)
    found = _state(observed).free
    assert found is not None
    if isinstance(found, ExactSets):
        assert free in found.masks
    else:
        assert free & ~found.among == 0
        assert free.bit_count() >= found.size


@settings(deadline=None, max_examples=60)
@given(graphs(most=6), st.data())
def test_some_set_contains_the_outcomes_of_each_set(topology: NodeTopology, data: st.DataObject) -> None:
    """``SomeSet`` instead of the exact sets never hides an outcome."""
    shape = shape_of(topology)
    among = data.draw(st.integers(1, (1 << len(topology.gpus)) - 1))
    size = data.draw(st.integers(1, among.bit_count()))
    wanted = data.draw(st.integers(1, size))
    ask = profile(wanted).device_request.whole_gpu_steps

    loose = predict_sets(shape, SomeSet(among, size), ask)

    for free in subsets(among, size):
        assert _masks(predict_sets(shape, ExactSets((free,)), ask)) <= _masks(loose)


def _masks(found: Prediction) -> set[int]:
    assert isinstance(found.sets, ExactSets)
    return set(found.sets.masks)
