"""What is written next, from what there is."""

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
    ReservationSpec,
    ReservationState,
    ReservationStatus,
    Seat,
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
NOBODY = "no extender is registered that could vouch for it"
AWAITED = "waits for the extender team/x to vouch for it"
PLAN = plan("llm-1", {"a": ("n1", 4), "b": ("n2", 4)})
HOLD = plan("llm-h", held={"n1": 4})
ROOM = ReservationStatus(
    state=ReservationState.HELD,
    reason="does not fit yet; what becomes free on n1 is held: their pods end by 1970-01-01T01:00:00Z",
    nodes=1,
    gpus=4,
    estimate="1970-01-01T01:00:00Z",
)
BATCH = plan("pods-1", {"a": ("n1", 4), "b": ("n2", 4)}, gang="")
MIXED = CommitTerms(settle_s=10.0)
GATED_POOL = CommitTerms(gated=True)


def pod(name: str, **changed: Any) -> Member:
    """Gated, of a ReplicaSet, where nothing else is said."""
    usual = {"uid": f"uid-{name}", "gates": (GATE,), "owner_kind": "apps/ReplicaSet", "namespace": "team"}
    return member(name)._replace(**(usual | changed))


def let_go(name: str, **changed: Any) -> Member:
    return pod(name, gates=(), reservation=PLAN.name, **changed)


A, B = pod("a"), pod("b")
A_GOES, B_GOES = let_go("a"), let_go("b")
A_BOUND, B_BOUND = let_go("a", node="n1"), let_go("b", node="n2")
A_RUNS = let_go("a", node="n1", started=True, phase="Running")


def in_state(
    state: ReservationState | None, reason: str | None = None, of: ReservationUpdate = PLAN
) -> ReservationUpdate:
    return of._replace(status=ReservationStatus(state=state, reason=reason))


class Scene(NamedTuple):
    """What there is, in one line."""

    members: tuple[Member, ...] = (A, B)
    reservations: tuple[ReservationUpdate, ...] = (PLAN,)
    phase: EntryPhase | None = None  # of each of them in the ledger; None: they are not listed
    made: bool = False
    age: float = 0.0  # of the entries, in seconds
    extenders: Mapping[str, ExtenderAck] = MappingProxyType({})
    nodes: frozenset[str] = frozenset({"n1", "n2"})
    crowded: frozenset[str] = frozenset()
    unheld: frozenset[str] = frozenset()
    minimum: int | None = None
    siblings: tuple[Member, ...] = ()
    fresh: float | None = None  # how old the ledger is, made by this planner
    silent: Mapping[str, SilentExtender] = MappingProxyType({})
    gone: bool = False  # nobody knows the gang
    touched: frozenset[tuple[str, str]] = frozenset()
    refused: Mapping[tuple[type, str], RefusedWrite] = MappingProxyType({})
    blind: bool = False


NOW = 1000.0


def found(scene: Scene, terms: CommitTerms = MIXED) -> tuple[Action, ...]:
    """What is to be written."""
    listed = () if scene.phase is None else tuple(entry(each, scene.phase) for each in scene.reservations)
    book = ledger(*listed, generation=3, extenders=scene.extenders)
    book = book._replace(spec=msgspec.structs.replace(book.spec, planner=ME))
    memory = Observations(
        ledger_seen_at=NOW - (1000.0 if scene.fresh is None else scene.fresh),
        is_new_ledger=scene.fresh is not None,
        since={each.uid: PhaseSince(each.phase, NOW - scene.age, 3) for each in listed},
        made=frozenset(each.key for each in scene.reservations) if scene.made else frozenset(),
        silent_extenders=scene.silent,
        touched=scene.touched,
        refused_writes=scene.refused,
    )
    return reconcile(_world(scene, book, memory), terms, "gpus")


def _world(scene: Scene, book: LedgerUpdate | None, memory: Observations) -> ReconcileInput:
    people = {each.uid: each for each in scene.members}
    name = reserved_gang(PLAN)
    assert name is not None
    gang = Gang(name, GangPhase.QUEUED, "", minimum=scene.minimum, placed=(*scene.siblings, *_placed(scene)))
    return ReconcileInput(
        ME,
        book,
        {each.key: each for each in scene.reservations},
        people.get,
        lambda _: None if scene.gone else gang,
        scene.nodes,
        scene.crowded,
        scene.unheld,
        {HOLD.key: 3600.0, "uid-unknown": None},
        memory,
        NOW,
        0.0,
        [each for each in _placed(scene) if each.reservation and each.node is None and not each.is_terminating],
        scene.blind,
    )


