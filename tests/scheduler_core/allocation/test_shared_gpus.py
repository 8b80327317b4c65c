"""Memory of shared GPUs: what is in use, what fits, and that nothing is allocated twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.shared_gpus import (
    ReplicaClaim,
    ReplicaPolicy,
    SharedGpu,
    SharedGpus,
    SharingConfig,
    fill_levels,
    fill_score,
    replicas_fit,
    shared_gpus_of,
)
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord, parse_occupant, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.score_workload import packing
from scheduler_core.policy.policy import FillBand, Policy
from scheduler_core.request.device_request import SHARED, WHOLE
from scheduler_core.request.pod_request import PodProfile, PodRequest, parse_request
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED, node, occupant, pod, profile, record

POLICY = Policy()
BAND = FillBand(0.7, 0.8)
TWO = {"GPU-a": 80, "GPU-b": 80}
PAIRS, MIG = MACHINES["a100_bridged"](), MACHINES["a100_mig"]()


def _claim(name: str, share: str | None = None, replicas: int = 1) -> ReplicaClaim:
    return ReplicaClaim(occupant(name, replicas) if share is None else occupant(name, replicas, vram=share), replicas)


def _word(**held: str) -> list[DeviceAllocation]:
    """Pod -> the last letter of each GPU that it has a replica of."""
    return [
        DeviceAllocation(f"GPU-{card}", PodRef("team", name, "c"), replica=0)
        for name, cards in held.items()
        for card in cards
    ]


def _offer(replicas: int = 8, each: int | None = 4, choice: ReplicaPolicy = ReplicaPolicy.DISTRIBUTED) -> SharingConfig:
    return SharingConfig(WHOLE, TWO, replicas, each, choice)


def _ledger(*cards: tuple[int, ...], unplaced: tuple[int, ...] = (), **fields: Any) -> SharedGpus:
    """GPUs of 80 MiB with four replicas."""
    return SharedGpus(
        WHOLE, tuple(SharedGpu(80, shares) for shares in cards), 4, 4, 20, unplaced, has_memory_requests=True
    )._replace(**fields)


@pytest.mark.parametrize(
    ("claims", "result", "departed", "cards", "rest"),
    [
        pytest.param([], [], [], ((), ()), {}, id="zero"),
        pytest.param(
            [_claim("p", "30Mi"), _claim("q", "10Mi")],
            _word(p="a", q="a"),
            [],
            ((), (30, 10)),
            {"has_memory_requests": True},
            id="both on one card",
        ),
        pytest.param(
            [_claim("p", "30Mi")],
            _word(),
            [],
            ((), ()),
            {"unplaced": (30,), "has_memory_requests": True},
            id="not placed yet",
        ),
        pytest.param([_claim("p", replicas=2)], _word(p="ab"), [], ((20,), (20,)), {}, id="nothing said: 80 / 4 each"),
        pytest.param(
            [_claim("p", "5Mi", 2)],
            _word(p="a"),
            [],
            ((), (5,)),
            {"unplaced": (5,), "has_memory_requests": True},
            id="one of its two",
        ),
        pytest.param([], _word(ghost="z"), [], ((), ()), {}, id="a card that is not shared"),
        pytest.param([], _word(ghost="a"), [], ((), ()), {"left": 1}, id="a pod that nobody knows any more"),
        pytest.param([], _word(p="a"), [_claim("p", "9Mi")], ((), ()), {"left": 1}, id="a pod that left"),
        pytest.param([], _word(), [_claim("p", "9Mi")], ((), ()), {"ended_replicas": 1}, id="a pod that came and went"),
    ],
)
def test_shared_gpus_of(
    claims: list[ReplicaClaim],
    result: list[DeviceAllocation],
    departed: list[ReplicaClaim],
    cards: tuple[tuple[int, ...], ...],
    rest: dict[str, Any],
) -> None:
    found = shared_gpus_of(_offer(), claims, result, departed)
    left = rest.get("left", 0)
    fields = {name: value for name, value in rest.items() if name != "left"}

    assert found == SharedGpus(WHOLE, (SharedGpu(80, cards[0]), SharedGpu(80, cards[1], left)), 4, 4, 20)._replace(
        **fields
    )


def test_without_a_report_a_share_may_be_on_any_gpu() -> None:
    found = shared_gpus_of(_offer(), [_claim("p", "30Mi")], None)

    assert (found.replica_policy, found.unplaced) == (ReplicaPolicy.UNKNOWN, (30,))


def test_single_gpu_leaves_no_choice() -> None:
    found = shared_gpus_of(SharingConfig(WHOLE, {"GPU-a": 80}, 4, 4), [_claim("p", "30Mi")], None)

    assert (found.gpus, found.unplaced) == ((SharedGpu(80, (30,)),), ())


def test_with_unknown_replicas_a_gpu_may_have_all_of_them() -> None:
    found = shared_gpus_of(SharingConfig(WHOLE, TWO, 4), [], [])

    assert (found.min_replicas, found.max_replicas, found.default_mib) == (2, 4, 40)


@pytest.mark.parametrize(
    ("there", "share", "expected"),
    [
        # Distributed: the emptiest card gets it.
        pytest.param(_ledger((), ()), 80, True, id="a whole card's memory on an idle node"),
        pytest.param(_ledger((), ()), 81, False, id="more than a card has"),
        pytest.param(_ledger((70,), ()), 30, True, id="card with 70 has one replica more: the other one gets it"),
        pytest.param(_ledger((70,), (10,)), 30, False, id="as many on both: 70 + 30 > 80"),
        pytest.param(_ledger((70,), (10,)), 10, True, id="as many on both: 70 + 10"),
        pytest.param(_ledger((70, 5), (40,)), 30, False, id="the 5 may leave first: then 70 + 30 > 80"),
        pytest.param(_ledger((40, 5), (40,)), 30, True, id="it may: 40 + 30"),
        pytest.param(_ledger((), (), unplaced=(50,)), 50, True, id="two that nobody placed go to two cards"),
        pytest.param(_ledger((), (), unplaced=(50, 50)), 50, False, id="three do not: 50 + 50 > 80"),
        pytest.param(
            _ledger((), (), unplaced=(50,), ended_replicas=1), 50, False, id="one was on the other card meanwhile"
        ),
        pytest.param(
            _ledger(gpus=(SharedGpu(80, (), 0), SharedGpu(80, (), 1)), unplaced=(50,)),
            50,
            False,
            id="one has left since",
        ),
        pytest.param(_ledger((20, 20, 20, 20), (20, 20, 20, 20)), 20, True, id="one must leave before"),
        pytest.param(_ledger((70, 2, 2, 2), (1, 1, 1, 1)), 20, False, id="full but for who leaves: 70 + 2 + 2 + 20"),
        # The card with the most, or any.
        pytest.param(_ledger((70,), (), replica_policy=ReplicaPolicy.PACKED), 30, False, id="packed: 70 + 30 > 80"),
        pytest.param(_ledger((50,), (), replica_policy=ReplicaPolicy.PACKED), 30, True, id="packed: 50 + 30"),
        pytest.param(
            _ledger((), (), unplaced=(50,), replica_policy=ReplicaPolicy.UNKNOWN), 50, False, id="unknown: both on one"
        ),
        # Nothing said.
        pytest.param(_ledger((65,), (65,)), None, False, id="an even share is 20: 65 + 20 > 80"),
        pytest.param(_ledger((60,), (60,)), None, True, id="60 + 20"),
        pytest.param(
            _ledger((65,), (65,), has_memory_requests=False), None, True, id="nobody says anything: no account to keep"
        ),
        pytest.param(_ledger(gpus=(SharedGpu(None),)), 500, True, id="memory unknown is the model filter's business"),
    ],
)
def test_fits_on_any_gpu_that_it_may_get(there: SharedGpus, share: int | None, expected: bool) -> None:
    assert replicas_fit(there, share) is expected


@pytest.mark.parametrize(
    ("there", "share", "expected"),
    [
        pytest.param(_ledger((40,), ()), 20, [0.25], id="distributed: the empty one, 20 / 80"),
        pytest.param(
            _ledger((40,), (), replica_policy=ReplicaPolicy.PACKED), 20, [0.75], id="packed: the warm one, 60 / 80"
        ),
        pytest.param(_ledger((40,), (), replica_policy=ReplicaPolicy.UNKNOWN), 20, [0.75, 0.25], id="unknown: either"),
        pytest.param(_ledger((40,), (), unplaced=(5,)), 20, [0.75, 0.25], id="one is under way: either"),
        pytest.param(_ledger((10,) * 4, ()), 20, [0.25], id="a full card is no choice"),
        pytest.param(_ledger((10,) * 4), 20, [0.75], id="all full: who leaves makes room"),
        pytest.param(_ledger((10,)), None, [0.375], id="an even share: 30 / 80"),
        pytest.param(_ledger((75,)), 20, [1.0], id="never above one"),
        pytest.param(_ledger(gpus=(SharedGpu(None),)), 20, [1.0], id="memory unknown"),
    ],
)
def test_fill_levels(there: SharedGpus, share: int | None, expected: list[float]) -> None:
    assert fill_levels(there, share) == expected


@pytest.mark.parametrize(
    ("share", "value"),
    [
        pytest.param(0.0, 0.1, id="cold card: 0.1"),
        pytest.param(0.35, 0.55, id="below: 0.1 + 0.9 x 0.35 / 0.7"),
        pytest.param(0.7, 1.0, id="lower edge"),
        pytest.param(0.75, 1.0, id="in the band"),
        pytest.param(0.8, 1.0, id="upper edge"),
        pytest.param(0.9, 0.05, id="above: 0.1 x (1 - 0.9) / (1 - 0.8)"),
        pytest.param(1.0, 0.0, id="full"),
    ],
)
def test_fill_score(share: float, value: float) -> None:
    assert fill_score(share, BAND) == pytest.approx(value)


def _mig_device() -> tuple[str, int]:
    devices = [device for gpu in MIG.gpus for device in gpu.mig_devices]
    size = devices[0].memory_mib
    assert size is not None
    return f"nvidia.com/mig-{devices[0].profile}", size


_SHARED_LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-SHARED",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.replicas": "10",
}


def _shared(*shares: str, name: str = "n", cards: int = 1, resource: str = WHOLE) -> NodeRecord:
    """GPUs of 80 GiB with ten replicas each, known by GPU Feature Discovery's labels only."""
    pods = [occupant(f"p{at}", 1, resource=resource, vram=share) for at, share in enumerate(shares)]
    labels = {**_SHARED_LABELS, "nvidia.com/gpu.count": str(cards)}
    return NodeRecord(name, parse_node(node(labels=labels, allocatable={resource: 10 * cards})), pods=tuple(pods))


