"""The records of all nodes as observed, without assumed pods; also of nodes that the node watch does not show.

Times are in seconds since 1970. For one thread.
"""

from __future__ import annotations

from collections.abc import KeysView

import msgspec

from scheduler_core.cache.ended_pods import EndedPods
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.staleness import StalenessTimer, mismatch_since
from scheduler_core.policy.policy import Policy

NO_FACTS = NodeFacts(topology=None, described=False, allocatable=())


class NodeRecords:
    """The record of each node of which anything is known, and when time alone changes what a record means."""

    def __init__(self, policy: Policy) -> None:
        self.shown: set[str] = set()  # names of the nodes that the node watch shows
        self.ended_pods = EndedPods()
        self._policy = policy
        self._records: dict[str, NodeRecord] = {}
        self._staleness_timer = StalenessTimer()

    def keys(self) -> KeysView[str]:
        """Return the names of the nodes of which anything is known."""
        return self._records.keys()

    def names_with_reports(self) -> list[str]:
        """Return the names of the nodes that have a PodResources report."""
        return [name for name, record in self._records.items() if record.gpus is not None]

    def record_of(self, name: str) -> NodeRecord:
        """Return the record of a node; an empty record where nothing is known of it."""
        return self._records.get(name) or NodeRecord(name, NO_FACTS)

    def set_record(self, record: NodeRecord, now: float) -> None:
        """Store the record of a node; drop it where the node is not shown and nothing is known of it."""
        name, before = record.name, self.record_of(record.name)
        for pod in before.departed:
            if pod not in record.departed:
                self.ended_pods.forget_pod(pod.uid)
        since = mismatch_since(record, before, now)
        if since != record.hash_mismatch_since:
            record = msgspec.structs.replace(record, hash_mismatch_since=since)
        if name in self.shown or record.pods or record.gpus is not None:
            self._records[name] = record
        else:
            self._records.pop(name, None)
        if record.gpus is not before.gpus or since != before.hash_mismatch_since:
            self._staleness_timer.schedule(record, self._policy, now)

    def set_policy(self, policy: Policy, now: float) -> None:
        """Apply another policy to the age of observations."""
        self._policy = policy
        self._staleness_timer = StalenessTimer()
        for record in self._records.values():
            self._staleness_timer.schedule(record, policy, now)

    def pop_due(self, now: float) -> set[str]:
        """Return the names of nodes with observations that may have become stale or fresh by time alone."""
        due = self._staleness_timer.pop_due(now)
        for name in due:
            self._staleness_timer.schedule(self.record_of(name), self._policy, now)
        return due