def _placed(scene: Scene) -> tuple[Member, ...]:
    return tuple(each for each in scene.members if GATE not in each.gates)


def only(scene: Scene, terms: CommitTerms = MIXED) -> Action:
    (write,) = found(scene, terms)
    return write


def phases(write: Action) -> list[EntryPhase]:
    assert isinstance(write, WriteLedger)
    return [each.phase for each in write.spec.entries]


LOST = "the ledger had lost it, and others have its places since"


def state_of(write: Action) -> tuple[ReservationState | None, str | None]:
    assert isinstance(write, WriteStatus)
    return write.status.state, write.status.reason


def test_without_a_ledger_one_is_made() -> None:
    assert reconcile(_world(Scene(), None, Observations()), MIXED, "gpus") == (CreateLedger("gpus", LedgerSpec(ME, 1)),)


def test_the_ledger_of_another_is_taken_over_before_anything_else() -> None:
    book = ledger(entry(PLAN, COMMITTED))

    assert reconcile(_world(Scene(), book, Observations()), MIXED, "gpus") == (
        WriteLedger(book, LedgerSpec(ME, 2, (entry(PLAN, COMMITTED),))),
    )


@pytest.mark.parametrize(
    ("scene", "terms", "said"),
    [
        pytest.param(Scene(made=True), MIXED, [PROPOSED], id="a plan is proposed"),
        pytest.param(Scene(made=True), GATED_POOL, [COMMITTED], id="where all are gated it is committed at once"),
        pytest.param(Scene(reservations=(HOLD,), made=True), MIXED, [HELD], id="room is held"),
        pytest.param(Scene(made=True, fresh=11), MIXED, [PROPOSED], id="extenders had time to hear of the ledger"),
        pytest.param(
            Scene((A,), (BATCH,), made=True), MIXED, [PROPOSED], id="of single pods some may have gone meanwhile"
        ),
        pytest.param(
            Scene(phase=PROPOSED, extenders={"x": ExtenderAck("", 3)}), MIXED, [COMMITTED], id="vouched for: committed"
        ),
        pytest.param(Scene(phase=PROPOSED), GATED_POOL, [COMMITTED], id="nobody needs to vouch"),
        pytest.param(Scene((A,), phase=PROPOSED), MIXED, [], id="a member has gone: struck"),
        pytest.param(Scene((A, pod("b", is_terminating=True)), phase=PROPOSED), MIXED, [], id="a member goes: struck"),
        pytest.param(Scene((A, pod("b", gates=())), phase=PROPOSED), MIXED, [], id="a gate was taken away: struck"),
        pytest.param(Scene(phase=PROPOSED, crowded=frozenset({PLAN.key})), MIXED, [], id="no room any more: struck"),
        pytest.param(
            Scene(phase=PROPOSED, age=5, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}),
            MIXED,
            [],
            id="blocked for long: struck",
        ),
        pytest.param(Scene(reservations=(HOLD,), phase=HELD, unheld=frozenset({HOLD.key})), MIXED, [], id="not wanted"),
        pytest.param(Scene(reservations=(HOLD,), phase=HELD, gone=True), MIXED, [], id="its gang is gone: struck"),
        pytest.param(
            Scene((A_BOUND, B_BOUND), (in_state(ReservationState.BOUND),), COMMITTED),
            MIXED,
            [],
            id="bound, and said so: struck",
        ),
        pytest.param(Scene((A_BOUND, B_BOUND), (BATCH,), COMMITTED), MIXED, [], id="single pods: struck once bound"),
        pytest.param(Scene((), (BATCH,), COMMITTED), MIXED, [], id="single pods that have all gone"),
        pytest.param(Scene((A_GOES,), (in_state(ReservationState.FAILED),), COMMITTED), MIXED, [], id="failed: struck"),
        pytest.param(
            Scene((), (in_state(ReservationState.ROLLING_BACK),), COMMITTED),
            MIXED,
            [],
            id="taken back and all gone: struck",
        ),
        pytest.param(
            Scene(
                (let_go("a", is_terminating=True, node="n1"),), (in_state(ReservationState.ROLLING_BACK),), COMMITTED
            ),
            MIXED,
            [],
            id="taken back and all ending: struck",
        ),
    ],
)
def test_what_the_ledger_says_next(scene: Scene, terms: CommitTerms, said: list[EntryPhase]) -> None:
    assert phases(only(scene, terms)) == said


