"""Fragmentation with CPU and shares of GPUs. The plain cases are in ``test_score``."""

from __future__ import annotations

from math import exp, floor

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.model import NodeTopology
from scheduler_core.allocation.cpu_per_gpu import CpuPerGpu, cpu_per_gpu
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, subsets
from scheduler_core.allocation.named_shares import free_fraction
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord, parse_occupant
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.evaluation.evaluate import evaluate_state
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.score_fragmentation import best_gpu_for_share, fragmentation_score, fragmented_gpus
from scheduler_core.policy.demand_mix import DEFAULT_MIX, Demand, DemandMix
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod_request import PodProfile, PodRequest, parse_request
from scheduler_core.simulation.assumed_machines import islands
from tests.machines import MACHINES
from tests.scheduler_core.allocation import machines16
from tests.scheduler_core.builders import NOW, node, occupant, pod, profile, record

POLICY = Policy()
PAIRS = islands("X", (2, 2))


def _share(name: str, mib: int) -> Occupant:
    found = parse_occupant(pod(name, 1, resource=SHARED, annotations={"vram": f"{mib}Mi"}))
    assert found is not None
    return found


def _shared(held: dict[str, tuple[int, int]], *, cpu: int | None = None) -> NodeState:
    """A node that honours the GPU choice, with shares by name: GPU and MiB."""
    idle = record("n", PAIRS, held={})
    assert idle.gpus is not None
    allocations = tuple(
        DeviceAllocation(gpu=f"GPU-{gpu}", pod=PodRef("team", name, "c")) for name, (gpu, _) in held.items()
    )
    machine = msgspec.structs.replace(
        idle.machine, honours_gpu_choice=True, allocatable=((WHOLE, 4), (SHARED, 400)), cpu_milli=cpu
    )
    pods = tuple(_share(name, mib) for name, (_, mib) in sorted(held.items()))
    gpus = msgspec.structs.replace(idle.gpus, allocations=allocations)
    return state_of(NodeRecord("n", machine, gpus, pods), NOW, POLICY)


def _asked(mib: int) -> PodProfile:
    found = parse_request(pod("new", 1, resource=SHARED, annotations={"vram": f"{mib}Mi"}))
    assert isinstance(found, PodRequest)
    return found.profile


class TestCpu:
    """CPU for each free GPU."""

    @pytest.mark.parametrize(
        ("free", "asked", "level"),
        [
            pytest.param(4000, [], 1.0, id="idle"),
            pytest.param(4000, [1000], 0.75, id="somewhat less than there was"),
            pytest.param(2000, [1000], 1.75, id="half of the GPUs, seven eighths of the CPU"),
            pytest.param(1000, [1000], 2.5, id="a quarter of the GPUs: more than is told apart"),
            pytest.param(1000, [7600], 0.0, id="next to none"),
            pytest.param(1000, [4000, 5000], 0.0, id="more than there is"),
            pytest.param(0, [], 0.0, id="no GPU is free"),
        ],
    )
    def test_in_quarters(self, free: int, asked: list[int], level: float) -> None:
        assert cpu_per_gpu(8000, 4, free, asked) == CpuPerGpu(2000, level)

    def test_unknown(self) -> None:
        assert cpu_per_gpu(None, 4, 4000, []) is None
        assert cpu_per_gpu(8000, 0, 0, []) is None
        assert cpu_per_gpu(7, 8, 8000, []) is None  # less than a milli CPU for each GPU

    def test_of_free_gpus(self) -> None:
        assert CpuPerGpu(2000, 0.5).milli_for(3000) == 3000

    def test_pod_that_takes_more_than_its_share_leaves_stranded_gpus(self) -> None:
        """8000 of 8000 for one of four GPUs: three are stranded, each counts a quarter."""
        node = _shared({}, cpu=8000)
        greedy = profile(1)._replace(device_request=profile(1).device_request._replace(cpu_milli=8000))
        sets = ExactSets((1,))

        # A pod that takes its share gains and loses nothing: 0.5, in steps 0.48.
        assert fragmentation_score(profile(1), node, DemandMix(((Demand(1), 1.0),)), sets) == 0.48
        assert (
            fragmentation_score(greedy, node, DemandMix(((Demand(1), 1.0),)), sets) == 0.16
        )  # 1 / (1 + e^1.5) = 0.182

    def test_a_huge_cpu_request_scores_zero(self) -> None:
        """64000 cores, where 64000 millicores were meant."""
        slip = profile(1)._replace(device_request=profile(1).device_request._replace(cpu_milli=64_000_000))

        assert fragmentation_score(slip, _shared({}, cpu=8000), DemandMix(((Demand(1), 1.0),)), ExactSets((1,))) == 0.0


