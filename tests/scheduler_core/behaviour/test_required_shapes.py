"""No later pod violates the required shape of a pod that the kubelet has not admitted yet, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.labels.reasons import Reason
from gputopo.model import Link, NodeTopology, Nvlink
from scheduler_core.allocation.gpu_sets import SomeSet
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.in_flight import has_commitments
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile, PodRequest, parse_request
from tests.machines import MACHINES, bonded
from tests.scheduler_core.allocation.random_graphs import graphs
from tests.scheduler_core.builders import NOW, occupant, pod, profile, record
from tests.scheduler_core.evaluation.by_definition import holds
from tests.simulated_node.preferred import PluginCrashError, best_effort, pair_scores

H100, PAIRS, MIXED, TEN = (MACHINES[name]() for name in ("hgx_h100", "a100_bridged", "mixed", "a40x10"))
TEN_IN_PAIRS = msgspec.structs.replace(TEN, nvlink=bonded({(at, at + 1): 4 for at in range(0, 10, 2)}, 28.125))
TEN_ENDED = {f"ended-{gpu}": [gpu] for gpu in range(10)}  # the last report still names them
PAIR = occupant("a", 2, island="required")


def _on(state: NodeState, asked: PodProfile) -> Reason | None:
    return rejection_reason(asked, state, Policy())


class TestOrdersThatCanBeFollowed:
    """A pod that requires an island is bound, and the kubelet has not admitted it yet."""

    def _state(self, *pods: str, admitted: bool = False, topology: NodeTopology = PAIRS) -> NodeState:
        waiting = [occupant(name, 2, admitted=admitted, island="required") for name in pods]
        return state_of(record(topology=topology, held={}, pods=waiting), NOW, Policy())

    def test_pod_that_could_split_each_pair_is_rejected(self) -> None:
        assert _on(self._state("a"), profile(1)) is None  # one GPU leaves it a pair
        both = self._state("a", "b")
        busy = record(topology=H100, held={}, pods=[occupant("a", 2, island="required")])
        assert _on(both, profile(1)) is Reason.TOO_FEW_GPUS
        assert _on(state_of(busy, NOW, Policy()), profile(4)) is None  # one island: nothing can be broken

    def test_two_single_gpus_could_split_both_pairs(self) -> None:
        pods = [occupant("a", 2, island="required"), occupant("one", 1)]
        state = state_of(record(topology=PAIRS, held={}, pods=pods), NOW, Policy())

        assert _on(state, profile(1)) is Reason.RESERVED

    def test_admitted_pods_keep_their_gpus(self) -> None:
        pods = [occupant("a", 2, island="required", admitted=True), occupant("one", 1)]
        state = state_of(record(topology=PAIRS, held={}, pods=pods), NOW, Policy())

        assert _on(state, profile(1)) is None

    @pytest.mark.parametrize(
        ("waiting", "reason"),
        [
            pytest.param(occupant("a", 2, numa="required"), Reason.RESERVED, id="any two may be on two NUMA nodes"),
            pytest.param(occupant("a", 2, island="required"), None, id="one island: nothing can be broken"),
        ],
    )
    def test_orders_that_cannot_be_simulated_must_not_matter(self, waiting: Occupant, reason: Reason | None) -> None:
        """Seven pods that have just ended, a waiting pod, and now another pod, in any order."""
        ended = {f"ended-{gpu}": [gpu] for gpu in range(7)}
        state = state_of(record(topology=H100, held=ended, pods=[waiting]), NOW, Policy())

        assert state.open_admissions is not None
        assert _on(state, profile(1)) is reason

    def test_pods_without_whole_gpus_cannot_violate_shapes(self) -> None:
        found = parse_request(pod("p", 1, resource="nvidia.com/gpu.shared"))
        assert isinstance(found, PodRequest)
        waiting = [occupant("a", 2, island="required")]
        allocatable = {"nvidia.com/gpu": 4, "nvidia.com/gpu.shared": 4}
        state = state_of(record(topology=PAIRS, held={}, pods=waiting, allocatable=allocatable), NOW, Policy())

        assert _on(state, found.profile) is None


def _unasked(topology: NodeTopology, *pods: Occupant) -> NodeState:
    """A node without a kubelet report."""
    return state_of(record(topology=topology, held=None, pods=pods), NOW, Policy())


def _crowded(topology: NodeTopology, *pods: Occupant) -> NodeState:
    """Ten pods have just ended, perhaps before the kubelet admitted these pods: too many orders to follow."""
    return state_of(record(topology=topology, held=TEN_ENDED, pods=pods), NOW, Policy())


def _sick(topology: NodeTopology, *pods: Occupant) -> NodeState:
    """The device plugin offers one GPU less than exist, and does not tell which is missing."""
    offered = {"nvidia.com/gpu": len(topology.gpus) - 1}
    return state_of(record(topology=topology, held={}, pods=pods, allocatable=offered), NOW, Policy())


class TestOrdersThatCannotBeFollowed:
    """There a required shape counts as violated if any set of the possibly free GPUs would violate it."""

    @pytest.mark.parametrize(
        ("empty", "promised"),
        [
            pytest.param(_unasked(PAIRS), _unasked(PAIRS, PAIR), id="nobody asks the kubelet"),
            pytest.param(_crowded(TEN_IN_PAIRS), _crowded(TEN_IN_PAIRS, PAIR), id="too many orders"),
            pytest.param(_sick(PAIRS), _sick(PAIRS, PAIR), id="a sick GPU"),
        ],
    )
    def test_later_pod_does_not_violate_the_shape(self, empty: NodeState, promised: NodeState) -> None:
        assert _on(empty, PAIR.profile) is None
        assert _on(promised, profile(1)) is Reason.RESERVED
        assert _on(promised, profile(2)) in (Reason.RESERVED, Reason.TOO_FEW_GPUS)
        assert has_commitments(promised)
        assert promised.open_admissions is None

    def test_pod_with_starting_containers_has_unknown_gpus(self) -> None:
        """The report has two of its three GPUs."""
        pods = [PAIR, occupant("starting", 3, admitted=True)]
        state = state_of(record(topology=TEN_IN_PAIRS, held={"starting": [0, 1]}, pods=pods), NOW, Policy())

        assert isinstance(state.free, SomeSet)
        assert _on(state, profile(1)) is Reason.RESERVED

    def test_uncertain_link_graph_proves_no_shape(self) -> None:
        """In part, if the agent sees four of eight GPUs, or as a whole."""
        part = record(topology=MACHINES["h100_partial"](), pods=[PAIR], allocatable={"nvidia.com/gpu": 8})
        whole = record(pods=[PAIR], allocatable={"nvidia.com/gpu": 4})

        for each in (part, whole):
            assert _on(state_of(each, NOW, Policy()), profile(1)) is Reason.RESERVED

    @pytest.mark.parametrize(
        "state",
        [
            pytest.param(_unasked(H100, PAIR), id="any GPUs of an NVSwitch fabric are an island"),
            pytest.param(_crowded(MACHINES["dgx2"](), PAIR), id="also of sixteen, where the orders are too many"),
            pytest.param(_sick(H100, PAIR), id="also where one is sick"),
            pytest.param(_unasked(PAIRS, occupant("a", 2)), id="nothing was promised to the pod that waits"),
            pytest.param(_unasked(PAIRS, occupant("a", 1, island="required")), id="one GPU is an island"),
            pytest.param(_unasked(PAIRS, PAIR._replace(admitted=True)), id="an admitted pod has its GPUs"),
            pytest.param(
                state_of(record(pods=[occupant("a", 2)], allocatable={"nvidia.com/gpu": 4}), NOW, Policy()),
                id="a node without a graph, and plain pods",
            ),
            pytest.param(
                state_of(record(topology=PAIRS, pods=[PAIR], allocatable={"nvidia.com/gpu": 16}), NOW, Policy()),
                id="shares of GPUs may be any, whoever comes first",
            ),
        ],
    )
    def test_shape_that_cannot_be_violated_rejects_no_pod(self, state: NodeState) -> None:
        assert _on(state, profile(1)) is None

    def test_shares_use_no_whole_gpus(self) -> None:
        allocatable = {"nvidia.com/gpu": 4, "nvidia.com/gpu.shared": 4}
        state = state_of(record(topology=PAIRS, pods=[PAIR], allocatable=allocatable), NOW, Policy())

        assert _on(state, profile(1, resource="nvidia.com/gpu.shared")) is None
        assert _on(state, profile(1)) is Reason.RESERVED


@pytest.mark.parametrize(
    ("wishes", "reason"),
    [
        pytest.param({"numa": "required"}, None, id="all cards are on one NUMA node"),
        pytest.param({"numa": "required", "min_vram": "24Gi"}, None, id="memory: the smallest card has as much"),
        pytest.param({"numa": "required", "model": "RTX 3090"}, Reason.RESERVED, id="another model may come"),
    ],
)
def test_other_constraints_are_kept_with_a_shape(wishes: dict[str, str], reason: Reason | None) -> None:
    """The bridged cards are the plugin's choice, as long as both are free."""
    model, others = wishes.get("model"), {key: value for key, value in wishes.items() if key != "model"}
    asked = profile(2, model=model, **others)
    waiting = occupant("a", 2)._replace(profile=asked)

    assert _on(state_of(record(topology=MIXED, held={}), NOW, Policy()), asked) is None
    assert _on(state_of(record(topology=MIXED, held={}, pods=[waiting]), NOW, Policy()), profile(1)) is reason


