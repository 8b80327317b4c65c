"""Recovery of plans that were deleted while their members were ungated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.commit.recovery import plan_keys, recreate_deleted
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import Gang, gang_of
from scheduler_core.planner.gang.member import GangName, Member
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import plan


def ungated_pod(name: str, namespace: str) -> Member:
    """A single pod that the batch pods-1 ungated."""
    made = member(name, gang=GangName(namespace, f"pod.uid-{name}"), namespace=namespace)
    return made._replace(gates=(), pinned_terms="n1", reservation="pods-1", owner_kind="batch/Job")


def batch(namespace: str, *pods: str) -> ReservationUpdate:
    """The batch pods-1 in a namespace, as written first or as recreated."""
    return plan("pods-1", dict.fromkeys(pods, ("n1", 1)), gang="")._replace(namespace=namespace, key=f"in-{namespace}")


A, B = ungated_pod("a", "one"), ungated_pod("b", "two")


def inputs_of(
    reservations: Iterable[ReservationUpdate],
    members: Iterable[Member],
    awaiting: Iterable[Member],
    gang: Gang | None = None,
) -> ReconcileInput:
    """Return the input of a planner without a ledger. ``awaiting``: members that wait to be bound."""
    by_uid = {each.uid: each for each in members}
    return ReconcileInput(
        identity="me",
        ledger=None,
        reservations={each.key: each for each in reservations},
        member=by_uid.get,
        gang=lambda _: gang,
        nodes=(),
        no_longer_fitting=(),
        unwanted_holds=(),
        estimates={},
        observations=Observations(),
        now=0.0,
        wall_time=0.0,
        awaiting_binding=tuple(awaiting),
    )


def recreated(
    reservations: Sequence[ReservationUpdate], awaiting: Sequence[Member] = (A, B)
) -> list[tuple[str, str, str]]:
    """Return namespace, name and first pod of each recreated plan."""
    inputs = inputs_of(reservations, awaiting, awaiting)
    again = list(recreate_deleted(inputs))
    assert (
        list(recreate_deleted(inputs._replace(plans={each for seen in reservations for each in plan_keys(seen)})))
        == again
    )
    return [(each.namespace, each.name, each.spec.seats[0].name) for each in again]


@pytest.mark.parametrize(
    ("reservations", "again"),
    [
        pytest.param((), [("one", "pods-1", "a"), ("two", "pods-1", "b")], id="deleted completely"),
        pytest.param((batch("gputopo", "a", "b"),), [], id="exists"),
        pytest.param((batch("one", "a"),), [("two", "pods-1", "b")], id="recreated for one namespace"),
        pytest.param((batch("one", "a"), batch("two", "b")), [], id="recreated for both"),
        pytest.param(
            (plan("pods-1", {"a": ("n1", 1), "b": ("n1", 1)}),),
            [("one", "pods-1", "a"), ("two", "pods-1", "b")],
            id="a gang's reservation has the same name",
        ),
    ],
)
def test_single_pods_without_a_plan_get_one_for_each_namespace(
    reservations: tuple[ReservationUpdate, ...], again: list[tuple[str, str, str]]
) -> None:
    assert recreated(reservations) == again


def test_a_sibling_with_an_unproved_pin_is_left_out_of_the_recreated_plan() -> None:
    """Its owner may have written the annotation and the pin."""
    a, bound, forged = (
        member(name, gates=(), reservation="llm-1", pinned_terms=pin, node=node)
        for name, pin, node in (("a", "n1", None), ("b", None, "n2"), ("c", "n3", None))
    )
    gang = gang_of(a.gang_request.gang, (a, bound, forged))
    inputs = inputs_of((), (a, bound, forged), (a,), gang)

    (again,) = recreate_deleted(inputs)

    assert [(seat.name, seat.node) for seat in again.spec.seats] == [("a", "n1"), ("b", "n2")]
