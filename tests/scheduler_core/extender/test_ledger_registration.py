"""The registration of an extender in ledgers, and when the extender may answer."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gputopo.crd.reservations import EntryPhase, ExtenderAck
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.cache.assumed_pods import MAX_PODS
from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate
from scheduler_core.extender.ledger_registration import REWRITE_S, UNMATCHED_S, LedgerRegistration, apply_body
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from tests.machines import MACHINES
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

H100 = MACHINES["hgx_h100"]()
ME, POD = "host_1", "team/extender"
GANG = plan("g", {"m0": ("a", 8)})
REGISTERED = ExtenderAck(POD)


class Process:
    """An extender that hears of ledgers, and what it says."""

    def __init__(self, *machines: str) -> None:
        self.stage = FakeScheduler.synced_with_reservations(
            dict.fromkeys(machines or ("a",), H100), pod_update("m0", 8)
        )
        self.now = 1000.0
        self.said: list[tuple[str, ExtenderAck | None]] = []
        self.registration = LedgerRegistration(ME, POD, self.stage.cache, self._say, lambda: self.now)

    def _say(self, where: LedgerUpdate, what: ExtenderAck | None) -> None:
        self.said.append((where.key, what))

    def show(self, *ledgers: LedgerUpdate, reservations: Iterable[ReservationUpdate] = ()) -> None:
        self.stage.cache.apply_batch(Batch(ReservationUpdate, tuple(reservations)), self.stage.now)
        self.stage.cache.apply_batch(Batch(LedgerUpdate, ledgers, is_full_list=True), self.stage.now)

    def look(self, *, answering: bool = True, after: float = 0.0, policies: Policies = BUILT_IN) -> str | None:
        self.now += after
        self.registration.update(policies, answering=answering)
        return self.registration.not_ready_reason


def settled() -> Process:
    """An extender that is registered and has answered for long enough."""
    process = Process()
    process.show(ledger(extenders={ME: REGISTERED}))
    process.look()
    process.look(after=ASSUMED_POD_LIFETIME_S)
    process.said.clear()
    return process


def test_without_a_ledger_there_is_nothing_to_say() -> None:
    process = Process()

    assert process.look() is None
    assert process.said == []


def test_it_registers_before_it_answers() -> None:
    process = Process()
    process.show(ledger())

    assert process.look() == "this extender is not registered in the ledger gpus yet, so planners do not know of it"
    assert process.said == [("gpus", REGISTERED)]
    process.show(ledger(extenders={ME: REGISTERED}))
    assert process.look() is None
    assert process.said == [("gpus", REGISTERED)]


def test_it_names_the_previous_processes_of_its_own_pod() -> None:
    process = Process()
    others = {"old": ExtenderAck(POD, 7), "beside": ExtenderAck("team/other", 7), "no pod": ExtenderAck("", 7)}
    process.show(ledger(extenders=others))
    process.look()
    process.show(ledger(extenders={ME: ExtenderAck(POD, replaces=("old",))}))

    process.look(after=REWRITE_S)

    assert process.said == [("gpus", ExtenderAck(POD, replaces=("old",)))]
    process.look(after=ASSUMED_POD_LIFETIME_S)
    assert process.said[1:] == [("gpus", ExtenderAck(POD, 1, replaces=("old",)))]


def test_it_registers_in_every_ledger() -> None:
    process = Process()
    process.show(ledger(extenders={ME: REGISTERED}), ledger(name="other", uid="O"))

    assert process.look() == "this extender is not registered in the ledger other yet, so planners do not know of it"
    assert process.said == [("other", REGISTERED)]


def test_one_that_does_not_answer_is_not_registered() -> None:
    process = Process()
    process.show(ledger(extenders={ME: REGISTERED}))

    process.look(answering=False)

    assert process.said == [("gpus", None)]


def test_a_registration_that_the_watch_does_not_show_is_written_again() -> None:
    process = Process()
    process.show(ledger())
    process.look()

    process.look(after=REWRITE_S / 2)
    assert process.said == [("gpus", REGISTERED)]
    process.look(after=REWRITE_S / 2)
    assert process.said == [("gpus", REGISTERED)] * 2


def test_a_recreated_ledger_gets_the_registration_at_once() -> None:
    process = Process()
    process.show(ledger(extenders={ME: REGISTERED}))
    process.look()
    process.show(ledger(uid="another"))

    process.look()

    assert process.said == [("gpus", REGISTERED)]


def test_a_removed_registration_is_written_again() -> None:
    process = settled()
    process.show(ledger(generation=5))

    assert process.look(after=REWRITE_S) is not None
    assert process.said == [("gpus", ExtenderAck(POD, 1))]


def test_nothing_is_acknowledged_before_pods_accepted_by_other_extenders_are_bound() -> None:
    process = Process()
    process.show(ledger(entry(GANG, PROPOSED), extenders={ME: REGISTERED}), reservations=[GANG])

    process.look()
    process.look(after=ASSUMED_POD_LIFETIME_S - 1)
    assert process.said == []
    process.look(after=1)
    assert process.said == [("gpus", ExtenderAck(POD, 1))]


def test_that_time_begins_anew_for_one_that_did_not_answer_meanwhile() -> None:
    process = settled()
    process.show(ledger(entry(GANG, PROPOSED), generation=2, extenders={ME: REGISTERED}), reservations=[GANG])
    process.look(answering=False)

    process.look(after=1)
    process.look(after=ASSUMED_POD_LIFETIME_S - 1)
    assert [what for _, what in process.said if what is not None and what.generation] == []
    process.look(after=1)
    assert process.said[-1] == ("gpus", ExtenderAck(POD, 2, term=1))


def test_a_proposal_is_acknowledged_once() -> None:
    process = settled()
    process.show(ledger(entry(GANG, PROPOSED), generation=2, extenders={ME: REGISTERED}), reservations=[GANG])

    process.look()
    process.look()

    assert process.said == [("gpus", ExtenderAck(POD, 2))]


def test_blocked_proposals_are_reported_until_they_are_free() -> None:
    process = settled()
    process.stage.watch_pods(pod_update("x", 1, on="a"))
    process.show(ledger(entry(GANG, PROPOSED), generation=2, extenders={ME: REGISTERED}), reservations=[GANG])
    process.look()
    process.stage.watch_pods(gone=["uid-x"])
    process.stage.watch_reports({"a": {}}, observed="2026-11-18T11:01:00Z")

    process.look()

    assert process.said == [("gpus", ExtenderAck(POD, 2, ("uid-g",))), ("gpus", ExtenderAck(POD, 2))]


def test_a_pod_that_was_deleted_before_filter_does_not_delay_proposals() -> None:
    process = settled()
    process.stage.watch_pods(gone=["uid-flash"])
    process.stage.filter(unbound_pod("flash", 1))

    process.show(ledger(entry(GANG, PROPOSED), generation=2, extenders={ME: REGISTERED}), reservations=[GANG])
    process.look()

    assert process.said == [("gpus", ExtenderAck(POD, 2))]


def test_without_a_proposal_no_new_acknowledgement_is_written() -> None:
    """No planner waits for the extender, and all extenders and planners receive every write of a ledger."""
    process = settled()
    process.show(ledger(extenders={ME: ExtenderAck(POD, 1)}))
    process.look()
    process.show(ledger(entry(GANG, COMMITTED), generation=9, extenders={ME: ExtenderAck(POD, 1)}), reservations=[GANG])

    process.look()

    assert process.said == []


def test_a_planner_is_not_told_of_pods_that_were_forgotten() -> None:
    process = settled()
    process.show(ledger(extenders={ME: ExtenderAck(POD, 1)}))
    process.look()
    cluster_cache = process.stage.cache
    for at in range(MAX_PODS + 1):
        cluster_cache.assume_pod(pod_update(f"x{at}", 1).occupant, frozenset({"a", "b"}))
    process.stage.now += 1
    cluster_cache.advance_time(process.stage.now)
    proposed = ledger(entry(plan("h", {"m0": ("b", 1)}), PROPOSED), generation=2, extenders={ME: ExtenderAck(POD, 1)})
    process.show(proposed, reservations=[plan("h", {"m0": ("b", 1)})])

    process.look()
    assert process.said == []
    process.show(ledger(*proposed.spec.entries, generation=2, uid="anew"))
    process.look()
    assert process.said == [("gpus", REGISTERED)]
    process.stage.now += ASSUMED_POD_LIFETIME_S
    cluster_cache.advance_time(process.stage.now)
    process.look()
    assert process.said[-1] == ("gpus", ExtenderAck(POD, 2, ("uid-h",)))  # its node is not known


@pytest.mark.parametrize("phase", [COMMITTED, HELD])
def test_it_does_not_answer_before_the_watch_has_delivered_the_reservations_of_the_ledger(phase: EntryPhase) -> None:
    process = settled()
    entries = (entry(GANG, phase),)
    process.show(ledger(*entries, generation=2, extenders={ME: REGISTERED}))

    assert process.look() == "a ledger lists the reservation uid-g, which the watch has not shown yet"
    assert process.look(after=UNMATCHED_S - 1) is not None
    process.show(ledger(*entries, generation=2, extenders={ME: REGISTERED}), reservations=[GANG])
    assert process.look() is None


def test_an_entry_without_a_reservation_does_not_stop_it_for_ever() -> None:
    process = settled()
    process.show(ledger(entry(GANG), generation=2, extenders={ME: REGISTERED}))
    assert process.look() is not None

    assert process.look(after=UNMATCHED_S) is None


def test_looking_costs_a_tenth_of_the_time_at_most_but_when_planners_write() -> None:
    stage, policies, said = FakeScheduler.synced_with_reservations({"a": H100}), BUILT_IN, list[str]()
    clock = iter((0.0, 2.0))  # the first look takes two seconds
    last = [2.0]
    registration = LedgerRegistration(
        ME, POD, stage.cache, lambda *_: said.append("said"), lambda: next(clock, last[0])
    )
    registration.update(policies, answering=True)
    stage.write_ledger()

    last[0] = 21.9
    registration.update(policies, answering=True)
    assert said == []
    registration.update(policies, answering=True, urgent=True)
    assert said == ["said"]


def test_after_that_it_looks_again() -> None:
    stage, said = FakeScheduler.synced_with_reservations({"a": H100}), list[str]()
    clock = iter((0.0, 2.0))
    registration = LedgerRegistration(ME, POD, stage.cache, lambda *_: said.append("said"), lambda: next(clock, 22.0))
    registration.update(BUILT_IN, answering=True)
    stage.write_ledger()

    registration.update(BUILT_IN, answering=True)

    assert said == ["said"]


def test_another_policy_judges_anew() -> None:
    process = settled()
    process.show(ledger(entry(GANG, PROPOSED), generation=2, extenders={ME: REGISTERED}), reservations=[GANG])
    process.look()

    process.look(policies=Policies((PolicyProfile(Policy(shortlist=3)),)))

    assert process.said == [("gpus", ExtenderAck(POD, 2))]


def test_it_leaves_where_it_is_shown() -> None:
    process = Process()
    process.show(ledger(extenders={ME: REGISTERED}), ledger(name="other", uid="O"))

    assert [each.key for each in process.registration.showing_ledgers] == ["gpus"]
    process.registration.withdraw()
    assert process.said == [("gpus", None)]


def test_a_pod_is_judged_by_the_policy_of_its_scheduler() -> None:
    ours, usual = Policy(shortlist=3), Policy()
    policies = Policies((PolicyProfile(ours, ProfileMatch(schedulers=frozenset({"gputopo"}))), PolicyProfile(usual)))

    assert policies.policy_for(pod_update("p", 1)._replace(scheduler="gputopo").request) is ours
    assert policies.policy_for(pod_update("p", 1).request) is usual


def test_the_body_of_an_acknowledgement() -> None:
    where = ledger(uid="L")

    assert apply_body(where, ME, ExtenderAck(POD, 7, ("u",), 1)) == {
        "apiVersion": "gputopo.io/v1alpha1",
        "kind": "PlacementLedger",
        "metadata": {"name": "gpus", "uid": "L"},
        "status": {"extenders": {ME: {"pod": POD, "generation": 7, "blocked": ["u"], "term": 1}}},
    }
    assert "status" not in apply_body(where, ME, None)
