"""Plans that somebody deleted while their members were let go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.commit.recovery import plan_keys, recreate_deleted
from scheduler_core.planner.commit.state import ReconcileInput
from scheduler_core.planner.gang.gang import gang_of
from scheduler_core.planner.gang.member import GangName, Member
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.packing.plans import plan


def on_its_way(name: str, namespace: str) -> Member:
    """A single pod that was let go by the batch pods-1."""
    made = member(name, gang=GangName(namespace, f"pod.uid-{name}"), namespace=namespace)
    return made._replace(gates=(), pinned_terms="n1", reservation="pods-1", owner_kind="batch/Job")


def batch(namespace: str, *pods: str) -> ReservationUpdate:
    """The batch pods-1 as it is, or was written again, there."""
    return plan("pods-1", dict.fromkeys(pods, ("n1", 1)), gang="")._replace(namespace=namespace, key=f"in-{namespace}")


A, B = on_its_way("a", "one"), on_its_way("b", "two")


def written(reservations: Sequence[ReservationUpdate], coming: Sequence[Member] = (A, B)) -> list[tuple[str, str, str]]:
    """Namespace, name and the first pod of each plan that is written again."""
    everybody = {each.uid: each for each in coming}
    known = {each.key: each for each in reservations}
    world = ReconcileInput(
        "me", None, known, everybody.get, lambda _: None, (), (), (), {}, Observations(), 0.0, 0.0, tuple(coming)
    )
    again = list(recreate_deleted(world))
    assert (
        list(recreate_deleted(world._replace(plans={each for seen in reservations for each in plan_keys(seen)})))
        == again
    )
    return [(each.namespace, each.name, each.spec.seats[0].name) for each in again]


@pytest.mark.parametrize(
    ("reservations", "again"),
    [
        pytest.param((), [("one", "pods-1", "a"), ("two", "pods-1", "b")], id="nothing is left of it"),
        pytest.param((batch("gputopo", "a", "b"),), [], id="it is there"),
        pytest.param((batch("one", "a"),), [("two", "pods-1", "b")], id="it was written again for one namespace"),
        pytest.param((batch("one", "a"), batch("two", "b")), [], id="it was written again for both"),
        pytest.param(
            (plan("pods-1", {"a": ("n1", 1), "b": ("n1", 1)}),),
            [("one", "pods-1", "a"), ("two", "pods-1", "b")],
            id="a gang's of that name has no place for them",
        ),
    ],
)
def test_single_pods_without_a_plan_get_one_for_each_namespace(
    reservations: tuple[ReservationUpdate, ...], again: list[tuple[str, str, str]]
) -> None:
    assert written(reservations) == again


def test_a_sibling_whose_pin_nothing_proves_is_left_out_of_the_plan() -> None:
    """Its owner may have written the annotation and the pin."""
    a, bound, forged = (
        member(name, gates=(), reservation="llm-1", pinned_terms=pin, node=node)
        for name, pin, node in (("a", "n1", None), ("b", None, "n2"), ("c", "n3", None))
    )
    gang = gang_of(a.gang_request.gang, (a, bound, forged))
    everybody = {each.uid: each for each in (a, bound, forged)}
    world = ReconcileInput(
        "me", None, {}, everybody.get, lambda _: gang, (), (), (), {}, Observations(), 0.0, 0.0, (a,)
    )

    (again,) = recreate_deleted(world)

    assert [(seat.name, seat.node) for seat in again.spec.seats] == [("a", "n1"), ("b", "n2")]