def _state(*shares: str, cards: int = 1, resource: str = WHOLE) -> NodeState:
    return state_of(_shared(*shares, cards=cards, resource=resource), NOW, POLICY)


@pytest.mark.parametrize(
    ("state", "asked", "reason"),
    [
        pytest.param(_state("40Gi"), profile(1, vram="40Gi"), None, id="40 + 40 = 80"),
        pytest.param(_state("41Gi"), profile(1, vram="40Gi"), Reason.VRAM, id="41 + 40 > 80"),
        pytest.param(_state("73Gi"), profile(1), Reason.VRAM, id="an even share is 8: 73 + 8 > 80"),
        pytest.param(_state(), profile(10), None, id="nobody keeps account"),
        pytest.param(_state("41Gi", cards=2), profile(1, vram="40Gi"), Reason.VRAM, id="no agent: on any card"),
        pytest.param(
            _state("41Gi", resource=SHARED),
            profile(1, resource=SHARED, vram="40Gi"),
            Reason.VRAM,
            id="renamed resource",
        ),
        pytest.param(_state("41Gi", resource=SHARED), profile(1, resource=SHARED, vram="39Gi"), None, id="and room"),
    ],
)
def test_verdict_of_a_node(state: NodeState, asked: PodProfile, reason: Reason | None) -> None:
    assert rejection_reason(asked, state, POLICY) is reason


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param(record("n", PAIRS), id="whole GPUs"),
        pytest.param(record("n", PAIRS, allocatable={WHOLE: 2, SHARED: 8}), id="which are shared cannot be told"),
        pytest.param(record("n", MIG, allocatable={_mig_device()[0]: 7}), id="MIG devices are what they are"),
        pytest.param(record("n"), id="nothing known"),
    ],
)
def test_no_shared_gpus(observed: NodeRecord) -> None:
    assert state_of(observed, NOW, POLICY).shared_gpus is None