@pytest.mark.parametrize(
    ("scene", "terms"),
    [
        pytest.param(
            Scene(made=True, fresh=9, reservations=(in_state(ReservationState.PROPOSED, "planned"),)),
            MIXED,
            id="extenders may not have heard of the ledger, and that is said",
        ),
        pytest.param(Scene(phase=PROPOSED), MIXED, id="nobody has vouched"),
        pytest.param(
            Scene(phase=PROPOSED, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}), MIXED, id="blocked for a moment"
        ),
        pytest.param(
            Scene((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED),
            MIXED,
            id="all are on their way",
        ),
        pytest.param(Scene((A_BOUND, B_BOUND), (in_state(ReservationState.BOUND),)), MIXED, id="a gang that runs"),
        pytest.param(Scene(phase=PROPOSED, blind=True), GATED_POOL, id="what is known may be old"),
        pytest.param(
            Scene(phase=PROPOSED, extenders={"x": ExtenderAck("", 3)}, blind=True),
            MIXED,
            id="all vouch, and what is known may be old",
        ),
        pytest.param(
            Scene((A_GOES, B), (in_state(ReservationState.BOUND),), COMMITTED),
            MIXED,
            id="another planner has seen all bound",
        ),
        pytest.param(
            Scene((A_GOES._replace(owner_kind=None), B_BOUND), (in_state(ReservationState.FAILED),)),
            MIXED,
            id="one that failed",
        ),
        pytest.param(
            Scene((A_GOES, B_BOUND), (in_state(ReservationState.BOUND),)),
            MIXED,
            id="bound, as a planner saw that heard more",
        ),
        pytest.param(
            Scene(
                (A_GOES, B),
                (in_state(ReservationState.COMMITTED),),
                PROPOSED,
                extenders={"x": ExtenderAck("", 3)},
                fresh=9,
            ),
            MIXED,
            id="extenders may not know yet what is listed again",
        ),
        pytest.param(
            Scene((A_GOES, B), (in_state(ReservationState.COMMITTED),), PROPOSED),
            MIXED,
            id="nobody has vouched for it again",
        ),
        pytest.param(Scene(reservations=(HOLD._replace(status=ROOM),), phase=HELD), MIXED, id="room that is held"),
        pytest.param(
            Scene(phase=PROPOSED, age=2, reservations=(in_state(ReservationState.PROPOSED, NOBODY),)),
            MIXED,
            id="it is said for whom it waits",
        ),
    ],
)
def test_nothing_is_to_be_done(scene: Scene, terms: CommitTerms) -> None:
    assert found(scene, terms) == ()


