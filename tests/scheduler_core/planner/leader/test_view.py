"""The view when watches lag or had a gap: a list does not name removed objects."""

from __future__ import annotations

from typing import Any

import pytest

from gputopo.crd.reservations import (
    POOL,
    PlannedMember,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
    spec_hash,
)
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode, FullNodeSpec
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.commit.actions import (
    CreateReservation,
    DeletePod,
    DeleteReservation,
    ReleasePod,
    StripFinalizer,
    UngateAndPin,
    WriteStatus,
)
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_source import PlannerPod, WatchedPod
from scheduler_core.planner.leader.view import PlannerView, SeenNodes, WriteResponse
from scheduler_core.planner.packing.view_changes import ViewReader
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES
from tests.scheduler_core.builders import record
from tests.scheduler_core.fake_scheduler import pod_update as pod_seen
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import ledger, plan

SPEC = ReservationSpec("llm")
BOUND = ReservationStatus(ReservationState.BOUND)


@pytest.fixture
def view() -> PlannerView:
    return PlannerView(Policy(), POOL, "me")


def seen(uid: str, version: int = 1, status: ReservationStatus = ReservationStatus()) -> ReservationUpdate:  # noqa: B008
    return ReservationUpdate(uid, "team", f"llm-{uid}", SPEC, spec_hash(SPEC), status, str(version))


def made(view: PlannerView, uid: str, version: int = 1) -> ReservationUpdate:
    """The API server answers the create of a reservation."""
    what = CreateReservation("team", f"llm-{uid}", SPEC)
    view.mark_writing(what)
    view.apply_write(what, WriteResponse(uid, str(version)), 0.0)
    return view.reservations[uid]


def listed(view: PlannerView, *there: ReservationUpdate) -> None:
    view.apply_batch(Batch(ReservationUpdate, there, is_full_list=True), 0.0)


def known(view: PlannerView) -> dict[str, str]:
    """Return the versions of the reservations, by UID."""
    return {uid: each.version for uid, each in view.reservations.items()}


def test_a_list_from_before_a_create_does_not_undo_it(view: PlannerView) -> None:
    made(view, "a")

    listed(view)
    assert known(view) == {"a": "1"}
    listed(view, seen("a"))
    assert known(view) == {"a": "1"}


def test_a_created_reservation_is_gone_after_two_lists_without_it(view: PlannerView) -> None:
    made(view, "a")

    listed(view)
    listed(view)
    assert known(view) == {}


def test_a_shown_reservation_is_gone_after_one_list_without_it(view: PlannerView) -> None:
    made(view, "a")
    listed(view, seen("a"))

    listed(view)
    assert known(view) == {}


def test_a_list_from_before_a_delete_does_not_undo_it(view: PlannerView) -> None:
    view.apply_write(DeleteReservation(made(view, "a")), None, 0.0)

    listed(view, seen("a"))
    assert known(view) == {}
    view.apply_batch(Batch(ReservationUpdate, (seen("a", 2),)), 0.0)
    assert known(view) == {}


def test_a_list_from_before_a_status_write_does_not_undo_it(view: PlannerView) -> None:
    listed(view, seen("a"))
    view.apply_write(WriteStatus(view.reservations["a"], BOUND), WriteResponse("a", "5"), 0.0)

    listed(view, seen("a", 4))
    assert view.reservations["a"] == seen("a", 5, BOUND)
    listed(view, seen("a", 6))
    assert view.reservations["a"] == seen("a", 6)


def kept(view: PlannerView) -> int:
    """Return the number of entries in all collections of the view and its own writes."""
    fields = [*vars(view).values(), *vars(vars(view)["_own_writes"]).values()]
    return sum(len(each) for each in fields if isinstance(each, dict | set))


def attempt(view: PlannerView, number: int, *, gap: bool) -> None:
    """Ungate a pod, bind and delete its reservation. ``gap``: no watch shows any of that."""
    pod, uid, version = member(f"w-{number}", version=str(10 * number)), f"plan{number}", 10 * number
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 0.0)
    of = made(view, uid, version + 1)
    view.apply_write(
        UngateAndPin(pod, PlannedMember(pod.uid, pod.name, "n0"), of.name),
        WriteResponse(pod.uid, str(version + 2)),
        0.0,
    )
    view.apply_write(WriteStatus(of, BOUND), WriteResponse(uid, str(version + 3)), 0.0)
    view.apply_write(DeleteReservation(view.reservations[uid]), None, 0.0)
    if gap:
        view.apply_batch(Batch(PlannerPod, (), is_full_list=True), 0.0)
        listed(view)
    else:
        view.apply_batch(Batch(PlannerPod, (), (pod.uid,)), 0.0)
        view.apply_batch(Batch(ReservationUpdate, (), (uid,)), 0.0)


@pytest.mark.parametrize("gap", [True, False], ids=["lists", "events"])
def test_nothing_is_kept_of_removed_objects(view: PlannerView, *, gap: bool) -> None:
    for number in range(1, 50):
        attempt(view, number, gap=gap)
    if gap:
        listed(view)  # the last reservation is missed for the second time

    assert (kept(view), known(view)) == (0, {})