@pytest.mark.parametrize(
    ("said", "choice"),
    [
        ("packed", ReplicaPolicy.PACKED),
        ("distributed", ReplicaPolicy.DISTRIBUTED),
        ("dice", ReplicaPolicy.UNKNOWN),
        ("spread", ReplicaPolicy.UNKNOWN),
        (None, ReplicaPolicy.UNKNOWN),
    ],
)
def test_label_sets_how_replicas_are_chosen(said: str | None, choice: ReplicaPolicy) -> None:
    assert parse_node(node(labels={} if said is None else {"gputopo.io/sharing": said})).replica_policy is choice


@pytest.mark.parametrize(
    ("state", "asked", "raw"),
    [
        pytest.param(_state("40Gi"), profile(1, vram="20Gi"), 1.0, id="shared: 60 / 80"),
        pytest.param(_state(), profile(1, vram="28Gi"), 0.55, id="shared, cold: 0.1 + 0.9 x 0.35 / 0.7"),
        pytest.param(
            state_of(record(topology=PAIRS), NOW, POLICY), profile(1, vram="60Gi"), 1.0, id="whole GPU: 60 / 80"
        ),
        pytest.param(
            state_of(record(topology=PAIRS), NOW, POLICY), profile(1, vram="28Gi"), 0.55, id="whole GPU: 28 / 80"
        ),
        pytest.param(state_of(record(topology=PAIRS), NOW, POLICY), profile(1), 0.0, id="nothing said"),
        pytest.param(
            _state(resource=SHARED), profile(1, resource=SHARED), 0.1 + 0.9 * 0.1 / 0.7, id="even share: 8 / 80"
        ),
        pytest.param(state_of(record(), NOW, POLICY), profile(1, vram="1Gi"), 0.0, id="unknown"),
    ],
)
def test_packing(state: NodeState, asked: PodProfile, raw: float) -> None:
    assert packing(asked, state, POLICY) == pytest.approx(raw)


