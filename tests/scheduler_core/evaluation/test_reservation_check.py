"""Acknowledged reservations fit wherever in-flight pods come, and their members pass Filter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import ExtenderAck
from gputopo.labels.reasons import Reason
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.node_record import NodeRecord, is_hold
from scheduler_core.cache.node_state import state_of
from scheduler_core.evaluation.evaluate import evaluate_state
from scheduler_core.evaluation.reservation_check import ExtenderView, ReservationChecker
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, plan

POLICY = Policy()
H100, PAIRS = MACHINES["hgx_h100"](), MACHINES["a100_bridged"]()


def acknowledgement(
    stage: FakeScheduler, listing: LedgerUpdate, checker: ReservationChecker | None = None
) -> ExtenderAck:
    known = stage.cache
    now = ExtenderView(known.snapshot, known.pods, known.assumed_pods.on_several_nodes)
    return (checker or ReservationChecker()).acknowledge(
        listing, known.reservations, now, lambda _: POLICY, "team/extender"
    )


def members(gpus: int, count: int) -> list[PodUpdate]:
    return [pod_update(f"m{at}", gpus) for at in range(count)]


def some(name: str, gpus: int, *, shaped: bool, on: str | None = None) -> PodUpdate:
    return pod_update(name, gpus, on, island="required") if shaped else pod_update(name, gpus, on)


def some_asking(name: str, gpus: int, *, shaped: bool) -> Pod:
    return unbound_pod(name, gpus, island="required") if shaped else unbound_pod(name, gpus)


def test_a_reservation_that_fits_is_acknowledged() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": H100}, *members(4, 4))
    gang = plan("g", {"m0": ("a", 4), "m1": ("a", 4), "m2": ("b", 4), "m3": ("b", 4)})

    assert acknowledgement(stage, stage.write_ledger((gang, PROPOSED), generation=7)) == ExtenderAck("team/extender", 7)


def test_a_reservation_that_does_not_fit_is_blocked() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(4, 2), pod_update("x", 1, on="a"))
    gang = plan("g", {"m0": ("a", 4), "m1": ("a", 4)})

    assert acknowledgement(stage, stage.write_ledger((gang, PROPOSED))) == ExtenderAck("team/extender", 1, ("uid-g",))


def test_only_proposed_reservations_are_checked() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(8, 3))
    plans = [plan(f"g{at}", {f"m{at}": ("a", 8)}, held={"a": 8}) for at in range(3)]
    listing = stage.write_ledger(*zip(plans, (COMMITTED, HELD, PROPOSED), strict=True))

    assert acknowledgement(stage, listing).blocked == ("uid-g2",)


@pytest.mark.parametrize(
    ("others", "blocked"),
    [
        pytest.param(3, (), id="there is room for them too"),
        pytest.param(5, ("uid-g",), id="all may come here"),
    ],
)
def test_an_in_flight_pod_counts_on_each_of_its_nodes(others: int, blocked: tuple[str, ...]) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": H100}, *members(4, 1))
    for at in range(others):
        assert set(stage.filter(unbound_pod(f"x{at}", 1)).nodes) == {"a", "b"}
    gang = plan("g", {"m0": ("a", 4)})

    assert acknowledgement(stage, stage.write_ledger((gang, PROPOSED))).blocked == blocked


def test_a_reservation_is_acknowledged_once_in_flight_pods_are_bound_elsewhere() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": H100}, *members(8, 1))
    stage.filter(unbound_pod("x", 1))
    listing, checker = stage.write_ledger((plan("g", {"m0": ("a", 8)}), PROPOSED)), ReservationChecker()
    assert acknowledgement(stage, listing, checker).blocked == ("uid-g",)

    stage.watch_pods(pod_update("x", 1, on="b"))

    assert acknowledgement(stage, listing, checker).blocked == ()


def test_a_constraint_of_another_pod_is_kept() -> None:
    """Two bridged pairs: the accepted pod gets a pair only while other pods do not take one GPU of each."""
    stage = FakeScheduler.synced_with_reservations({"a": PAIRS}, *members(1, 2))
    assert stage.filter(unbound_pod("x", 2, island="required")).nodes == ("a",)

    one, two = plan("g", {"m0": ("a", 1)}), plan("g", {"m0": ("a", 1), "m1": ("a", 1)})
    assert acknowledgement(stage, stage.write_ledger((one, PROPOSED))).blocked == ()
    assert acknowledgement(stage, stage.write_ledger((two, PROPOSED))).blocked == ("uid-g",)


def test_a_reservation_with_an_unknown_member_is_not_acknowledged() -> None:
    """The constraints of the reservation are not known yet."""
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    listing = stage.write_ledger((plan("g", {"m0": ("a", 1)}), PROPOSED))
    assert acknowledgement(stage, listing).blocked == ("uid-g",)

    stage.watch_pods(*members(1, 1))

    assert acknowledgement(stage, listing).blocked == ()


def test_an_unknown_reservation_is_not_acknowledged() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(1, 1))
    listing = stage.write_ledger((plan("g", {"m0": ("a", 1)}), PROPOSED), (plan("h", {"m0": ("a", 1)}), PROPOSED))
    stage.cache.reservations.apply_reservations(Batch(ReservationUpdate, (), ("uid-h",)))

    assert acknowledgement(stage, listing).blocked == ("uid-h",)


def test_a_reservation_on_an_unknown_node_is_not_acknowledged() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(1, 1))

    assert acknowledgement(stage, stage.write_ledger((plan("g", {"m0": ("elsewhere", 1)}), PROPOSED))).blocked == (
        "uid-g",
    )


def test_bound_members_are_not_checked() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m0", 8, on="a"), pod_update("m1", 8))

    assert acknowledgement(stage, stage.write_ledger((plan("g", {"m0": ("a", 8)}), PROPOSED))).blocked == ()


def test_capacity_holds_do_not_block_a_reservation() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(8, 1))
    room, gang = plan("r", held={"a": 8}), plan("g", {"m0": ("a", 8)})

    assert acknowledgement(stage, stage.write_ledger((room, HELD), (gang, PROPOSED))).blocked == ()


@pytest.mark.parametrize(
    ("wish", "blocked"),
    [
        pytest.param({"island": "required"}, (), id="any GPUs will do"),
        pytest.param({"nic": "required"}, ("uid-g",), id="which GPUs they get may matter: 128 cases"),
    ],
)
def test_many_kinds_of_in_flight_pods_block_a_reservation_only_if_it_matters_which_gpus_they_get(
    wish: dict[str, Any], blocked: tuple[str, ...]
) -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100, "b": H100}, pod_update("m0", 1, **wish))
    for at in range(7):
        stage.filter(unbound_pod(f"x{at}", 1, min_vram=f"{at + 1}Gi"))

    assert acknowledgement(stage, stage.write_ledger((plan("g", {"m0": ("a", 1)}), PROPOSED))).blocked == blocked


def test_results_are_kept_until_the_node_changes() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, *members(8, 1))
    listing, checker = stage.write_ledger((plan("g", {"m0": ("a", 8)}), PROPOSED)), ReservationChecker()
    judged: list[str] = []

    def policy_of(pod: PodUpdate) -> Policy:
        judged.append(pod.occupant.name)
        return POLICY

    def look() -> None:
        known = stage.cache
        checker.acknowledge(listing, known.reservations, ExtenderView(known.snapshot, known.pods, ()), policy_of, "")

    look()
    look()
    assert judged == ["m0"]
    checker.retain_only(["uid-g"])
    look()
    assert judged == ["m0"]
    checker.retain_only([])
    look()
    assert judged == ["m0", "m0"]
    checker.reset()
    look()
    assert judged == ["m0", "m0", "m0"]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32))
def test_acknowledged_reservations_fit_wherever_in_flight_pods_are_placed(seed: int) -> None:
    random = Random(seed)
    stage = FakeScheduler.synced_with_reservations(
        {name: random.choice((H100, PAIRS, MACHINES["dgx1"]())) for name in "abc"}, policy=POLICY
    )
    for at in range(random.randint(0, 3)):
        shaped, gpus = random.random() < 0.3, random.randint(1, 3)
        found = stage.filter(some_asking(f"x{at}", gpus, shaped=shaped))
        if found.nodes and random.random() < 0.4:
            stage.watch_pods(some(f"x{at}", gpus, shaped=shaped, on=random.choice(found.nodes)))
    gangs = [_gang(random, stage, f"g{at}") for at in range(2)]
    listing = stage.write_ledger(*((each, random.choice((PROPOSED, PROPOSED, COMMITTED))) for each in gangs))

    blocked = acknowledgement(stage, listing).blocked

    for each in gangs:
        if each.key not in blocked and stage.cache.reservations.active[each.key].entry.phase is PROPOSED:
            for where in _ways(stage):
                assert _fits(stage, each, where), where


def _gang(random: Random, stage: FakeScheduler, name: str) -> ReservationUpdate:
    seats = {}
    for at in range(random.randint(1, 4)):
        member = some(f"{name}-{at}", random.choice((1, 2, 2, 4)), shaped=random.random() < 0.4)
        stage.watch_pods(member)
        seats[member.occupant.name] = (random.choice("abc"), member.occupant.profile.gpus)
    return plan(name, seats)


def _ways(stage: FakeScheduler) -> Iterator[dict[str, list[Occupant]]]:
    """Return all cases of in-flight pods, each on one of its nodes or on none."""
    doubtful = stage.cache.assumed_pods.on_several_nodes
    for chosen in product(*([None, *sorted(each.nodes)] for each in doubtful)):
        found: dict[str, list[Occupant]] = {}
        for each, node in zip(doubtful, chosen, strict=True):
            if node is not None:
                found.setdefault(node, []).append(each.pod)
        yield found


def _fits(stage: FakeScheduler, gang: ReservationUpdate, coming: Mapping[str, list[Occupant]]) -> bool:
    """Decide by the filters alone, from the pods on each node."""
    for seat in gang.spec.seats:
        record = stage.cache.snapshot.records[seat.node or ""]
        others = [pod for pod in record.pods if pod.uid != seat.uid and not is_hold(pod.uid)]
        pods = sorted((*others, *coming.get(record.name, ())), key=lambda pod: pod.uid)
        alone = NodeRecord(
            record.name, record.machine, record.gpus, tuple(pods), record.departed, (), record.hash_mismatch_since
        )
        member = stage.cache.pods[seat.uid].occupant
        if isinstance(evaluate_state(member.profile, state_of(alone, NOW, POLICY), POLICY), Reason):
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_acknowledged_members_pass_filter_whatever_is_asked_meanwhile(seed: int) -> None:
    """kube-scheduler picks any answered node and knows no reservations; other pods arrive all the time."""
    life = _Life(Random(seed))
    for _ in range(6):
        life.other()
    if life.propose():
        for _ in range(12):
            life.other()
        for member in life.members:
            found = life.stage.filter(some_asking(member.occupant.name, 2, shaped=life.shaped), "a")
            assert found.nodes == ("a",)
            life.counted["a"] += 2
            life.stage.watch_pods(member._replace(node="a"))
            life.other()
        assert life.counted["a"] <= len(life.stage.machines["a"].gpus)


class _Life:
    """Two nodes, a gang that is to run on one of them, and other pods."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.shaped = random.random() < 0.5
        self.members = [some(f"m{at}", 2, shaped=self.shaped) for at in range(random.randint(1, 2))]
        machine = random.choice((H100, PAIRS, MACHINES["dgx1"]()))
        self.stage = FakeScheduler.synced_with_reservations({"a": machine, "b": H100}, *self.members)
        self.counted = {"a": 0, "b": 0}  # as kube-scheduler counts, without reservations
        self.waiting: list[PodUpdate] = []
        self.serial = 0

    def propose(self) -> bool:
        gang = plan("g", {each.occupant.name: ("a", 2) for each in self.members})
        listing, checker = self.stage.write_ledger((gang, PROPOSED)), ReservationChecker()
        for _ in range(12):
            if not acknowledgement(self.stage, listing, checker).blocked:
                self.stage.write_ledger((gang, COMMITTED), generation=2)
                return True
            self.other()
        return False

    def other(self) -> None:
        if self.waiting and self.random.random() < 0.5:
            self.stage.watch_pods(self.waiting.pop(0))
            return
        self.serial += 1
        gpus, name = self.random.choice((1, 1, 2)), f"x{self.serial}"
        shaped = gpus == 2 and self.random.random() < 0.5
        names = [name for name in "ab" if self.counted[name] + gpus <= len(self.stage.machines[name].gpus)]
        found = self.stage.filter(some_asking(name, gpus, shaped=shaped), *names) if names else None
        if found is not None and found.nodes:
            node = self.random.choice(found.nodes)
            self.counted[node] += gpus
            self.waiting.append(some(name, gpus, shaped=shaped, on=node))