@pytest.mark.parametrize(
    ("scene", "said"),
    [
        pytest.param(
            Scene(made=True, fresh=9),
            (
                ReservationState.PROPOSED,
                "planned; the ledger is new, and extenders have until 1970-01-01T00:00:01Z to see it",
            ),
            id="extenders may not have heard of the ledger",
        ),
        pytest.param(Scene(phase=PROPOSED, age=1), (ReservationState.PROPOSED, NOBODY), id="nobody is there to vouch"),
        pytest.param(
            Scene(phase=PROPOSED, age=1, extenders=SILENT, silent={"x": SilentExtender(3, NOW - 4)}),
            (
                ReservationState.PROPOSED,
                f"{AWAITED}; it is left out at 1970-01-01T00:02:36Z if it stays silent",
            ),
            id="one is awaited",
        ),
        pytest.param(
            Scene(
                phase=PROPOSED,
                age=1,
                reservations=(in_state(ReservationState.PROPOSED, AWAITED),),
                extenders=SILENT,
                silent={"x": SilentExtender(3, NOW - 4, NOW, gone=NOW - 1)},
            ),
            (
                ReservationState.PROPOSED,
                (
                    "waits for the extender team/x, whose pod has ended, to vouch for it; it is left out at "
                    "1970-01-01T00:00:29Z if it stays silent"
                ),
            ),
            id="one has ended",
        ),
        pytest.param(
            Scene(
                phase=PROPOSED,
                age=1,
                extenders={"vm_1": ExtenderAck("", 1), **SILENT, "well": ExtenderAck("", 3)},
                silent={"vm_1": SilentExtender(3, NOW - 4), "x": SilentExtender(3, NOW - 9, gone=NOW)},
            ),
            (
                ReservationState.PROPOSED,
                (
                    "waits for the extender team/x and 1 more to vouch for it; it is left out at "
                    "1970-01-01T00:02:36Z if it stays silent"
                ),
            ),
            id="two are awaited, of which one has ended",
        ),
        pytest.param(
            Scene(phase=PROPOSED, age=1, extenders={"vm_1": ExtenderAck("", 3, (PLAN.key,))}),
            (ReservationState.PROPOSED, "the extender vm_1 (not in a pod) has let in a pod that it conflicts with"),
            id="blocked",
        ),
        pytest.param(
            Scene(phase=COMMITTED), (ReservationState.COMMITTED, None), id="the deadline comes before the first patch"
        ),
        pytest.param(Scene((A_BOUND, B_BOUND), phase=COMMITTED), (ReservationState.BOUND, None), id="all are bound"),
        pytest.param(
            Scene((A_BOUND, let_go("b", phase="Succeeded")), phase=COMMITTED),
            (ReservationState.BOUND, None),
            id="one is done",
        ),
        pytest.param(
            Scene((A_BOUND,), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b went away before all were bound"),
            id="a member was deleted",
        ),
        pytest.param(
            Scene(
                (A_BOUND, let_go("b", bind_error="no volume")),
                (in_state(ReservationState.COMMITTED),),
                COMMITTED,
                age=30,
            ),
            (ReservationState.ROLLING_BACK, "b not bound within 30 s (kube-scheduler: no volume)"),
            id="kube-scheduler could not bind it",
        ),
        pytest.param(
            Scene((A_BOUND, let_go("b", phase="Failed")), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b went away before all were bound"),
            id="a member failed",
        ),
        pytest.param(
            Scene((A, pod("b", gates=())), (in_state(ReservationState.COMMITTED),), COMMITTED),
            (ReservationState.ROLLING_BACK, "b went away before all were bound"),
            id="somebody else took the gate away",
        ),
        pytest.param(
            Scene((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, nodes=frozenset({"n1"})),
            (ReservationState.ROLLING_BACK, "node n2, where b was to go, is gone"),
            id="a node is gone",
        ),
        pytest.param(
            Scene((A_GOES, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, age=30),
            (ReservationState.ROLLING_BACK, "a and 1 more not bound within 30 s"),
            id="too late",
        ),
        pytest.param(
            Scene((A_BOUND, B_GOES._replace(reservation=BATCH.name)), (BATCH,), COMMITTED, age=30),
            (ReservationState.ROLLING_BACK, "b not bound within 30 s"),
            id="a single pod is too late",
        ),
        pytest.param(
            Scene(
                (let_go("a", owner_kind=None), B_BOUND), (in_state(ReservationState.ROLLING_BACK, "late"),), COMMITTED
            ),
            (ReservationState.FAILED, "late; nobody would make a again, so all are left as they are"),
            id="a bare pod is never deleted",
        ),
        pytest.param(
            Scene((A_BOUND, B_BOUND)), (ReservationState.BOUND, None), id="its entry was struck before that was said"
        ),
        pytest.param(
            Scene((A_BOUND, B_GOES), phase=PROPOSED, crowded=frozenset({PLAN.key})),
            (ReservationState.ROLLING_BACK, LOST),
            id="listed again, and there is no room any more",
        ),
        pytest.param(
            Scene((A_GOES, B), phase=PROPOSED, age=5, extenders={"x": ExtenderAck("", 3, (PLAN.key,))}),
            (ReservationState.ROLLING_BACK, LOST),
            id="listed again, and blocked for long",
        ),
        pytest.param(
            Scene((A_GOES, B), phase=PROPOSED, age=30),
            (ReservationState.ROLLING_BACK, "a and 1 more not bound within 30 s"),
            id="listed again, and nobody vouches",
        ),
        pytest.param(
            Scene((A_BOUND,), phase=COMMITTED, minimum=1), (ReservationState.BOUND, None), id="enough without one"
        ),
        pytest.param(
            Scene((A_BOUND,), phase=COMMITTED, minimum=2, siblings=(let_go("c", node="n1"),)),
            (ReservationState.BOUND, None),
            id="enough with the siblings of another plan",
        ),
    ],
)
def test_what_people_are_told_next(scene: Scene, said: tuple[ReservationState, str | None]) -> None:
    assert state_of(only(scene)) == said


def test_the_status_counts() -> None:
    write = only(Scene((A_BOUND, B), phase=COMMITTED))

    assert isinstance(write, WriteStatus)
    assert write.status == ReservationStatus(
        state=ReservationState.COMMITTED, bound=1, members=2, nodes=2, gpus=8, deadline="1970-01-01T00:00:30Z"
    )


def test_the_status_of_room_says_when_it_may_be_free() -> None:
    write = only(Scene(reservations=(HOLD,), phase=HELD))

    assert isinstance(write, WriteStatus)
    assert write.status == ROOM


def test_when_nobody_has_looked_for_room_yet_nothing_is_said_of_it() -> None:
    other = HOLD._replace(key="uid-other")

    assert found(Scene(reservations=(other,), phase=HELD)) == ()


def test_nobody_can_say_when_pods_without_a_deadline_end() -> None:
    unknown = HOLD._replace(key="uid-unknown")

    assert state_of(only(Scene(reservations=(unknown,), phase=HELD))) == (
        ReservationState.HELD,
        "does not fit yet; what becomes free on n1 is held: when their pods end nobody can say",
    )


def test_members_are_let_go_once_the_deadline_is_written() -> None:
    committed = in_state(ReservationState.COMMITTED)

    for blind in (False, True):  # it counts already
        scene = Scene((A, B_GOES), (committed,), COMMITTED, blind=blind)
        assert found(scene) == (UngateAndPin(A, PLAN.spec.seats[0], PLAN.name),)


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(Scene(), id="a predecessor made it and did not list it"),
        pytest.param(Scene(()), id="its members are gone"),
        pytest.param(Scene((), (in_state(ReservationState.BOUND),)), id="a gang that has ended"),
        pytest.param(Scene((A_BOUND, B_BOUND), (BATCH,)), id="single pods that are bound"),
        pytest.param(Scene((A,), made=True), id="a member went before it was listed"),
        pytest.param(Scene(made=True, crowded=frozenset({PLAN.key})), id="no room before it was listed"),
        pytest.param(Scene(made=True, blind=True), id="what it was planned on may be old"),
        pytest.param(Scene(reservations=(HOLD,), made=True, blind=True), id="what room was sought on may be old"),
        pytest.param(
            Scene(reservations=(HOLD,), made=True, unheld=frozenset({HOLD.key})), id="room that nobody needs any more"
        ),
        pytest.param(
            Scene((let_go("a", is_terminating=True),), (in_state(ReservationState.ROLLING_BACK),)),
            id="taken back, its pods still ending",
        ),
    ],
)
def test_what_nothing_hangs_on_is_deleted(scene: Scene) -> None:
    assert only(scene) == DeleteReservation(scene.reservations[0])


def test_an_entry_whose_reservation_is_gone_is_struck() -> None:
    book = ledger(entry(PLAN, COMMITTED))
    book = book._replace(spec=msgspec.structs.replace(book.spec, planner=ME))

    (write,) = reconcile(_world(Scene(reservations=()), book, Observations()), MIXED, "gpus")

    assert phases(write) == []


BACK = in_state(ReservationState.ROLLING_BACK, "late")
JOB = {"owner_kind": "batch/Job", "finalizers": (JOB_TRACKING,)}


@pytest.mark.parametrize(
    ("members", "terms", "writes"),
    [
        pytest.param((A_RUNS, B_GOES), MIXED, [DeletePod(A_RUNS), DeletePod(B_GOES)], id="the gang ends as a whole"),
        pytest.param(
            (A_RUNS, B_GOES),
            MIXED._replace(rollback=Rollback.UNSTARTED),
            [DeletePod(B_GOES)],
            id="those that have not started",
        ),
        pytest.param(
            (A, B_GOES),
            MIXED,
            [DeletePod(B_GOES), TouchPod(A, PLAN.key)],
            id="who was not let go stays, but is touched",
        ),
        pytest.param(
            (let_go("a", **JOB), let_go("b", owner_kind="batch/Job")),
            MIXED,
            [StripFinalizer(let_go("a", **JOB), JOB_TRACKING), DeletePod(let_go("b", owner_kind="batch/Job"))],
            id="a Job does not count them",
        ),
        pytest.param(
            (let_go("a", phase="Succeeded"), B_GOES), MIXED, [DeletePod(B_GOES)], id="who is done has nothing to lose"
        ),
    ],
)
def test_a_plan_is_taken_back(members: tuple[Member, ...], terms: CommitTerms, writes: list[Action]) -> None:
    assert list(found(Scene(members, (BACK,), COMMITTED), terms)) == writes


def test_an_elastic_gang_that_has_enough_loses_only_who_is_not_bound() -> None:
    assert found(Scene((A_BOUND, B_GOES), (BACK,), COMMITTED, minimum=1)) == (DeletePod(B_GOES),)


A_LATE = let_go("a", node="n1", started=True, phase="Running", owner_kind="batch/Job")  # its finalizer came off before


@pytest.mark.parametrize(
    ("scene", "terms"),
    [
        pytest.param(
            Scene((A_LATE, B_BOUND), (BACK,), COMMITTED), MIXED._replace(rollback=Rollback.UNSTARTED), id="unstarted"
        ),
        pytest.param(Scene((A_LATE, B_BOUND), (BACK,), COMMITTED, minimum=1), MIXED, id="an elastic gang"),
        pytest.param(
            Scene(
                (A_LATE._replace(reservation=BATCH.name),),
                (in_state(ReservationState.ROLLING_BACK, of=BATCH),),
                COMMITTED,
            ),
            MIXED,
            id="a single pod",
        ),
    ],
)
def test_a_pod_that_its_job_would_not_count_any_more_is_deleted_though_it_started(
    scene: Scene, terms: CommitTerms
) -> None:
    deleted = [each.member.name for each in found(scene, terms) if isinstance(each, DeletePod)]

    assert deleted == (["a", "b"] if terms.rollback is Rollback.UNSTARTED else ["a"])


def test_a_gang_that_has_vanished_has_no_minimum() -> None:
    assert found(Scene((A_BOUND, B_GOES), (BACK,), COMMITTED, gone=True)) == (DeletePod(A_BOUND), DeletePod(B_GOES))
    assert state_of(only(Scene((A_BOUND,), (in_state(ReservationState.COMMITTED),), COMMITTED, gone=True)))[0] is (
        ReservationState.ROLLING_BACK
    )


def test_of_single_pods_only_those_that_are_late_are_deleted_and_bare_ones_are_left() -> None:
    batch = in_state(ReservationState.ROLLING_BACK, of=BATCH)
    late = let_go("b")._replace(reservation=BATCH.name)
    bare = late._replace(owner_kind=None)

    assert found(Scene((A_BOUND, late), (batch,), COMMITTED)) == (DeletePod(late),)
    assert phases(only(Scene((A_BOUND, bare), (batch,), COMMITTED))) == []


@pytest.mark.parametrize(
    ("silence", "write"),
    [
        pytest.param(SilentExtender(3, NOW - 4), None, id="it may be slow"),
        pytest.param(SilentExtender(3, NOW - 5), ProbeExtenderPod("x", "team/x"), id="its pod is asked after"),
        pytest.param(SilentExtender(3, NOW - 8, asked=NOW - 4), None, id="it was just asked after"),
        pytest.param(SilentExtender(3, NOW - 60, gone=NOW - 29), None, id="what it let in may be on its way"),
        pytest.param(SilentExtender(3, NOW - 60, gone=NOW - 30), DropRegistration, id="its pod has ended for long"),
        pytest.param(SilentExtender(3, NOW - 160, asked=NOW), DropRegistration, id="nobody has heard of it for long"),
    ],
)
def test_what_becomes_of_an_extender_that_is_silent(silence: SilentExtender, write: Any) -> None:
    scene = Scene(
        reservations=(in_state(ReservationState.PROPOSED),),
        phase=PROPOSED,
        age=1,
        extenders=SILENT,
        silent={"x": silence},
    )
    writes = tuple(each for each in found(scene) if not isinstance(each, WriteStatus))  # who is told of that

    if write is DropRegistration:
        (drop,) = writes
        assert isinstance(drop, DropRegistration)
        assert drop.status == LedgerStatus({})
    else:
        assert writes == (() if write is None else (write,))


def test_where_nobody_vouches_nobody_is_struck() -> None:
    scene = Scene(reservations=(), extenders=SILENT, silent={"x": SilentExtender(3, NOW - 999, NOW, NOW - 999)})

    assert found(scene, GATED_POOL) == ()


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(Scene((A_BOUND, B_GOES)), id="a member is on its way"),
        pytest.param(Scene((A, B), (in_state(ReservationState.COMMITTED),)), id="none was let go yet"),
        pytest.param(Scene((A_BOUND, B), (in_state(ReservationState.COMMITTED),)), id="one is bound and one is gated"),
        pytest.param(Scene((A_GOES, B), (in_state(ReservationState.ROLLING_BACK),)), id="one is to be deleted"),
        pytest.param(Scene((A, B), (in_state(ReservationState.ROLLING_BACK),)), id="they are to be touched"),
        pytest.param(
            Scene((A_BOUND, B_GOES._replace(reservation=BATCH.name)), (BATCH,)), id="a single pod is on its way"
        ),
        pytest.param(
            Scene((let_go("a", owner_kind=None), B_BOUND), (in_state(ReservationState.ROLLING_BACK, "late"),)),
            id="it will fail",
        ),
    ],
)
@pytest.mark.parametrize("terms", [MIXED, GATED_POOL], ids=["mixed", "gated"])
def test_what_counted_when_the_ledger_was_lost_is_proposed_again(scene: Scene, terms: CommitTerms) -> None:
    write = only(scene, terms)

    assert phases(write) == [PROPOSED]
    assert isinstance(write, WriteLedger)
    assert write.again == 1