def test_mig_device_counts_with_its_own_size() -> None:
    """15 GiB of a MIG device."""
    (resource, size) = _mig_device()
    machine = record(topology=MIG, held={}, allocatable={resource: 1})

    found = packing(profile(1, resource=resource, vram=f"{size * 3 // 4}Mi"), state_of(machine, NOW, POLICY), POLICY)

    assert found == pytest.approx(1.0)


def test_unknown_memory_fills_a_gpu() -> None:
    bare = node(labels={"nvidia.com/gpu.count": "2"}, allocatable={WHOLE: 2})
    state = state_of(NodeRecord("n", parse_node(bare)), NOW, POLICY)

    assert packing(profile(1, vram="1Gi"), state, POLICY) == 0.0


def test_inference_fills_a_gpu_to_80_percent_and_then_uses_the_next() -> None:
    """Two idle nodes with one GPU; pods of 15 GiB: four make 60 / 80 = 75 %, a fifth would make 94 %."""
    records = {name: _shared(name=name) for name in ("a", "b")}
    went: list[str] = []
    for at in range(9):
        asked = parse_request(pod(f"p{at}", 1, annotations={"vram": "15Gi", "workload": "inference"}))
        assert isinstance(asked, PodRequest)
        found = evaluate(asked, snapshot_of(records.values(), NOW, POLICY), ["a", "b"], POLICY)
        assert found.single
        (name,) = found.nodes
        bound = parse_occupant(pod(f"p{at}", 1, annotations={"vram": "15Gi", "workload": "inference"}))
        assert bound is not None
        records[name] = with_pod(records[name], bound)
        went.append(name)

    first, second = went[0], {"a": "b", "b": "a"}[went[0]]
    assert went[:8] == [first] * 4 + [second] * 4
    assert [len(records[name].pods) for name in (first, second)] in ([5, 4], [4, 5])  # nothing else is left: 94 %


