"""What a planner knows when its watches had a gap: a list says what there is, and names nobody as gone."""

from __future__ import annotations

import pytest

from gputopo.labels.reservations import POOL, ReservationSpec, ReservationStatus, Seat, State, spec_hash
from scheduler_core.gangs.writes import CreateReservation, DeleteReservation, LetGo, WriteStatus
from scheduler_core.planner.seen import Candidate
from scheduler_core.planner.view import Told, View
from scheduler_core.policy import Policy
from scheduler_core.sightings import Batch, ReservationSeen
from tests.scheduler_core.gangs.members import member

SPEC = ReservationSpec("llm")
BOUND = ReservationStatus(State.BOUND)


@pytest.fixture
def view() -> View:
    return View(Policy(), POOL, "me")


def seen(uid: str, version: int = 1, status: ReservationStatus = ReservationStatus()) -> ReservationSeen:  # noqa: B008
    return ReservationSeen(uid, "team", f"llm-{uid}", SPEC, spec_hash(SPEC), status, str(version))


def made(view: View, uid: str, version: int = 1) -> ReservationSeen:
    """The API server has answered that it is there."""
    what = CreateReservation("team", f"llm-{uid}", SPEC)
    view.writes(what)
    view.wrote(what, Told(uid, str(version)), 0.0)
    return view.reservations[uid]


def listed(view: View, *there: ReservationSeen) -> None:
    view.take(Batch(ReservationSeen, there, complete=True), 0.0)


def known(view: View) -> dict[str, str]:
    """Reservations, with their versions."""
    return {uid: each.version for uid, each in view.reservations.items()}


def test_a_list_that_began_before_a_reservation_was_made_does_not_undo_it(view: View) -> None:
    made(view, "a")

    listed(view)
    assert known(view) == {"a": "1"}
    listed(view, seen("a"))
    assert known(view) == {"a": "1"}


def test_a_reservation_that_two_lists_in_a_row_do_not_show_is_gone(view: View) -> None:
    made(view, "a")

    listed(view)
    listed(view)
    assert known(view) == {}


def test_a_reservation_that_was_shown_is_gone_by_the_first_list_without_it(view: View) -> None:
    made(view, "a")
    listed(view, seen("a"))

    listed(view)
    assert known(view) == {}


def test_a_reservation_that_was_deleted_is_not_back_by_a_list_that_began_before(view: View) -> None:
    view.wrote(DeleteReservation(made(view, "a")), None, 0.0)

    listed(view, seen("a"))
    assert known(view) == {}
    view.take(Batch(ReservationSeen, (seen("a", 2),)), 0.0)
    assert known(view) == {}


def test_a_status_that_was_written_is_not_undone_by_a_list_that_began_before(view: View) -> None:
    listed(view, seen("a"))
    view.wrote(WriteStatus(view.reservations["a"], BOUND), Told("a", "5"), 0.0)

    listed(view, seen("a", 4))
    assert view.reservations["a"] == seen("a", 5, BOUND)
    listed(view, seen("a", 6))
    assert view.reservations["a"] == seen("a", 6)


def kept(view: View) -> int:
    """Things of which something is remembered, whatever it is."""
    return sum(len(each) for each in vars(view).values() if isinstance(each, dict | set))


def attempt(view: View, number: int, *, gap: bool) -> None:
    """A pod is let go, its reservation bound and deleted. ``gap``: no watch shows any of that."""
    pod, uid, version = member(f"w-{number}", version=str(10 * number)), f"plan{number}", 10 * number
    view.take(Batch(Candidate, (Candidate(pod.uid, None, pod),)), 0.0)
    of = made(view, uid, version + 1)
    view.wrote(LetGo(pod, Seat(pod.uid, pod.name, "n0"), of.name), Told(pod.uid, str(version + 2)), 0.0)
    view.wrote(WriteStatus(of, BOUND), Told(uid, str(version + 3)), 0.0)
    view.wrote(DeleteReservation(view.reservations[uid]), None, 0.0)
    if gap:
        view.take(Batch(Candidate, (), complete=True), 0.0)
        listed(view)
    else:
        view.take(Batch(Candidate, (), (pod.uid,)), 0.0)
        view.take(Batch(ReservationSeen, (), (uid,)), 0.0)


@pytest.mark.parametrize("gap", [True, False], ids=["lists", "events"])
def test_nothing_is_kept_of_what_is_gone(view: View, *, gap: bool) -> None:
    for number in range(1, 50):
        attempt(view, number, gap=gap)
    if gap:
        listed(view)  # the list after that in which the last was missed

    assert (kept(view), known(view)) == (0, {})


def test_a_reservation_whose_end_a_watch_has_shown_before_the_answer_is_not_waited_for(view: View) -> None:
    of = made(view, "a")
    view.take(Batch(ReservationSeen, (), ("a",)), 0.0)

    view.wrote(DeleteReservation(of), None, 0.0)

    assert kept(view) == 0