def test_what_is_listed_again_is_committed_if_its_places_are_free() -> None:
    scene = Scene(
        (A_GOES, B), (in_state(ReservationState.COMMITTED),), PROPOSED, extenders={"x": ExtenderAck("", 3)}, fresh=11
    )

    assert phases(only(scene)) == [COMMITTED]
    assert phases(only(scene._replace(extenders={}), GATED_POOL)) == [COMMITTED]


def test_what_is_listed_again_while_it_is_taken_back_is_not_committed() -> None:
    scene = Scene((A_GOES, B), (in_state(ReservationState.ROLLING_BACK),), PROPOSED)

    assert found(scene) == (DeletePod(A_GOES), TouchPod(B, PLAN.key))


def test_what_was_touched_and_struck_is_not_listed_again() -> None:
    touched = frozenset({(PLAN.key, A.uid), (PLAN.key, B.uid)})

    assert only(Scene(reservations=(in_state(ReservationState.ROLLING_BACK),), touched=touched)) == DeleteReservation(
        in_state(ReservationState.ROLLING_BACK)
    )


ALONE = GangName("team", "pod.a")


def single(**changed: Any) -> Member:
    """A single pod that was let go."""
    return let_go("a", gang_request=GangRequest(ALONE), pinned_terms="n1", **changed)


