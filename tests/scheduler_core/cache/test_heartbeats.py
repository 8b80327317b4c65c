"""The cluster cache with heartbeats of agents: which nodes are fresh, in whichever order the watches deliver."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import msgspec
import pytest

from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.heartbeats import Heartbeat
from gputopo.timestamps import format_micro_timestamp, format_timestamp
from gputopo.timing import HEARTBEAT_S, STALE_AFTER_S
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, HeartbeatUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.policy.policy import Policy
from tests.machines import dgx1
from tests.scheduler_core.builders import NOW, kubelet_report, node
from tests.scheduler_core.fake_scheduler import pod_update

HOUR = 3600.0
WRITTEN = NOW - 2 * HOUR  # the last change of the content
FACTS = parse_node(node(dgx1()))


def report(at: float = WRITTEN, held: dict[str, list[int]] | None = None) -> NodeGpusUpdate:
    found = kubelet_report(dgx1(), held or {})
    return NodeGpusUpdate("a", msgspec.structs.replace(found, observed_at=format_timestamp(at)))


def beat(at: float, confirms: float = WRITTEN) -> HeartbeatUpdate:
    return HeartbeatUpdate("a", Heartbeat(format_timestamp(confirms), format_micro_timestamp(at)))


def listed(*updates: Any) -> Batch[Any]:
    return Batch(type(updates[0]), updates, is_full_list=True)


def changed(*updates: Any) -> Batch[Any]:
    return Batch(type(updates[0]), updates)


NODES, NO_PODS = listed(NodeUpdate("a", FACTS)), Batch(PodUpdate, (), is_full_list=True)
NO_HEARTBEATS: Batch[HeartbeatUpdate] = Batch(HeartbeatUpdate, (), is_full_list=True)


def cache_of(*batches: Batch[Any], heartbeats: bool = True) -> ClusterCache:
    cache = ClusterCache(Policy(), heartbeats=heartbeats)
    for each in batches:
        cache.apply_batch(each, NOW)
    return cache


def stale(cache: ClusterCache) -> bool:
    return cache.snapshot.states["a"].stale


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_an_old_content_is_fresh_while_heartbeats_confirm_it(order: tuple[int, ...]) -> None:
    batches = [NODES, NO_PODS, listed(report()), listed(beat(NOW - HEARTBEAT_S))]

    cache = cache_of(*(batches[at] for at in order))

    assert cache.synced
    assert not stale(cache)


def test_a_silent_agent_makes_its_node_stale_and_the_next_heartbeat_makes_it_fresh() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW)))
    cache.advance_time(NOW + STALE_AFTER_S)
    assert not stale(cache)

    cache.advance_time(NOW + STALE_AFTER_S + 1)
    assert stale(cache)

    cache.apply_batch(changed(beat(NOW + STALE_AFTER_S + 2)), NOW + STALE_AFTER_S + 3)
    assert not stale(cache)


def test_an_agent_of_the_version_before_is_fresh_by_its_own_time() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report(NOW - HEARTBEAT_S)), NO_HEARTBEATS)
    assert not stale(cache)

    cache.apply_batch(changed(report(NOW)), NOW)
    cache.advance_time(NOW + STALE_AFTER_S)
    assert not stale(cache)


def test_after_a_rollback_of_the_agent_the_later_time_counts() -> None:
    """The agent's Lease stays and is not renewed."""
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW - HOUR)))
    assert stale(cache)

    cache.apply_batch(changed(report(NOW)), NOW)
    assert not stale(cache)


def test_a_heartbeat_of_another_content_confirms_nothing() -> None:
    """The watch of NodeGpus may be late: what it showed last is not what the agent confirmed."""
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW, confirms=NOW - HOUR)))
    assert stale(cache)

    cache.apply_batch(changed(report(NOW - HOUR)), NOW)
    assert not stale(cache)


def test_a_deleted_lease_leaves_the_time_that_it_confirmed() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW)))

    cache.apply_batch(Batch(HeartbeatUpdate, (), ("a",)), NOW)
    assert not stale(cache)

    cache.advance_time(NOW + STALE_AFTER_S + 1)
    assert stale(cache)


def test_a_heartbeat_far_ahead_of_our_clock_is_not_trusted() -> None:
    assert stale(cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW + 10 * HOUR))))


def test_heartbeats_are_listed_before_the_cache_is_ready() -> None:
    """Else nodes would be refused as stale for a moment at each start."""
    cache = cache_of(NODES, NO_PODS, listed(report()))
    assert cache.not_ready_reason == "gputopo has not yet listed all leases of the cluster"

    cache.apply_batch(NO_HEARTBEATS, NOW)
    assert cache.synced
    assert cache_of(NODES, NO_PODS, listed(report()), heartbeats=False).synced


def test_heartbeats_of_unknown_nodes_change_nothing() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report()))

    cache.apply_batch(listed(*(HeartbeatUpdate(f"n{at}", beat(NOW).heartbeat) for at in range(100))), NOW)

    assert list(cache.snapshot.records) == ["a"]


def test_a_full_list_is_applied_in_parts() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW)))
    names = [HeartbeatUpdate(f"n{at}", beat(NOW).heartbeat) for at in range(10)]

    parts = list(cache.split_batch(listed(*names)))

    assert max(len(each.updates) for each in parts) < 10
    assert [key for each in parts for key in each.removed] == ["a"]


def test_a_heartbeat_settles_a_pod_that_was_replaced_within_one_poll() -> None:
    """A pod of the same name got the same GPUs, so the report is the same; it is the new pod's once it is confirmed."""
    held = {"p": [0, 1]}
    first, second = pod_update("p", 2, "a", admitted=True), pod_update("p", 2, "a", admitted=True)
    second = second._replace(key="uid-2", occupant=second.occupant._replace(uid="uid-2"))
    cache = cache_of(NODES, listed(first), listed(report(held=held)), listed(beat(NOW)))
    cache.apply_batch(Batch(PodUpdate, (second,), (first.key,)), NOW + 10)
    assert [each.uid for each in cache.snapshot.records["a"].departed] == [first.key]

    cache.apply_batch(changed(beat(NOW + HEARTBEAT_S)), NOW + HEARTBEAT_S)

    assert cache.snapshot.records["a"].departed == ()


def test_the_record_has_the_confirmed_time_so_that_decisions_can_be_replayed() -> None:
    cache = cache_of(NODES, NO_PODS, listed(report()), listed(beat(NOW)))

    gpus = cache.snapshot.records["a"].gpus
    assert isinstance(gpus, NodeGpus)
    assert gpus.observed_at == format_micro_timestamp(NOW)