def test_memory_is_kept_with_a_shape() -> None:
    """A small card instead of one of the bridged cards."""
    small = msgspec.structs.replace(PAIRS.gpus[3], numa_node=0, memory_mib=40_960)
    gpus = (*(msgspec.structs.replace(gpu, numa_node=0) for gpu in PAIRS.gpus[:3]), small)
    topology = msgspec.structs.replace(PAIRS, gpus=gpus, nvlink=bonded({(0, 1): 12}, 50.0))
    waiting = occupant("a", 2, numa="required", min_vram="60Gi")
    state = state_of(record(topology=topology, held={}, pods=[waiting]), NOW, Policy())

    assert _on(state_of(record(topology=topology, held={}), NOW, Policy()), waiting.profile) is None
    assert _on(state, profile(1)) is Reason.RESERVED


def test_no_pod_leaves_a_number_of_gpus_that_may_crash_the_plugin() -> None:
    """Six GPUs divide into threes. Of five a padded set may win (see ``prediction``)."""
    links = [Link(a=0, b=1, lanes=12, gbps=600.0)]
    links += [Link(a=a, b=b, lanes=1, gbps=50.0) for a in range(6) for b in range(a + 1, 6) if (a, b) != (0, 1)]
    near = tuple(tuple(None if a == b else H100.pcie[0][1] for b in range(6)) for a in range(6))
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=0) for gpu in H100.gpus[:6])
    ties = NodeTopology(gpus=gpus, nvlink=Nvlink(links=tuple(links)), pcie=near)
    waiting = occupant("a", 3, island="required")

    assert _on(state_of(record(topology=ties, held={}), NOW, Policy()), waiting.profile) is None
    assert _on(state_of(record(topology=ties, held={}, pods=[waiting]), NOW, Policy()), profile(1)) is Reason.RESERVED
    assert _on(state_of(record(topology=ties, held={}, pods=[waiting]), NOW, Policy()), profile(3)) is None