def by_pods(gang: str, *seats: Seat, timeout_s: float = 30.0) -> tuple[CreateReservation]:
    return (CreateReservation("team", PLAN.name, ReservationSpec(gang, seats, timeout_s=timeout_s)),)


SEAT_A, SEAT_B = (Seat(f"uid-{name}", name, node, ((WHOLE, 1),)) for name, node in (("a", "n1"), ("b", "n2")))


@pytest.mark.parametrize(
    ("members", "written"),
    [
        pytest.param(
            (A_BOUND, B_GOES._replace(pinned_terms="n2")), by_pods("llm", SEAT_A, SEAT_B), id="where they are, or go"
        ),
        pytest.param((A, B_GOES._replace(pinned_terms="n2")), by_pods("llm", SEAT_B), id="who is gated is not of it"),
        pytest.param(
            (B_GOES._replace(pinned_terms="n2", gang_request=A.gang_request._replace(timeout_s=90.0)),),
            by_pods("llm", SEAT_B, timeout_s=90.0),
            id="with their timeout",
        ),
        pytest.param((A_BOUND, B_BOUND), (), id="bound, so nothing is under way"),
        pytest.param((single(),), by_pods("", SEAT_A), id="a single pod that is made again"),
        pytest.param((single(owner_kind=None),), (), id="a single pod that nobody would make again"),
    ],
)
def test_a_plan_that_somebody_deleted_is_written_again_as_its_pods_say(
    members: tuple[Member, ...], written: tuple[Action, ...]
) -> None:
    assert found(Scene(members, ())) == written


