"""The search for garbage among new objects does not search the pods of the whole cluster again after each change."""

from __future__ import annotations

import gc

from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, HeartbeatUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.policy.policy import Policy
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.fake_scheduler import pod_update

MANY = 500


def test_a_changed_pod_makes_no_index_new_again() -> None:
    pods = [pod_update(f"p-{number}", 1, "a") for number in range(2 * MANY)]
    cache = ClusterCache(Policy())
    for kind in (NodeUpdate, PodUpdate, NodeGpusUpdate, HeartbeatUpdate):
        cache.apply_batch(Batch(kind, (), (), is_full_list=True), NOW)
    cache.apply_batch(Batch(PodUpdate, tuple(pods)), NOW)
    cache.apply_batch(Batch(PodUpdate, (), tuple(pod.key for pod in pods[MANY:])), NOW)
    try:
        for number in range(2):
            gc.collect()  # a dict of values that cannot be garbage leaves the search, until it gets another value
            gc.freeze()
            cache.apply_batch(Batch(PodUpdate, (pod_update(f"new-{number}", 1, "a"),)), NOW)
            cache.apply_batch(Batch(PodUpdate, (), (f"uid-new-{number}",)), NOW)
        assert [len(each) for each in gc.get_objects() if isinstance(each, dict) and len(each) >= MANY] == []
    finally:
        gc.unfreeze()
