"""A batch that is applied in parts changes the same as the whole batch."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, kubelet_report, node
from tests.scheduler_core.fake_scheduler import pod_update

MACHINE = {f"n{at}": MACHINES["dgx1" if at % 2 else "a100_bridged"]() for at in range(12)}
LONGEST = 4  # objects of a part


def whole_and_parts() -> tuple[ClusterCache, ClusterCache]:
    return ClusterCache(Policy()), ClusterCache(Policy())


def updates_of(random: Random, kind: type[Any]) -> tuple[Any, ...]:
    """Return a random choice of objects of this kind."""
    names = [name for name in MACHINE if random.random() < 0.8]
    if kind is NodeUpdate:
        return tuple(NodeUpdate(name, parse_node(node(MACHINE[name]))) for name in names)
    if kind is NodeGpusUpdate:
        held = {name: random.sample(range(4), random.randint(0, 3)) for name in names}
        return tuple(
            NodeGpusUpdate(name, kubelet_report(MACHINE[name], {f"p{name}": gpus} if gpus else {}))
            for name, gpus in held.items()
        )
    return tuple(
        pod_update(f"p{name}", random.randint(1, 3), name if random.random() < 0.8 else None, admitted=True)
        for name in names
    )


def apply_to_both(whole: ClusterCache, parted: ClusterCache, batch: Batch[Any], now: float) -> int:
    """Apply the batch to both; return the number of objects of the largest part."""
    at_once, largest = whole.apply_batch(batch, now), 0
    in_parts = []
    for part in parted.split_batch(batch):
        in_parts.append(parted.apply_batch(part, now))
        largest = max(largest, len(part.updates) + len(part.removed))

    assert [pod.pod for pod in at_once.bound_pods] == [pod.pod for each in in_parts for pod in each.bound_pods]
    assert sorted(at_once.removed_pods) == sorted(pod for each in in_parts for pod in each.removed_pods)
    assert list(at_once.kubelet_reports) == [report for each in in_parts for report in each.kubelet_reports]
    return largest


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_parts_change_the_same_as_the_whole_batch(seed: int) -> None:
    random = Random(seed)
    whole, parted = whole_and_parts()
    kinds: tuple[type[Any], ...] = (NodeUpdate, PodUpdate, NodeGpusUpdate)
    now = NOW
    for kind in random.sample(kinds, 3):
        apply_to_both(whole, parted, Batch(kind, updates_of(random, kind), is_full_list=True), now)
    for _ in range(12):
        now += random.choice((0.0, 1.0, 20.0))
        kind = random.choice(kinds)
        updates, listed = updates_of(random, kind), random.random() < 0.5
        keys = {each.key for each in updates}
        known = [name if kind is not PodUpdate else f"uid-p{name}" for name in MACHINE]
        gone = () if listed else tuple(key for key in known if key not in keys and random.random() < 0.3)
        largest = apply_to_both(whole, parted, Batch(kind, updates, gone, listed), now)

        assert largest <= LONGEST
        assert dict(parted.snapshot.records) == dict(whole.snapshot.records)
        assert dict(parted.snapshot.states) == dict(whole.snapshot.states)  # compared by identity
        assert dict(parted.pods) == dict(whole.pods)
        assert sorted(map(repr, parted.assumed_pods)) == sorted(map(repr, whole.assumed_pods))


def test_the_first_list_stays_whole() -> None:
    """The cache is ready with all nodes, not with the first four."""
    cache = ClusterCache(Policy())
    batch = Batch(NodeUpdate, updates_of(Random(1), NodeUpdate), is_full_list=True)

    assert list(cache.split_batch(batch)) == [batch]