def test_a_plan_that_is_there_is_not_written_again() -> None:
    batch = in_state(ReservationState.FAILED, of=BATCH._replace(name=PLAN.name, namespace="gputopo"))

    assert found(Scene((single(owner_kind=None),), (batch,))) == (DeleteReservation(batch),)
    assert found(Scene((single(),), (in_state(ReservationState.COMMITTED, of=batch),), COMMITTED)) == ()


def test_of_a_gang_that_nobody_knows_those_on_their_way_are_its_plan() -> None:
    assert found(Scene((B_GOES._replace(pinned_terms="n2"),), (), gone=True)) == by_pods("llm", SEAT_B)


REFUSED = 'pods "a" is forbidden: no deletion here'
STUCK = (
    f"late; the API server does not let a be deleted: {REFUSED}. "
    "It is tried again: allow the planner that, or delete them"
)


def refused(what: type, uid: str, since: float = 60.0) -> dict[tuple[type, str], RefusedWrite]:
    return {(what, uid): RefusedWrite(NOW - 30 - since, NOW - 30, REFUSED)}


@pytest.mark.parametrize(
    ("scene", "writes"),
    [
        pytest.param(
            Scene((A_GOES,), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid, 59)),
            [DeletePod(A_GOES)],
            id="it may be a moment",
        ),
        pytest.param(
            Scene((A_GOES, B_GOES), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES), DeletePod(B_GOES)],
            id="others go first",
        ),
        pytest.param(
            Scene((A_GOES, B), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES), TouchPod(B, PLAN.key)],
            id="others are touched first",
        ),
        pytest.param(
            Scene((A_GOES,), (in_state(ReservationState.FAILED, STUCK),), refused=refused(DeletePod, A.uid)),
            [DeletePod(A_GOES)],
            id="when it failed it is still tried",
        ),
        pytest.param(
            Scene(
                (A_GOES._replace(reservation=BATCH.name),),
                (in_state(ReservationState.FAILED, of=BATCH),),
                refused=refused(DeletePod, A.uid),
            ),
            [DeletePod(A_GOES._replace(reservation=BATCH.name))],
            id="single pods as well",
        ),
        pytest.param(
            Scene((A_BOUND,), (in_state(ReservationState.FAILED),)),
            [DeletePod(A_BOUND)],
            id="one was deleted, and half a gang does not run on",
        ),
        pytest.param(
            Scene((A_BOUND,), (in_state(ReservationState.FAILED, of=BATCH),)),
            [DeleteReservation(in_state(ReservationState.FAILED, of=BATCH))],
            id="a single pod that was bound after all",
        ),
    ],
)
def test_a_deletion_that_is_refused_is_tried_again(scene: Scene, writes: list[Action]) -> None:
    assert list(found(scene)) == writes


