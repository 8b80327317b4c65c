"""Reconcile: the next writes, from the observed cluster."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest

from gputopo.crd.reservations import (
    EntryPhase,
    ExtenderAck,
    LedgerSpec,
    LedgerStatus,
    PlannedMember,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
)
from gputopo.labels.keys import GATE
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    ProbeExtenderPod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
    reserved_gang,
)
from scheduler_core.planner.commit.controllers import JOB_TRACKING
from scheduler_core.planner.commit.observations import (
    Observations,
    PhaseSince,
    RefusedWrite,
    SilentExtender,
    observe_ledger,
    with_refused_write,
    without_refused_write,
)
from scheduler_core.planner.commit.reconcile import reconcile
from scheduler_core.planner.commit.state import CommitTerms, ReconcileInput, Rollback
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.request.device_request import WHOLE
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

ME = "me"
SILENT = {"x": ExtenderAck("team/x", 1)}
NO_EXTENDER = "no extender is registered that could acknowledge it"
AWAITED = "waits for extender team/x to acknowledge it"
PLAN = plan("llm-1", {"a": ("n1", 4), "b": ("n2", 4)})
HOLD = plan("llm-h", held={"n1": 4})
HOLD_STATUS = ReservationStatus(
    state=ReservationState.HELD,
    reason="does not fit yet; capacity that becomes free on n1 is reserved: their pods end by 1970-01-01T01:00:00Z",
    nodes=1,
    gpus=4,
    estimate="1970-01-01T01:00:00Z",
)
BATCH = plan("pods-1", {"a": ("n1", 4), "b": ("n2", 4)}, gang="")
MIXED = CommitTerms(settle_s=10.0)
GATED_POOL = CommitTerms(gated=True)


def pod(name: str, **changed: Any) -> Member:
    """A gated pod of a ReplicaSet."""
    usual = {"uid": f"uid-{name}", "gates": (GATE,), "owner_kind": "apps/ReplicaSet", "namespace": "team"}
    return member(name)._replace(**(usual | changed))


def ungated(name: str, **changed: Any) -> Member:
    return pod(name, gates=(), reservation=PLAN.name, **changed)


A, B = pod("a"), pod("b")
A_GOES, B_GOES = ungated("a"), ungated("b")
A_BOUND, B_BOUND = ungated("a", node="n1"), ungated("b", node="n2")
A_RUNS = ungated("a", node="n1", started=True, phase="Running")


def in_state(
    state: ReservationState | None, reason: str | None = None, of: ReservationUpdate = PLAN
) -> ReservationUpdate:
    return of._replace(status=ReservationStatus(state=state, reason=reason))


class Case(NamedTuple):
    """Input of reconcile, in one line."""

    members: tuple[Member, ...] = (A, B)
    reservations: tuple[ReservationUpdate, ...] = (PLAN,)
    phase: EntryPhase | None = None  # of each reservation in the ledger; None: not listed
    made: bool = False
    age: float = 0.0  # of the entries, in seconds
    extenders: Mapping[str, ExtenderAck] = MappingProxyType({})
    nodes: frozenset[str] = frozenset({"n1", "n2"})
    crowded: frozenset[str] = frozenset()
    unheld: frozenset[str] = frozenset()
    minimum: int | None = None
    siblings: tuple[Member, ...] = ()
    fresh: float | None = None  # age of a ledger that this planner created
    silent: Mapping[str, SilentExtender] = MappingProxyType({})
    gone: bool = False  # the gang has no members
    touched: frozenset[tuple[str, str]] = frozenset()
    refused: Mapping[tuple[type, str], RefusedWrite] = MappingProxyType({})
    blind: bool = False
    in_flight: frozenset[tuple[str, str]] = frozenset()


NOW = 1000.0


def found(case: Case, terms: CommitTerms = MIXED) -> tuple[Action, ...]:
    """Return the next writes."""
    listed = () if case.phase is None else tuple(entry(each, case.phase) for each in case.reservations)
    found_ledger = ledger(*listed, generation=3, extenders=case.extenders)
    found_ledger = found_ledger._replace(spec=msgspec.structs.replace(found_ledger.spec, planner=ME))
    memory = Observations(
        ledger_seen_at=NOW - (1000.0 if case.fresh is None else case.fresh),
        is_new_ledger=case.fresh is not None,
        since={each.uid: PhaseSince(each.phase, NOW - case.age, 3) for each in listed},
        created=frozenset(each.key for each in case.reservations) if case.made else frozenset(),
        silent_extenders=case.silent,
        touched=case.touched,
        refused_writes=case.refused,
    )
    return reconcile(_input(case, found_ledger, memory), terms, "gpus").writes


def _input(case: Case, found_ledger: LedgerUpdate | None, memory: Observations) -> ReconcileInput:
    people = {each.uid: each for each in case.members}
    name = reserved_gang(PLAN)
    assert name is not None
    gang = Gang(name, GangPhase.QUEUED, "", minimum=case.minimum, placed=(*case.siblings, *_placed(case)))
    return ReconcileInput(
        identity=ME,
        ledger=found_ledger,
        reservations={each.key: each for each in case.reservations},
        member=people.get,
        gang=lambda _: None if case.gone else gang,
        nodes=case.nodes,
        no_longer_fitting=case.crowded,
        unwanted_holds=case.unheld,
        estimates={HOLD.key: 3600.0, "uid-unknown": None},
        observations=memory,
        now=NOW,
        wall_time=0.0,
        awaiting_binding=[
            each for each in _placed(case) if each.reservation and each.node is None and not each.is_terminating
        ],
        has_stale_view=case.blind,
        in_flight=case.in_flight,
    )


def _placed(case: Case) -> tuple[Member, ...]:
    return tuple(each for each in case.members if GATE not in each.gates)


def only(case: Case, terms: CommitTerms = MIXED) -> Action:
    (write,) = found(case, terms)
    return write


def phases(write: Action) -> list[EntryPhase]:
    assert isinstance(write, WriteLedger)
    return [each.phase for each in write.spec.entries]


LOST = "the ledger had lost it, and its places have been taken since"


def state_of(write: Action) -> tuple[ReservationState | None, str | None]:
    assert isinstance(write, WriteStatus)
    return write.status.state, write.status.reason


def test_a_missing_ledger_is_created() -> None:
    assert reconcile(_input(Case(), None, Observations()), MIXED, "gpus").writes == (
        CreateLedger("gpus", LedgerSpec(ME, 1)),
    )


def test_the_ledger_of_another_planner_is_taken_over_first() -> None:
    found_ledger = ledger(entry(PLAN, COMMITTED))

    assert reconcile(_input(Case(), found_ledger, Observations()), MIXED, "gpus").writes == (
        WriteLedger(found_ledger, LedgerSpec(ME, 2, (entry(PLAN, COMMITTED),))),
    )


@pytest.mark.parametrize(
    ("case", "terms", "expected"),
    [
        pytest.param(Case(made=True), MIXED, [PROPOSED], id="a plan is proposed"),
        pytest.param(Case(made=True), GATED_POOL, [COMMITTED], id="gated pool: committed at once"),
        pytest.param(Case(reservations=(HOLD,), made=True), MIXED, [HELD], id="capacity is reserved"),
        pytest.param(Case(made=True, fresh=11), MIXED, [PROPOSED], id="extenders had time to see the ledger"),
        pytest.param(Case((A,), (BATCH,), made=True), MIXED, [PROPOSED], id="single pods: some may be gone"),
        pytest.param(
            Case(phase=PROPOSED, extenders={"x": ExtenderAck("", 3)}),
            MIXED,
            [COMMITTED],
            id="acknowledged: committed",
        ),
        pytest.param(Case(phase=PROPOSED), GATED_POOL, [COMMITTED], id="gated pool: no acknowledgement is needed"),
        pytest.param(Case((A,), phase=PROPOSED), MIXED, [], id="a member is gone: removed"),
        pytest.param(
            Case((A, pod("b", is_terminating=True)), phase=PROPOSED),
            MIXED,
            [],
            id="a member is terminating: removed",
        ),
        pytest.param(Case((A, pod("b", gates=())), phase=PROPOSED), MIXED, [], id="a gate was removed: removed"),
        pytest.param(Case(phase=PROPOSED, crowded=frozenset({PLAN.key})), MIXED, [], id="no longer fits: removed"),
        pytest.param(
            Case(phase=PROPOSED, age=5, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}),
            MIXED,
            [],
            id="blocked for long: removed",
        ),
        pytest.param(
            Case(reservations=(HOLD,), phase=HELD, unheld=frozenset({HOLD.key})),
            MIXED,
            [],
            id="hold not wanted: removed",
        ),
        pytest.param(Case(reservations=(HOLD,), phase=HELD, gone=True), MIXED, [], id="its gang is gone: removed"),
        pytest.param(
            Case((A_BOUND, B_BOUND), (in_state(ReservationState.BOUND),), COMMITTED),
            MIXED,
            [],
            id="status Bound: removed",
        ),
        pytest.param(Case((A_BOUND, B_BOUND), (BATCH,), COMMITTED), MIXED, [], id="single pods: removed once bound"),
        pytest.param(Case((), (BATCH,), COMMITTED), MIXED, [], id="single pods are all gone: removed"),
        pytest.param(Case((A_GOES,), (in_state(ReservationState.FAILED),), COMMITTED), MIXED, [], id="failed: removed"),
        pytest.param(
            Case((), (in_state(ReservationState.ROLLING_BACK),), COMMITTED),
            MIXED,
            [],
            id="rolled back, all gone: removed",
        ),
        pytest.param(
            Case(
                (ungated("a", is_terminating=True, node="n1"),), (in_state(ReservationState.ROLLING_BACK),), COMMITTED
            ),
            MIXED,
            [],
            id="rolled back, all terminating: removed",
        ),
    ],
)
def test_the_next_write_of_the_ledger(case: Case, terms: CommitTerms, expected: list[EntryPhase]) -> None:
    assert phases(only(case, terms)) == expected


@pytest.mark.parametrize(
    ("case", "terms"),
    [
        pytest.param(
            Case(made=True, fresh=9, reservations=(in_state(ReservationState.PROPOSED, "planned"),)),
            MIXED,
            id="extenders may not have seen the ledger, and the status says so",
        ),
        pytest.param(Case(phase=PROPOSED), MIXED, id="not acknowledged"),
        pytest.param(
            Case(phase=PROPOSED, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}), MIXED, id="blocked for a moment"
        ),
        pytest.param(
            Case((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED),
            MIXED,
            id="all are ungated and unbound",
        ),
        pytest.param(Case((A_BOUND, B_BOUND), (in_state(ReservationState.BOUND),)), MIXED, id="a gang that runs"),
        pytest.param(Case(phase=PROPOSED, blind=True), GATED_POOL, id="stale view"),
        pytest.param(
            Case(phase=PROPOSED, extenders={"x": ExtenderAck("", 3)}, blind=True),
            MIXED,
            id="acknowledged, with a stale view",
        ),
        pytest.param(
            Case((A_GOES, B), (in_state(ReservationState.BOUND),), COMMITTED),
            MIXED,
            id="a successor has seen all bound",
        ),
        pytest.param(
            Case((A_GOES._replace(owner_kind=None), B_BOUND), (in_state(ReservationState.FAILED),)),
            MIXED,
            id="failed",
        ),
        pytest.param(
            Case((A_GOES, B_BOUND), (in_state(ReservationState.BOUND),)),
            MIXED,
            id="status Bound, written by a successor",
        ),
        pytest.param(
            Case(
                (A_GOES, B),
                (in_state(ReservationState.COMMITTED),),
                PROPOSED,
                extenders={"x": ExtenderAck("", 3)},
                fresh=9,
            ),
            MIXED,
            id="listed again, extenders may not have seen it",
        ),
        pytest.param(
            Case((A_GOES, B), (in_state(ReservationState.COMMITTED),), PROPOSED),
            MIXED,
            id="listed again, not acknowledged",
        ),
        pytest.param(Case(reservations=(HOLD._replace(status=HOLD_STATUS),), phase=HELD), MIXED, id="capacity hold"),
        pytest.param(
            Case(phase=PROPOSED, age=2, reservations=(in_state(ReservationState.PROPOSED, NO_EXTENDER),)),
            MIXED,
            id="the status says what it waits for",
        ),
    ],
)
def test_no_write_is_due(case: Case, terms: CommitTerms) -> None:
    assert found(case, terms) == ()


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        pytest.param(
            Case(made=True, fresh=9),
            (
                ReservationState.PROPOSED,
                "planned; the ledger is new, and extenders have until 1970-01-01T00:00:01Z to see it",
            ),
            id="extenders may not have seen the ledger",
        ),
        pytest.param(
            Case(phase=PROPOSED, age=1), (ReservationState.PROPOSED, NO_EXTENDER), id="no extender is registered"
        ),
        pytest.param(
            Case(phase=PROPOSED, age=1, extenders=SILENT, silent={"x": SilentExtender(3, NOW - 4)}),
            (
                ReservationState.PROPOSED,
                f"{AWAITED}; its registration is dropped at 1970-01-01T00:02:36Z if it stays silent",
            ),
            id="one has not acknowledged",
        ),
        pytest.param(
            Case(
                phase=PROPOSED,
                age=1,
                reservations=(in_state(ReservationState.PROPOSED, AWAITED),),
                extenders=SILENT,
                silent={"x": SilentExtender(3, NOW - 4, NOW, gone_at=NOW - 1)},
            ),
            (
                ReservationState.PROPOSED,
                (
                    "waits for extender team/x (pod gone) to acknowledge it; its registration is dropped at "
                    "1970-01-01T00:00:29Z if it stays silent"
                ),
            ),
            id="one is gone",
        ),
        pytest.param(
            Case(
                phase=PROPOSED,
                age=1,
                extenders={"vm_1": ExtenderAck("", 1), **SILENT, "well": ExtenderAck("", 3)},
                silent={"vm_1": SilentExtender(3, NOW - 4), "x": SilentExtender(3, NOW - 9, gone_at=NOW)},
            ),
            (
                ReservationState.PROPOSED,
                (
                    "waits for extender team/x and 1 more to acknowledge it; its registration is dropped at "
                    "1970-01-01T00:02:36Z if it stays silent"
                ),
            ),
            id="two have not acknowledged, one of them gone",
        ),
        pytest.param(
            Case(phase=PROPOSED, age=1, extenders={"vm_1": ExtenderAck("", 3, (PLAN.key,))}),
            (ReservationState.PROPOSED, "extender vm_1 (not in a pod) has admitted a pod that conflicts with it"),
            id="blocked",
        ),
        pytest.param(
            Case(phase=COMMITTED),
            (ReservationState.COMMITTED, None),
            id="the deadline is written before the first patch",
        ),
        pytest.param(Case((A_BOUND, B_BOUND), phase=COMMITTED), (ReservationState.BOUND, None), id="all are bound"),
        pytest.param(
            Case((A_BOUND, ungated("b", phase="Succeeded")), phase=COMMITTED),
            (ReservationState.BOUND, None),
            id="one has succeeded",
        ),
        pytest.param(
            Case((A_BOUND,), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b disappeared before all members were bound"),
            id="a member was deleted",
        ),
        pytest.param(
            Case(
                (A_BOUND, ungated("b", bind_error="no volume")),
                (in_state(ReservationState.COMMITTED),),
                COMMITTED,
                age=30,
            ),
            (ReservationState.ROLLING_BACK, "b not bound within 30 s (kube-scheduler: no volume)"),
            id="kube-scheduler could not bind it",
        ),
        pytest.param(
            Case((A_BOUND, ungated("b", phase="Failed")), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b disappeared before all members were bound"),
            id="a member failed",
        ),
        pytest.param(
            Case((A, pod("b", gates=())), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b disappeared before all members were bound"),
            id="another program removed the gate",
        ),
        pytest.param(
            Case((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, nodes=frozenset({"n1"})),
            (ReservationState.ROLLING_BACK, "node n2, planned for b, is gone"),
            id="a node is gone",
        ),
        pytest.param(
            Case((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, age=30),
            (ReservationState.ROLLING_BACK, "a and 1 more not bound within 30 s"),
            id="too late",
        ),
        pytest.param(
            Case((A_BOUND, B_GOES._replace(reservation=BATCH.name)), (BATCH,), COMMITTED, age=30),
            (ReservationState.ROLLING_BACK, "b not bound within 30 s"),
            id="a single pod is too late",
        ),
        pytest.param(
            Case(
                (ungated("a", owner_kind=None), B_BOUND), (in_state(ReservationState.ROLLING_BACK, "late"),), COMMITTED
            ),
            (ReservationState.FAILED, "late; no controller would recreate a, so all pods are left as they are"),
            id="a bare pod is never deleted",
        ),
        pytest.param(
            Case((A_BOUND, B_BOUND)),
            (ReservationState.BOUND, None),
            id="its entry was removed before the status was written",
        ),
        pytest.param(
            Case((A_BOUND, B_GOES), phase=PROPOSED, crowded=frozenset({PLAN.key})),
            (ReservationState.ROLLING_BACK, LOST),
            id="listed again, no longer fits",
        ),
        pytest.param(
            Case((A_GOES, B), phase=PROPOSED, age=5, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}),
            (ReservationState.ROLLING_BACK, LOST),
            id="listed again, blocked for long",
        ),
        pytest.param(
            Case((A_GOES, B), phase=PROPOSED, age=30),
            (ReservationState.ROLLING_BACK, "a and 1 more not bound within 30 s"),
            id="listed again, not acknowledged in time",
        ),
        pytest.param(
            Case((A_BOUND,), phase=COMMITTED, minimum=1), (ReservationState.BOUND, None), id="enough without one"
        ),
        pytest.param(
            Case((A_BOUND,), phase=COMMITTED, minimum=2, siblings=(ungated("c", node="n1"),)),
            (ReservationState.BOUND, None),
            id="enough with the siblings of another plan",
        ),
    ],
)
def test_the_next_status(case: Case, expected: tuple[ReservationState, str | None]) -> None:
    assert state_of(only(case)) == expected


def test_the_status_counts() -> None:
    write = only(Case((A_BOUND, B), phase=COMMITTED))

    assert isinstance(write, WriteStatus)
    assert write.status == ReservationStatus(
        state=ReservationState.COMMITTED, bound=1, members=2, nodes=2, gpus=8, deadline="1970-01-01T00:00:30Z"
    )


def test_the_status_of_a_capacity_hold_has_an_estimate() -> None:
    write = only(Case(reservations=(HOLD,), phase=HELD))

    assert isinstance(write, WriteStatus)
    assert write.status == HOLD_STATUS


def test_a_capacity_hold_without_a_search_yet_keeps_its_status() -> None:
    other = HOLD._replace(key="uid-other")

    assert found(Case(reservations=(other,), phase=HELD)) == ()


def test_pods_without_a_deadline_have_no_estimate() -> None:
    unknown = HOLD._replace(key="uid-unknown")

    assert state_of(only(Case(reservations=(unknown,), phase=HELD))) == (
        ReservationState.HELD,
        "does not fit yet; capacity that becomes free on n1 is reserved: the end of their pods is unknown",
    )


def test_members_are_ungated_once_the_deadline_is_written() -> None:
    committed = in_state(ReservationState.COMMITTED)

    for blind in (False, True):  # it counts already
        case = Case((A, B_GOES), (committed,), COMMITTED, blind=blind)
        assert found(case) == (UngateAndPin(A, PLAN.spec.seats[0], PLAN.name),)


def test_members_whose_write_is_in_flight_are_left_out() -> None:
    case = Case((A, B), (in_state(ReservationState.COMMITTED),), COMMITTED, in_flight=frozenset({("pod", A.uid)}))

    assert found(case) == (UngateAndPin(B, PLAN.spec.seats[1], PLAN.name),)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(), id="created and not listed by a predecessor"),
        pytest.param(Case(()), id="its members are gone"),
        pytest.param(Case((), (in_state(ReservationState.BOUND),)), id="a gang that has ended"),
        pytest.param(Case((A_BOUND, B_BOUND), (BATCH,)), id="single pods that are bound"),
        pytest.param(Case((A,), made=True), id="a member disappeared before it was listed"),
        pytest.param(Case(made=True, crowded=frozenset({PLAN.key})), id="no longer fits before it was listed"),
        pytest.param(Case(made=True, blind=True), id="planned on a stale view"),
        pytest.param(Case(reservations=(HOLD,), made=True, blind=True), id="hold searched on a stale view"),
        pytest.param(Case(reservations=(HOLD,), made=True, unheld=frozenset({HOLD.key})), id="hold no longer wanted"),
        pytest.param(
            Case((ungated("a", is_terminating=True),), (in_state(ReservationState.ROLLING_BACK),)),
            id="rolled back, its pods terminating",
        ),
    ],
)
def test_a_reservation_without_dependants_is_deleted(case: Case) -> None:
    assert only(case) == DeleteReservation(case.reservations[0])


def test_an_entry_without_its_reservation_is_removed() -> None:
    found_ledger = ledger(entry(PLAN, COMMITTED))
    found_ledger = found_ledger._replace(spec=msgspec.structs.replace(found_ledger.spec, planner=ME))

    (write,) = reconcile(_input(Case(reservations=()), found_ledger, Observations()), MIXED, "gpus").writes

    assert phases(write) == []


BACK = in_state(ReservationState.ROLLING_BACK, "late")
JOB = {"owner_kind": "batch/Job", "finalizers": (JOB_TRACKING,)}


@pytest.mark.parametrize(
    ("members", "terms", "writes"),
    [
        pytest.param(
            (A_RUNS, B_GOES), MIXED, [DeletePod(A_RUNS), DeletePod(B_GOES)], id="the gang restarts as a whole"
        ),
        pytest.param(
            (A_RUNS, B_GOES),
            MIXED._replace(rollback=Rollback.UNSTARTED),
            [DeletePod(B_GOES)],
            id="only unstarted members",
        ),
        pytest.param(
            (A, B_GOES),
            MIXED,
            [DeletePod(B_GOES), TouchPod(A, PLAN.key)],
            id="a gated member stays and is touched",
        ),
        pytest.param(
            (ungated("a", **JOB), ungated("b", owner_kind="batch/Job")),
            MIXED,
            [StripFinalizer(ungated("a", **JOB), JOB_TRACKING), DeletePod(ungated("b", owner_kind="batch/Job"))],
            id="the Job's finalizer is stripped first",
        ),
        pytest.param(
            (ungated("a", phase="Succeeded"), B_GOES), MIXED, [DeletePod(B_GOES)], id="a succeeded member stays"
        ),
    ],
)
def test_rollback(members: tuple[Member, ...], terms: CommitTerms, writes: list[Action]) -> None:
    assert list(found(Case(members, (BACK,), COMMITTED), terms)) == writes


def test_an_elastic_gang_with_enough_members_loses_only_unbound_ones() -> None:
    assert found(Case((A_BOUND, B_GOES), (BACK,), COMMITTED, minimum=1)) == (DeletePod(B_GOES),)


A_LATE = ungated(
    "a", node="n1", started=True, phase="Running", owner_kind="batch/Job"
)  # its finalizer was stripped before


@pytest.mark.parametrize(
    ("case", "terms"),
    [
        pytest.param(
            Case((A_LATE, B_BOUND), (BACK,), COMMITTED), MIXED._replace(rollback=Rollback.UNSTARTED), id="unstarted"
        ),
        pytest.param(Case((A_LATE, B_BOUND), (BACK,), COMMITTED, minimum=1), MIXED, id="an elastic gang"),
        pytest.param(
            Case(
                (A_LATE._replace(reservation=BATCH.name),),
                (in_state(ReservationState.ROLLING_BACK, of=BATCH),),
                COMMITTED,
            ),
            MIXED,
            id="a single pod",
        ),
    ],
)
def test_a_started_pod_is_deleted_once_its_finalizer_is_stripped(case: Case, terms: CommitTerms) -> None:
    deleted = [each.member.name for each in found(case, terms) if isinstance(each, DeletePod)]

    assert deleted == (["a", "b"] if terms.rollback is Rollback.UNSTARTED else ["a"])


def test_a_gang_without_members_has_no_minimum() -> None:
    assert found(Case((A_BOUND, B_GOES), (BACK,), COMMITTED, gone=True)) == (DeletePod(A_BOUND), DeletePod(B_GOES))
    assert state_of(only(Case((A_BOUND,), (in_state(ReservationState.COMMITTED),), COMMITTED, gone=True)))[0] is (
        ReservationState.ROLLING_BACK
    )


def test_the_policy_limits_the_timeout_that_a_gang_asks_for() -> None:
    asked = PLAN._replace(spec=msgspec.structs.replace(PLAN.spec, timeout_s=86_400.0))
    terms, committed = MIXED._replace(max_timeout_s=60.0), in_state(ReservationState.COMMITTED, of=asked)

    started = only(Case((A, B), (asked,), COMMITTED), terms)
    assert isinstance(started, WriteStatus)
    assert started.status.deadline == "1970-01-01T00:01:00Z"
    assert found(Case((A_BOUND, B_GOES), (committed,), COMMITTED, age=59.0), terms) == ()
    assert state_of(only(Case((A_BOUND, B_GOES), (committed,), COMMITTED, age=60.0), terms)) == (
        ReservationState.ROLLING_BACK,
        "b not bound within 60 s (gangs.maxTimeout)",
    )


def test_of_single_pods_only_late_ones_are_deleted_and_bare_ones_fail() -> None:
    batch = in_state(ReservationState.ROLLING_BACK, "late", of=BATCH)
    late = ungated("b")._replace(reservation=BATCH.name)
    bare = late._replace(owner_kind=None)

    assert found(Case((A_BOUND, late), (batch,), COMMITTED)) == (DeletePod(late),)
    assert state_of(only(Case((A_BOUND, bare), (batch,), COMMITTED))) == (
        ReservationState.FAILED,
        "late; no controller would recreate b, so nothing is deleted, and nothing is reserved any more",
    )


@pytest.mark.parametrize(
    ("silence", "write"),
    [
        pytest.param(SilentExtender(3, NOW - 4), None, id="it may be slow"),
        pytest.param(SilentExtender(3, NOW - 5), ProbeExtenderPod("x", "team/x"), id="its pod is probed"),
        pytest.param(SilentExtender(3, NOW - 8, probed_at=NOW - 4), None, id="it was just probed"),
        pytest.param(SilentExtender(3, NOW - 60, gone_at=NOW - 29), None, id="its admissions may be under way"),
        pytest.param(SilentExtender(3, NOW - 60, gone_at=NOW - 30), DropRegistration, id="its pod is gone for long"),
        pytest.param(SilentExtender(3, NOW - 160, probed_at=NOW), DropRegistration, id="silent for long"),
    ],
)
def test_a_silent_extender_is_probed_then_dropped(silence: SilentExtender, write: Any) -> None:
    case = Case(
        reservations=(in_state(ReservationState.PROPOSED),),
        phase=PROPOSED,
        age=1,
        extenders=SILENT,
        silent={"x": silence},
    )
    writes = tuple(each for each in found(case) if not isinstance(each, WriteStatus))  # without the status

    if write is DropRegistration:
        (drop,) = writes
        assert isinstance(drop, DropRegistration)
        assert drop.status == LedgerStatus({})
    else:
        assert writes == (() if write is None else (write,))


def test_in_a_gated_pool_no_registration_is_dropped() -> None:
    case = Case(reservations=(), extenders=SILENT, silent={"x": SilentExtender(3, NOW - 999, NOW, NOW - 999)})

    assert found(case, GATED_POOL) == ()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case((A_BOUND, B_GOES)), id="a member is ungated and unbound"),
        pytest.param(Case((A, B), (in_state(ReservationState.COMMITTED),)), id="none is ungated yet"),
        pytest.param(Case((A_BOUND, B), (in_state(ReservationState.COMMITTED),)), id="one is bound and one is gated"),
        pytest.param(Case((A_GOES, B), (in_state(ReservationState.ROLLING_BACK),)), id="rollback: one to delete"),
        pytest.param(Case((A, B), (in_state(ReservationState.ROLLING_BACK),)), id="rollback: all to touch"),
        pytest.param(
            Case((A_BOUND, B_GOES._replace(reservation=BATCH.name)), (BATCH,)),
            id="a single pod is ungated and unbound",
        ),
        pytest.param(
            Case((ungated("a", owner_kind=None), B_BOUND), (in_state(ReservationState.ROLLING_BACK, "late"),)),
            id="its rollback will fail",
        ),
    ],
)
@pytest.mark.parametrize("terms", [MIXED, GATED_POOL], ids=["mixed", "gated"])
def test_after_loss_of_the_ledger_a_committed_plan_is_proposed_again(case: Case, terms: CommitTerms) -> None:
    write = only(case, terms)

    assert phases(write) == [PROPOSED]
    assert isinstance(write, WriteLedger)
    assert write.relisted == 1


def test_a_plan_listed_again_is_committed_if_its_places_are_free() -> None:
    case = Case(
        (A_GOES, B), (in_state(ReservationState.COMMITTED),), PROPOSED, extenders={"x": ExtenderAck("", 3)}, fresh=11
    )

    assert phases(only(case)) == [COMMITTED]
    assert phases(only(case._replace(extenders={}), GATED_POOL)) == [COMMITTED]


def test_a_plan_listed_again_during_its_rollback_is_not_committed() -> None:
    case = Case((A_GOES, B), (in_state(ReservationState.ROLLING_BACK),), PROPOSED)

    assert found(case) == (DeletePod(A_GOES), TouchPod(B, PLAN.key))


def test_a_plan_that_was_rolled_back_and_removed_is_not_listed_again() -> None:
    touched = frozenset({(PLAN.key, A.uid), (PLAN.key, B.uid)})

    assert only(Case(reservations=(in_state(ReservationState.ROLLING_BACK),), touched=touched)) == DeleteReservation(
        in_state(ReservationState.ROLLING_BACK)
    )


ALONE = GangName("team", "pod.a")


def single(**changed: Any) -> Member:
    """A single pod that is ungated."""
    return ungated("a", gang_request=GangRequest(ALONE), pinned_terms="n1", **changed)


def by_pods(gang: str, *seats: PlannedMember, timeout_s: float = 30.0) -> tuple[CreateReservation]:
    return (CreateReservation("team", PLAN.name, ReservationSpec(gang, seats, timeout_s=timeout_s)),)


SEAT_A, SEAT_B = (PlannedMember(f"uid-{name}", name, node, ((WHOLE, 1),)) for name, node in (("a", "n1"), ("b", "n2")))


@pytest.mark.parametrize(
    ("members", "written"),
    [
        pytest.param(
            (A_BOUND, B_GOES._replace(pinned_terms="n2")),
            by_pods("llm", SEAT_A, SEAT_B),
            id="nodes of bound and of pinned members",
        ),
        pytest.param((A, B_GOES._replace(pinned_terms="n2")), by_pods("llm", SEAT_B), id="without gated members"),
        pytest.param(
            (B_GOES._replace(pinned_terms="n2", gang_request=A.gang_request._replace(timeout_s=90.0)),),
            by_pods("llm", SEAT_B, timeout_s=90.0),
            id="with their timeout",
        ),
        pytest.param((A_BOUND, B_BOUND), (), id="all bound: nothing to recover"),
        pytest.param((single(),), by_pods("", SEAT_A), id="a single pod that its controller recreates"),
        pytest.param((single(owner_kind=None),), by_pods("", SEAT_A), id="a single pod without a controller"),
    ],
)
def test_a_deleted_plan_is_recreated_from_its_pods(members: tuple[Member, ...], written: tuple[Action, ...]) -> None:
    assert found(Case(members, ())) == written


def test_an_existing_plan_is_not_recreated() -> None:
    batch = in_state(ReservationState.FAILED, of=BATCH._replace(name=PLAN.name, namespace="gputopo"))

    assert found(Case((single(owner_kind=None),), (batch,))) == ()
    assert found(Case((single(owner_kind=None, node="n1"),), (batch,))) == (DeleteReservation(batch),)
    assert found(Case((single(),), (in_state(ReservationState.COMMITTED, of=batch),), COMMITTED)) == ()


def test_a_plan_of_an_unknown_gang_is_recreated_from_its_ungated_pods() -> None:
    assert found(Case((B_GOES._replace(pinned_terms="n2"),), (), gone=True)) == by_pods("llm", SEAT_B)


REFUSED = 'pods "a" is forbidden: no deletion here'
STUCK = (
    f"late; the API server refuses deletion of a: {REFUSED}. "
    "The planner retries: allow the deletion, or delete the pods"
)


def refused(what: type, uid: str, since: float = 60.0) -> dict[tuple[type, str], RefusedWrite]:
    return {(what, uid): RefusedWrite(NOW - 30 - since, NOW - 30, REFUSED)}


@pytest.mark.parametrize(
    ("case", "writes"),
    [
        pytest.param(
            Case((A_GOES,), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid, 59)),
            [DeletePod(A_GOES)],
            id="refused for a moment",
        ),
        pytest.param(
            Case((A_GOES, B_GOES), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES), DeletePod(B_GOES)],
            id="other pods are deleted first",
        ),
        pytest.param(
            Case((A_GOES, B), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES), TouchPod(B, PLAN.key)],
            id="other pods are touched first",
        ),
        pytest.param(
            Case((A_GOES,), (in_state(ReservationState.FAILED, STUCK),), refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES)],
            id="retried after it failed",
        ),
        pytest.param(
            Case(
                (A_GOES._replace(reservation=BATCH.name),),
                (in_state(ReservationState.FAILED, of=BATCH),),
                refused=refused(DeletePod, A.uid),
            ),
            [DeletePod(A_GOES._replace(reservation=BATCH.name))],
            id="single pods",
        ),
        pytest.param(
            Case((A_BOUND,), (in_state(ReservationState.FAILED),)),
            [DeletePod(A_BOUND)],
            id="one was deleted: the rest follows",
        ),
        pytest.param(
            Case((A_BOUND,), (in_state(ReservationState.FAILED, of=BATCH),)),
            [DeleteReservation(in_state(ReservationState.FAILED, of=BATCH))],
            id="a single pod was bound after all",
        ),
    ],
)
def test_a_refused_deletion_is_retried(case: Case, writes: list[Action]) -> None:
    assert list(found(case)) == writes


def test_a_rollback_refused_for_long_fails_with_the_api_server_s_message() -> None:
    case = Case((A_GOES, B), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid) | refused(TouchPod, B.uid))

    assert state_of(only(case)) == (ReservationState.FAILED, STUCK)
    assert phases(only(case._replace(reservations=(in_state(ReservationState.FAILED, STUCK),)))) == []


def test_a_refused_ungating_is_reported_with_the_api_server_s_message() -> None:
    case = Case(
        (A, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, age=30, refused=refused(UngateAndPin, A.uid)
    )

    assert state_of(only(case)) == (
        ReservationState.ROLLING_BACK,
        f"a and 1 more not bound within 30 s; the API server refuses ungating of a: {REFUSED}",
    )


def test_a_refusal_is_kept_from_its_first_time_until_the_write_succeeds_or_stops() -> None:
    once = with_refused_write(Observations(), UngateAndPin, "uid-a", "no", 10.0)
    twice = with_refused_write(once, UngateAndPin, "uid-a", "not yet", 40.0)
    found_ledger = ledger()

    assert twice.refused_writes == {(UngateAndPin, "uid-a"): RefusedWrite(10.0, 40.0, "not yet")}
    assert without_refused_write(twice, TouchPod, "uid-a") == twice
    assert without_refused_write(twice, UngateAndPin, "uid-a").refused_writes == {}
    assert observe_ledger(twice, found_ledger, {}, 129.0).refused_writes == twice.refused_writes
    assert observe_ledger(twice, found_ledger, {}, 130.0).refused_writes == {}


def test_observations_of_a_ledger() -> None:
    expected = {"quick": ExtenderAck("team/q", 5), "slow": ExtenderAck("team/s", 4), "before": ExtenderAck("team/q", 4)}
    found_ledger = ledger(entry(PLAN, PROPOSED), generation=5, extenders=expected)
    there = {PLAN.key: PLAN}

    first = observe_ledger(Observations(created=frozenset({PLAN.key, "other"})), found_ledger, there, 10.0)
    second = observe_ledger(first, found_ledger._replace(generation=6), there, 12.0)
    third = observe_ledger(
        second, found_ledger._replace(spec=ledger(entry(PLAN, COMMITTED)).spec, generation=7), there, 13.0
    )

    assert first == Observations(
        ledger_seen_at=10.0,
        since={PLAN.key: PhaseSince(PROPOSED, 10.0, 5)},
        silent_extenders={"slow": SilentExtender(5, 10.0), "before": SilentExtender(5, 10.0, gone_at=10.0)},
    )
    assert second == first
    assert third == Observations(ledger_seen_at=10.0, since={PLAN.key: PhaseSince(COMMITTED, 13.0, 7)})


@pytest.mark.parametrize(
    ("replaced", "extenders"),
    [
        pytest.param(
            {"old": 10.0},
            {"old": ExtenderAck("team/q", 5), "new": ExtenderAck("team/q", 0, replaces=("old",))},
            id="one",
        ),
        pytest.param(
            {},
            {"old": ExtenderAck("team/a", 5), "new": ExtenderAck("team/b", 0, replaces=("old",))},
            id="another pod's",
        ),
        pytest.param({}, {"old": ExtenderAck("", 5), "new": ExtenderAck("", 0, replaces=("old",))}, id="not in pods"),
        pytest.param({}, {"new": ExtenderAck("team/q", 0, replaces=("new", "gone"))}, id="itself, and an absent one"),
        pytest.param(
            {},
            {"a": ExtenderAck("team/q", 5, replaces=("b",)), "b": ExtenderAck("team/q", 5, replaces=("a",))},
            id="each other",
        ),
    ],
)
def test_a_replaced_extender_is_gone_from_when_its_successor_names_it(
    replaced: dict[str, float], extenders: dict[str, ExtenderAck]
) -> None:
    first = observe_ledger(Observations(), ledger(generation=1, extenders=extenders), {}, 10.0)
    second = observe_ledger(first, ledger(generation=2, extenders=extenders), {}, 20.0)

    assert replaced == second.replaced_extenders
    assert replaced == {name: each.gone_at for name, each in second.silent_extenders.items()}


def test_without_a_ledger_observations_stay_empty() -> None:
    assert observe_ledger(Observations(), None, {}, 10.0) == Observations()