Asked = tuple[int, tuple[tuple[str, str], ...]]  # GPUs, constraints

_ASKED = st.tuples(
    st.sampled_from((1, 1, 2, 2, 3)),
    st.sampled_from(
        (
            (),
            (("island", "required"),),
            (("numa", "required"),),
            (("interconnect", "nvlink"),),
            (("min_bandwidth", "50"),),
        )
    ),
)


class _Kubelet:
    """Admits pods in any order, and offers the free GPUs to the device plugin in any order."""

    def __init__(self, topology: NodeTopology) -> None:
        self.topology, self.scores = topology, pair_scores(topology)
        self.chosen = lru_cache(self._chosen)

    def _chosen(self, free: frozenset[int], size: int) -> frozenset[frozenset[int] | None]:
        """Return the sets that the plugin may choose; None: it crashes."""
        found = set[frozenset[int] | None]()
        for order in permutations(free):
            try:
                found.add(frozenset(best_effort(order, (), size, self.scores)))
            except PluginCrashError:
                found.add(None)
        return frozenset(found)

    def keeps(self, free: frozenset[int], pods: Sequence[Asked]) -> bool:
        """Return True if each pod gets its required shape in every order."""
        worlds = [(free, tuple(sorted(pods)))]
        seen = set(worlds)
        for left, waiting in worlds:  # grows during the loop
            for at, (size, wishes) in enumerate(waiting):
                for got in self.chosen(left, size):
                    if wishes and size > 1 and (got is None or not holds(self.topology, got, dict(wishes))):
                        return False
                    world = left - (got or frozenset()), waiting[:at] + waiting[at + 1 :]
                    if world not in seen:
                        seen.add(world)
                        worlds.append(world)
        return True


def _with_gbps(bare: NodeTopology) -> NodeTopology:
    assert bare.nvlink is not None
    links = tuple(msgspec.structs.replace(each, gbps=each.lanes * 50.0) for each in bare.nvlink.links)
    return msgspec.structs.replace(bare, nvlink=Nvlink(links=links))


@pytest.mark.parametrize("about", ["the kubelet is asked", "nobody asks it", "many have just ended", "one GPU is sick"])
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(most=4), st.lists(_ASKED, min_size=2, max_size=4))
def test_required_shapes_hold_for_every_order_of_admission(
    about: str, bare: NodeTopology, arriving: list[Asked]
) -> None:
    """Filter accepts pods one after the other, and the kubelet admits them in every order."""
    topology = _with_gbps(bare)
    number = len(topology.gpus)
    offered = number - (about == "one GPU is sick")
    let_in: list[Asked] = []
    for size, wishes in arriving:
        asked = [profile(each, **dict(others)) for each, others in let_in]
        waiting = [occupant(f"p{at}", 1)._replace(profile=each) for at, each in enumerate(asked)]
        known = record(
            topology=topology,
            held=None if about == "nobody asks it" else {},
            pods=waiting,
            departed=[occupant(f"gone-{at}", 1) for at in range(9)] if about == "many have just ended" else (),
            allocatable={"nvidia.com/gpu": offered},
        )
        if _on(state_of(known, NOW, Policy()), profile(size, **dict(wishes))) is None:
            let_in.append((size, wishes))

    indices = frozenset(gpu.index for gpu in topology.gpus)
    kubelet = _Kubelet(topology)
    for sick in indices if offered < number else (None,):
        assert kubelet.keeps(indices - {sick}, let_in)