def test_a_gang_whose_deletion_is_refused_for_long_fails_in_the_words_of_the_api_server() -> None:
    scene = Scene((A_GOES, B), (BACK,), COMMITTED, refused=refused(DeletePod, A.uid) | refused(TouchPod, B.uid))

    assert state_of(only(scene)) == (ReservationState.FAILED, STUCK)
    assert phases(only(scene._replace(reservations=(in_state(ReservationState.FAILED, STUCK),)))) == []


def test_why_a_member_was_not_let_go_is_said_in_the_words_of_the_api_server() -> None:
    scene = Scene(
        (A, B_GOES), (in_state(ReservationState.COMMITTED),), COMMITTED, age=30, refused=refused(UngateAndPin, A.uid)
    )

    assert state_of(only(scene)) == (
        ReservationState.ROLLING_BACK,
        f"a and 1 more not bound within 30 s; the API server does not let a go: {REFUSED}",
    )


def test_a_refusal_is_remembered_from_its_first_time_until_the_write_is_done_or_not_tried_any_more() -> None:
    once = with_refused_write(Observations(), UngateAndPin, "uid-a", "no", 10.0)
    twice = with_refused_write(once, UngateAndPin, "uid-a", "not yet", 40.0)
    book = ledger()

    assert twice.refused_writes == {(UngateAndPin, "uid-a"): RefusedWrite(10.0, 40.0, "not yet")}
    assert without_refused_write(twice, TouchPod, "uid-a") == twice
    assert without_refused_write(twice, UngateAndPin, "uid-a").refused_writes == {}
    assert observe_ledger(twice, book, {}, 129.0).refused_writes == twice.refused_writes
    assert observe_ledger(twice, book, {}, 130.0).refused_writes == {}


def test_what_is_remembered() -> None:
    said = {"quick": ExtenderAck("team/q", 5), "slow": ExtenderAck("team/s", 4), "before": ExtenderAck("team/q", 4)}
    book = ledger(entry(PLAN, PROPOSED), generation=5, extenders=said)
    there = {PLAN.key: PLAN}

    first = observe_ledger(Observations(made=frozenset({PLAN.key, "other"})), book, there, 10.0)
    second = observe_ledger(first, book._replace(generation=6), there, 12.0)
    third = observe_ledger(second, book._replace(spec=ledger(entry(PLAN, COMMITTED)).spec, generation=7), there, 13.0)

    assert first == Observations(
        ledger_seen_at=10.0,
        since={PLAN.key: PhaseSince(PROPOSED, 10.0, 5)},
        silent_extenders={"slow": SilentExtender(5, 10.0), "before": SilentExtender(5, 10.0, gone=10.0)},
    )
    assert second == first
    assert third == Observations(ledger_seen_at=10.0, since={PLAN.key: PhaseSince(COMMITTED, 13.0, 7)})


def test_without_a_ledger_nothing_is_remembered() -> None:
    assert observe_ledger(Observations(), None, {}, 10.0) == Observations()