def test_a_deletion_that_a_watch_delivered_first_is_not_kept(view: PlannerView) -> None:
    of = made(view, "a")
    view.apply_batch(Batch(ReservationUpdate, (), ("a",)), 0.0)

    view.apply_write(DeleteReservation(of), None, 0.0)

    assert kept(view) == 0


def test_the_oldest_write_that_no_watch_has_shown(view: PlannerView) -> None:
    pod = member("w-1", version="10")
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 0.0)
    of = made(view, "a", 11)
    assert view.oldest_unseen_write_at() is None

    view.apply_write(WriteStatus(of, BOUND), WriteResponse("a", "13"), 7.0)
    view.apply_write(
        UngateAndPin(pod, PlannedMember(pod.uid, pod.name, "n0"), of.name), WriteResponse(pod.uid, "12"), 8.0
    )
    assert view.oldest_unseen_write_at() == 7.0
    view.apply_batch(Batch(ReservationUpdate, (seen("a", 13, BOUND),)), 9.0)
    assert view.oldest_unseen_write_at() == 8.0
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 9.5)  # the pod before the write
    assert view.oldest_unseen_write_at() == 8.0
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod._replace(version="12")),)), 9.5)
    assert view.oldest_unseen_write_at() is None


def test_a_write_of_a_pod_that_left_its_gang_is_forgotten(view: PlannerView) -> None:
    pod = member("w-1", version="10")
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 0.0)
    view.apply_write(ReleasePod(pod, "no place", "gate-timeout"), WriteResponse(pod.uid, "12"), 8.0)

    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, None),)), 9.0)

    assert view.oldest_unseen_write_at() is None


def test_only_the_last_write_of_an_object_counts(view: PlannerView) -> None:
    first, second = made(view, "a"), made(view, "b")
    for of, version, at in ((first, 3, 1.0), (second, 4, 2.0), (first, 5, 3.0)):
        view.apply_write(WriteStatus(of, BOUND), WriteResponse(of.key, str(version)), at)

    assert view.oldest_unseen_write_at() == 2.0


def test_a_reservation_that_ended_before_its_create_was_answered_is_gone(view: PlannerView) -> None:
    what = CreateReservation("team", "llm-a", SPEC)
    view.mark_writing(what)
    view.apply_batch(Batch(ReservationUpdate, (seen("a"),)), 0.0)
    view.apply_batch(Batch(ReservationUpdate, (), ("a",)), 0.0)

    view.apply_write(what, WriteResponse("a", "1"), 0.0)

    assert (known(view), kept(view)) == ({}, 0)


def test_an_answer_older_than_a_watch_event_changes_nothing(view: PlannerView) -> None:
    pod = member("w-1", version="20")
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 0.0)
    listed(view, seen("a", 20))

    view.apply_write(WriteStatus(view.reservations["a"], BOUND), WriteResponse("a", "19"), 0.0)
    touched = view.apply_write(DeletePod(pod), WriteResponse(pod.uid, "19"), 0.0)

    assert (view.reservations["a"], view.gang_members.get_member(pod.uid), touched) == (seen("a", 20), pod, frozenset())


def test_a_pod_write_is_visible_before_any_watch_shows_it(view: PlannerView) -> None:
    pod = member("w-1", version="10", finalizers=("batch.kubernetes.io/job-tracking", "example.com/own"))
    view.apply_batch(Batch(PlannerPod, (PlannerPod(pod.uid, None, pod),)), 0.0)

    view.apply_write(StripFinalizer(pod, "batch.kubernetes.io/job-tracking"), WriteResponse(pod.uid, "11"), 0.0)
    assert view.gang_members.get_member(pod.uid) == pod._replace(version="11", finalizers=("example.com/own",))
    view.apply_write(DeletePod(pod), None, 0.0)
    after = view.gang_members.get_member(pod.uid)
    assert after is not None
    assert after.is_terminating


def test_an_older_event_does_not_undo_a_ledger(view: PlannerView) -> None:
    view.apply_batch(Batch(LedgerUpdate, (ledger()._replace(version="7"),)), 0.0)
    view.apply_batch(Batch(LedgerUpdate, (ledger()._replace(version="6"),)), 0.0)

    assert view.ledger is not None
    assert view.ledger.version == "7"
    view.apply_ledger(None, 0.0)
    assert view.ledger is None


UNGATED = member("w-1", gates=(), reservation="llm-a", pinned_terms="n1")
CLAIMING = PlannerPod(UNGATED.uid, pod_seen("w-1", 1, uid=UNGATED.uid, claim=("llm-a", "n1")), UNGATED)
LISTS = plan("llm-a")._replace(
    key="a",
    version="1",
    spec=ReservationSpec("llm", (PlannedMember(UNGATED.uid, "w-1", "n1", (("nvidia.com/gpu", 1),)),)),
)


