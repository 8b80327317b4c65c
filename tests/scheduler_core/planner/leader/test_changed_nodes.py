"""Gangs that did not fit, and nodes that changed since."""

from __future__ import annotations

import msgspec
import pytest

from scheduler_core.cache.node_record import hold_uid
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.leader.changed_nodes import ChangedNodes, PlanState
from scheduler_core.planner.leader.queue import QueuedGang, UnfitState
from scheduler_core.planner.packing.model import NodeView, RequestId, ViewChanges
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import GANG, member

TRIED, NEXT = PlanState(5, 0, 0, 0), PlanState(6, 0, 0, 0)
EIGHT = MACHINES["hgx_h100"]()


def view(generation: int, *changed: str, known: bool = True, **free: int) -> NodeView:
    """Return nodes of eight GPUs. ``free``: GPUs by node; ``changed``: since the last view."""
    used = {name: 8 - gpus for name, gpus in free.items()}
    records = [
        record(
            name,
            EIGHT,
            held={"p": tuple(range(gpus))} if gpus else {},
            pods=[occupant("p", gpus)] if gpus else [],
        )
        for name, gpus in used.items()
    ]
    found = snapshot_of(records, NOW, Policy())
    table = ClusterSnapshot(generation, found.records, found.states)
    changes = ViewChanges(table, ClusterSnapshot() if known else None, frozenset(changed))
    return NodeView(table, {}, lambda _: Policy(), changes)


def waiting(*members: Member, state: object = TRIED) -> QueuedGang:
    return QueuedGang(Gang(GANG, GangPhase.QUEUED, "", members), 0.0, unfit_state=UnfitState(state, RequestId()))


def started() -> ChangedNodes:
    found = ChangedNodes()
    found.update(view(1, known=False))
    return found


@pytest.mark.parametrize(
    ("gpus", "free", "expected"),
    [
        pytest.param((4,), 3, False, id="too few"),
        pytest.param((4,), 4, True, id="enough"),
        pytest.param((8, 2), 3, True, id="enough for the smallest member"),
        pytest.param((1,), 0, False, id="none is free"),
        pytest.param((4, 0), 0, True, id="a member without GPUs fits anywhere"),
    ],
)
def test_a_node_that_changed_needs_enough_free_gpus(gpus: tuple[int, ...], free: int, expected: bool) -> None:
    changed = started()
    changed.update(view(6, "a", a=free, b=8))  # b is the same as before

    gang = waiting(*(member(f"w-{at}", each) for at, each in enumerate(gpus)))

    assert changed.may_fit(gang, NEXT) is expected


def test_for_a_gang_that_ignores_a_hold_its_gpus_are_free() -> None:
    changed, seen = started(), view(6, "a", a=4)
    hold = occupant("hold", 4)._replace(uid=hold_uid("a"))
    before = seen.table.records["a"]
    held = msgspec.structs.replace(before, pods=(*before.pods, hold), reserved=(hold.uid,))
    table = snapshot_of([held], NOW, Policy(), generation=6)
    assert table.states["a"].free_devices("nvidia.com/gpu") == 0

    changed.update(seen._replace(table=table, changes=ViewChanges(table, ClusterSnapshot(), frozenset({"a"}))))

    assert changed.may_fit(waiting(member("w", 4)), NEXT)
    assert not changed.may_fit(waiting(member("w", 5)), NEXT)


def test_only_changes_since_the_trial_count() -> None:
    changed = started()
    changed.update(view(3, "a", a=8))
    assert not changed.may_fit(waiting(member("w", 4)), NEXT)

    changed.update(view(6, "a", a=2))
    assert not changed.may_fit(waiting(member("w", 4)), NEXT)
    changed.update(view(7, "b", a=2, b=6))
    changed.update(view(8, "a", a=1, b=6))
    assert changed.may_fit(waiting(member("w", 4)), PlanState(8, 0, 0, 0))
    assert not changed.may_fit(waiting(member("w", 7)), PlanState(8, 0, 0, 0))
    assert not changed.may_fit(waiting(member("w", 4), state=PlanState(8, 0, 0, 0)), PlanState(8, 0, 0, 0))


def test_a_change_within_the_generation_of_the_trial_counts() -> None:
    """Labels and taints."""
    changed = started()
    changed.update(view(5, "a", a=8))

    assert changed.may_fit(waiting(member("w", 4)), PlanState(5, 1, 0, 0))
    assert changed.may_fit(waiting(member("w", 4)), NEXT)


@pytest.mark.parametrize(
    ("state", "present"),
    [
        pytest.param(TRIED, PlanState(6, 0, 1, 0), id="CPU or memory became free"),
        pytest.param(TRIED, PlanState(6, 0, 0, 1), id="a time has passed"),
        pytest.param(None, NEXT, id="the state of the trial is not known"),
    ],
)
def test_where_more_than_nodes_may_have_changed_any_gang_may_fit(state: object, present: PlanState) -> None:
    assert started().may_fit(waiting(member("w", 8), state=state), present)


def test_where_it_is_not_known_which_nodes_changed_any_gang_may_fit() -> None:
    changed = started()
    changed.update(view(6, known=False, a=0))

    assert changed.may_fit(waiting(member("w", 8)), NEXT)


def test_the_size_of_the_smallest_member_follows_the_members() -> None:
    changed = started()
    changed.update(view(6, "a", a=2))

    assert not changed.may_fit(waiting(member("w", 4)), NEXT)
    assert changed.may_fit(waiting(member("w", 2)), NEXT)