class Node(RuleBasedStateMachine):
    """One node with four cards of 80 GiB, four replicas each.

    Pods are bound as the filter allows; the kubelet admits them when it likes and in any order, the device plugin
    chooses by its rule, and the agent tells now and then. Source of the rules: ``greedyAlloc`` in
    ``internal/rm/allocate.go`` of NVIDIA/k8s-device-plugin 0.20, and ``distributedAlloc`` before it.
    """

    choice = ReplicaPolicy.DISTRIBUTED
    most = 1  # replicas of a pod
    least_touched = False  # 0.20: of equally used cards, the one of which this pod got the fewest

    def __init__(self) -> None:
        super().__init__()
        labels = {"nvidia.com/gpu.replicas": "4", "gputopo.io/sharing": self.choice.value}
        self.record = record("n", PAIRS, held={}, labels=labels, allocatable={WHOLE: 16})
        self.uuids = [gpu.uuid or "" for gpu in PAIRS.gpus]
        self.on: dict[str, list[int]] = {}  # pod -> the card of each replica
        self.shares: dict[str, int] = {}  # of living pods, GiB of each replica
        self.wanted: dict[str, int] = {}  # replicas
        self.serial = 0

    @rule(share=st.sampled_from((5, 10, 15, 20, 30, 40, 60, 80)), count=st.integers(1, 3))
    def arrive(self, share: int, count: int) -> None:
        self.serial += 1
        name, count = f"p{self.serial}", min(count, self.most)
        if rejection_reason(profile(count, vram=f"{share}Gi"), state_of(self.record, NOW, POLICY), POLICY) is None:
            self.record = with_pod(self.record, occupant(name, count, vram=f"{share}Gi"))
            self.shares[name], self.wanted[name] = share, count

    @precondition(lambda self: len(self.shares) > len(self.on))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.shares) - set(self.on))))
        taken, got = Counter(card for cards in self.on.values() for card in cards), Counter[int]()
        for _ in range(self.wanted[name]):
            free = [card for card in range(4) if taken[card] < 4]
            best = (max if self.choice is ReplicaPolicy.PACKED else min)(taken[card] for card in free)
            equal = [card for card in free if taken[card] == best]
            if self.least_touched:
                equal = [card for card in equal if got[card] == min(got[each] for each in equal)]
            card = data.draw(st.sampled_from(equal))
            taken[card] += 1
            got[card] += 1
        self.on[name] = list(got.elements())

    @precondition(lambda self: bool(self.shares))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.shares)))
        del self.shares[name]
        self.on.pop(name, None)
        self.record = without_pod(self.record, f"uid-{name}")

    @rule()
    def report_of(self) -> None:
        held = [
            DeviceAllocation(self.uuids[card], PodRef("team", name, "c"), replica=at)
            for name, cards in self.on.items()
            for at, card in enumerate(cards)
        ]
        self.record = with_gpus(self.record, NodeGpus(OBSERVED, "hash", "1", tuple(held)))

    @invariant()
    def no_card_holds_more_than_it_has(self) -> None:
        used = Counter[int]()
        for name, cards in self.on.items():
            for card in cards:
                used[card] += self.shares[name]
        assert all(share <= 80 for share in used.values())


class PackedNode(Node):
    """The same with a plugin that packs."""

    choice = ReplicaPolicy.PACKED


class SeveralReplicasNode(Node):
    """Pods of several replicas, with a plugin before 0.20."""

    most = 3


class LeastTouchedNode(SeveralReplicasNode):
    """The same with a plugin since 0.20."""

    least_touched = True


class PackedReplicasNode(LeastTouchedNode):
    """The same with a plugin that packs."""

    choice = ReplicaPolicy.PACKED


TestNode = Node.TestCase
TestPackedNode = PackedNode.TestCase
TestSeveralReplicasNode = SeveralReplicasNode.TestCase
TestLeastTouchedNode = LeastTouchedNode.TestCase
TestPackedReplicasNode = PackedReplicasNode.TestCase
for _case in (TestNode, TestPackedNode, TestSeveralReplicasNode, TestLeastTouchedNode, TestPackedReplicasNode):
    _case.settings = settings(deadline=None, max_examples=120, stateful_step_count=40)