@pytest.mark.parametrize(
    ("guarded", "before", "after", "coming"),
    [
        pytest.param(False, (), (), (), id="only the pod acknowledge so"),
        pytest.param(False, (LISTS,), (LISTS,), (UNGATED,), id="a reservation lists it"),
        pytest.param(False, (LISTS,), (), (UNGATED,), id="a reservation listed it before"),
        pytest.param(True, (), (), (UNGATED,), id="only planners can write the annotation"),
    ],
)
def test_a_pod_cannot_claim_to_be_ungated(
    guarded: bool,
    before: tuple[ReservationUpdate, ...],
    after: tuple[ReservationUpdate, ...],
    coming: tuple[Member, ...],
) -> None:
    view = PlannerView(Policy(), POOL, "me", guarded=guarded)
    view.apply_batch(Batch(PlannerPod, (CLAIMING,), is_full_list=True), 0.0)
    listed(view, *before)
    listed(view, *after)

    assert view.reconcile_input(0.0, 0.0).awaiting_binding == coming


def test_changes_name_all_nodes_that_differ_from_the_earlier_view(view: PlannerView) -> None:
    before: SeenNodes | None = None

    def show(*names: str, labels: dict[str, str] | None = None, gone: tuple[str, ...] = (), full: bool = False) -> None:
        rules = {name: FullNode(metadata=Metadata(name=name, labels=labels or {})) for name in names}
        updates = tuple(NodeUpdate(name, NodeFacts(None, False, ()), rules[name]) for name in names)
        view.apply_batch(Batch(NodeUpdate, updates, gone, full), 0.0)

    def changed() -> set[str]:
        nonlocal before
        nodes, before = view.node_view(BUILT_IN, before)
        assert nodes.changes is not None
        return {"any"} if nodes.changes.before is None else set(nodes.changes.since)

    show("a", "b", "c", full=True)
    assert changed() == {"any"}

    assert changed() == set()
    show("a", labels={"rack": "x"})
    assert changed() == {"a"}
    show("d", gone=("b",))
    assert changed() == {"b", "d"}
    show("a", full=True)
    assert changed() == {"a", "c", "d"}


def pods(*updates: WatchedPod, removed: tuple[str, ...] = ()) -> Batch[Any]:
    return Batch(PlannerPod, updates, removed)


def test_a_change_of_pods_without_gpus_alone_reaches_the_next_plan(view: PlannerView) -> None:
    """The snapshot stays as it is; the same holds for a cordon."""
    machine = record("n1", MACHINES["hgx_h100"]()).machine
    view.apply_batch(Batch(NodeUpdate, (NodeUpdate("n1", machine, FullNode(Metadata("n1"))),)), 0.0)
    pod = PodLoad("uid-web", "n1", NodeLoad(2000, pods=1))
    reader, state = ViewReader(), view.plan_state(0.0)
    first, seen = view.node_view(BUILT_IN)
    reader.take_changed(first)

    view.apply_batch(pods(pod), 0.0)
    full, seen = view.node_view(BUILT_IN, seen)
    view.apply_batch(pods(removed=(pod.key,)), 0.0)
    after, seen = view.node_view(BUILT_IN, seen)
    cordoned = FullNode(Metadata("n1"), spec=FullNodeSpec(unschedulable=True))
    reader.see_view(full)
    assert (full.others["n1"], reader.take_changed(after)) == (pod.load, {"n1"})
    assert reader.take_changed(after) == set()
    assert ("n1" in after.others, view.plan_state(0.0) != state) == (False, True)

    state = view.plan_state(0.0)
    view.apply_batch(Batch(NodeUpdate, (NodeUpdate("n1", machine, cordoned),)), 0.0)

    assert reader.take_changed(view.node_view(BUILT_IN, seen)[0]) == {"n1"}
    other = view.plan_state(0.0)
    assert (other != state, other.generation) == (True, state.generation)
    view.apply_batch(Batch(NodeUpdate, (NodeUpdate("n1", machine, cordoned),)), 0.0)
    assert view.plan_state(0.0) == other


def test_a_pod_that_uses_gpus_no_more_is_counted_once(view: PlannerView) -> None:
    """And so is a launcher, which is a member without GPUs."""
    load = PodLoad("uid-w", "n1", NodeLoad(2000, pods=1))
    with_gpus = PlannerPod("uid-w", pod_seen("w", 1, uid="uid-w")._replace(node="n1"), None)
    launcher = PlannerPod("uid-w", None, member("w")._replace(uid="uid-w", node="n1"), load=load)
    cases: tuple[tuple[WatchedPod, dict[str, NodeLoad], int, int], ...] = (
        (with_gpus, {}, 1, 0),
        (load, {"n1": load.load}, 0, 0),
        (launcher, {"n1": load.load}, 0, 1),
        (load, {"n1": load.load}, 0, 0),
    )
    for update, loads, number, members in cases:
        view.apply_batch(pods(update), 0.0)
        assert (dict(view.loads.by_node), len(view.cache.pods)) == (loads, number)
        assert len(list(view.gang_members.all_gangs())) == members
    view.apply_batch(pods(removed=("uid-w",)), 0.0)
    assert dict(view.loads.by_node) == {}