class TestShares:
    """Nodes that honour the scheduler's choice of the GPU."""

    def test_a_share_goes_beside_another_where_that_leaves_least(self) -> None:
        node = _shared({"a": (2, 400)})

        found = best_gpu_for_share(node, 600, DEFAULT_MIX)

        assert found is not None
        assert found[0] == 2

    def test_gpu_with_too_little_memory_is_not_chosen(self) -> None:
        found = best_gpu_for_share(_shared({"a": (0, 400), "b": (0, 300)}), 400, DEFAULT_MIX)

        assert found is not None
        assert found[0] == 1  # its island is broken already

    def test_nothing_fits(self) -> None:
        full = _shared({f"p{gpu}": (gpu, 700) for gpu in range(4)})

        assert best_gpu_for_share(full, 400, DEFAULT_MIX) is None
        assert rejection_reason(_asked(400), full, POLICY) is not None
        assert fragmentation_score(_asked(400), full, DEFAULT_MIX, None) == 0.0

    def test_a_share_is_scored_by_what_it_leaves(self) -> None:
        filled = evaluate_state(_asked(600), _shared({"a": (2, 400)}), POLICY)
        opened = evaluate_state(_asked(600), _shared({}), POLICY)

        assert isinstance(filled, Score)
        assert isinstance(opened, Score)
        assert filled.points > opened.points

    def test_whole_gpus_are_gpus_without_shares(self) -> None:
        assert _shared({"a": (2, 400)}).free == ExactSets((0b1011,))


def test_too_many_sets_are_scored_by_one_of_them() -> None:
    node = _shared({})

    assert fragmentation_score(profile(2), node, DEFAULT_MIX, SomeSet(0b1111, 2)) == fragmentation_score(
        profile(2), node, DEFAULT_MIX, ExactSets((0b11,))
    )


def test_no_set_at_all() -> None:
    assert fragmentation_score(profile(2), _shared({}), DEFAULT_MIX, ExactSets(())) == 0.0


def test_unknown_gpus() -> None:
    assert fragmentation_score(profile(1), NodeState(), DEFAULT_MIX, None) == 0.0
    assert fragmentation_score(profile(1), _shared({}), DEFAULT_MIX, None) == 0.0


def test_a_known_number_of_free_gpus_scores_like_known_gpus() -> None:
    """With labels alone it is unknown which two of four GPUs are in use; the number that is left is known."""
    machine = islands("X", (4,))
    known = state_of(record("n", machine, held={"a": (0, 1)}, pods=[occupant("a", 2)]), NOW, POLICY)
    labelled = msgspec.structs.replace(known, free=SomeSet(0b1111, 2))
    settling = msgspec.structs.replace(
        known, free=ExactSets((0b0011, 0b0101, 0b1100))
    )  # until the kubelet has reported them

    for size, some, any_ in (
        (1, ExactSets((0b100,)), ExactSets((1, 2, 4, 8))),
        (2, ExactSets((0b1100,)), SomeSet(0b1111, 2)),
    ):
        for unsure in (labelled, settling):
            assert fragmentation_score(profile(size), unsure, DEFAULT_MIX, any_) == fragmentation_score(
                profile(size), known, DEFAULT_MIX, some
            )
    assert fragmentation_score(profile(2), settling, DEFAULT_MIX, ExactSets((0b1100,))) == fragmentation_score(
        profile(2), known, DEFAULT_MIX, ExactSets((0b1100,))
    )


def test_nodes_in_use_are_filled_first_with_labels_alone() -> None:
    labels = {"nvidia.com/gpu.count": "8", "nvidia.com/gpu.product": "X"}
    machine = parse_node(node(labels=labels, allocatable={WHOLE: 8}))
    used, idle = (
        evaluate_state(profile(2), state_of(NodeRecord("n", machine, pods=pods), NOW, POLICY), POLICY)
        for pods in ((occupant("a", 4),), ())
    )

    assert isinstance(used, Score)
    assert isinstance(idle, Score)
    assert used.points > idle.points


_MACHINES = (islands("X", (4, 2, 1, 1)), islands("X", (2, 2, 3)), PAIRS, machines16.pcie_only(), MACHINES["dgx2"]())


@given(st.data(), st.sampled_from(_MACHINES))
def test_the_gain_is_the_mean_over_all_sets(data: st.DataObject, machine: NodeTopology) -> None:
    """Sets that leave the same in islands of equal size are computed together."""
    size = len(machine.gpus)
    busy = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    held = {"busy": tuple(sorted(busy))} if busy else {}
    state = state_of(record("n", machine, held=held, pods=[occupant("busy", len(busy))] if busy else []), NOW, POLICY)
    assert isinstance(state.free, ExactSets)
    (free,) = state.free.masks
    asked = data.draw(st.integers(1, free.bit_count()))
    sets = sorted(data.draw(st.sets(st.sampled_from(list(subsets(free, asked))), min_size=1, max_size=20)))
    shape = state.shape
    assert shape is not None

    def fragmented(mask: int) -> float:
        left = free_fraction(shape, ExactSets((mask,)), state.reserved_mib)
        return fragmented_gpus(shape, left, DEFAULT_MIX, state.cpu)

    gain = sum(fragmented(free) - fragmented(free & ~each) for each in sets) / len(sets)
    expected = floor(25 / (1 + exp(-2 * gain)) + 1e-9) / 25

    assert fragmentation_score(profile(asked), state, DEFAULT_MIX, ExactSets(tuple(sets))) == expected
