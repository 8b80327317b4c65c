"""A list of pods that is applied in parts changes the same as the whole list."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import POOL
from scheduler_core.cache.events import (
    Batch,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    ReservationUpdate,
)
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.gang.pod_source import PlannerPod, WatchedPod
from scheduler_core.planner.leader.list_parts import PIECE, ListDivider, parts_of
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.policy.policy import Policy
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES
from tests.scheduler_core.builders import record
from tests.scheduler_core.fake_scheduler import pod_update
from tests.scheduler_core.planner.gang.gang_pods import BOUND, GATED, member

NODES = ("n0", "n1", "n2")


def view_of_nodes() -> PlannerView:
    view, machine = PlannerView(Policy(), POOL, "me"), record("n", MACHINES["hgx_h100"]()).machine
    nodes = tuple(NodeUpdate(name, machine, FullNode(Metadata(name))) for name in NODES)
    view.apply_batch(Batch(NodeUpdate, nodes, is_full_list=True), 0.0)
    return view


def complete(view: PlannerView, *pods: WatchedPod) -> None:
    """Apply the first lists of all kinds."""
    for kind in (NodeGpusUpdate, ReservationUpdate, LedgerUpdate):
        view.apply_batch(Batch(kind, (), is_full_list=True), 0.0)
    view.apply_batch(Batch(PlannerPod, pods, is_full_list=True), 0.0)


def random_pod(random: Random, number: int) -> WatchedPod:
    """Return a pod without GPUs, a pod with GPUs, a member of a gang, or a launcher, which has no GPUs."""
    name, node = f"w-{number}", random.choice(NODES)
    uid, load = f"uid-{name}", NodeLoad(random.randint(1, 3) * 1000, pods=1)
    chosen = random.randrange(4)
    if chosen == 0:
        return PodLoad(uid, node, load)
    update = pod_update(name, random.randint(1, 2), uid=uid)._replace(node=node)
    if chosen == 1:
        return PlannerPod(uid, update, None)
    state = random.choice((GATED, BOUND))
    found = member(name, state, **{"rank": number, **({"node": node} if state == BOUND else {})})
    if chosen == 2:
        return PlannerPod(uid, update if state == BOUND else update._replace(node=None), found)
    return PlannerPod(uid, None, found, load=PodLoad(uid, node, load) if state == BOUND else None)


def listed(random: Random, most: int) -> Batch[Any]:
    found = tuple(random_pod(random, at) for at in range(most) if random.random() < 0.7)
    return Batch(PlannerPod, found, is_full_list=True)


def state_of(view: PlannerView) -> tuple[Any, ...]:
    snapshot = view.cache.snapshot
    return (
        dict(snapshot.records),
        dict(view.cache.pods),
        dict(view.loads.by_node),
        set(view.loads.uids),
        {uid: view.gang_members.get_member(uid) for uid in view.gang_members.uids},
        sorted(view.gang_members.all_gangs()),
    )


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_parts_change_the_same_as_the_whole_list(seed: int) -> None:
    random = Random(seed)
    whole, parted = view_of_nodes(), view_of_nodes()
    first = listed(random, 2 * PIECE)
    for view in (whole, parted):
        complete(view, *first.updates)
    for _ in range(4):
        batch = listed(random, 3 * PIECE)

        whole.apply_batch(batch, 0.0)
        for part in parts_of(batch, parted):
            assert len(part.updates) + len(part.removed) <= PIECE
            parted.apply_batch(part, 0.0)

        assert state_of(parted) == state_of(whole)


def test_the_first_list_and_events_stay_whole() -> None:
    view, random = view_of_nodes(), Random(1)
    first = listed(random, 3 * PIECE)
    assert list(parts_of(first, view)) == [first]
    complete(view)
    events = first._replace(is_full_list=False)
    nodes = Batch(NodeUpdate, (), is_full_list=True)

    assert [list(parts_of(each, view)) for each in (events, nodes)] == [[events], [nodes]]


def test_batches_after_a_list_wait_for_its_parts() -> None:
    """One part in each turn of the loop. Without a list, a batch is applied at once."""
    view, random, turns = view_of_nodes(), Random(1), list[Callable[[], None]]()
    complete(view)
    applied = list[Batch[Any]]()
    divider = ListDivider(view, applied.append, turns.append)
    pods, end = listed(random, 3 * PIECE), Batch(PlannerPod, (), ("uid-w-1",))

    divider.apply_batch(pods)
    divider.apply_batch(end)
    assert len(applied) == len(turns) == 1
    while turns:
        turns.pop()()
    assert len(applied) > 3
    assert tuple(each for part in applied for each in part.updates) == pods.updates
    assert applied[-1] == end

    divider.apply_batch(end)
    assert (applied[-2:], turns) == ([end, end], [])
