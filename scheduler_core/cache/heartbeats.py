"""Joins the heartbeats of agents with their PodResources reports, in whichever order the watches deliver them.

The cluster cache knows reports only, each with the time at which its agent last confirmed it. For one thread.
"""

from __future__ import annotations

from collections.abc import Collection

from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.heartbeats import Heartbeat, with_heartbeat
from scheduler_core.cache.events import Batch, HeartbeatUpdate, NodeGpusUpdate, removed_keys


class HeartbeatJoin:
    """The last report and the last heartbeat of each node."""

    def __init__(self) -> None:
        self._reports: dict[str, NodeGpus] = {}  # as the agents wrote them
        self._heartbeats: dict[str, Heartbeat] = {}

    @property
    def nodes(self) -> Collection[str]:
        """The nodes that have a heartbeat."""
        return self._heartbeats.keys()

    def apply_reports(self, batch: Batch[NodeGpusUpdate]) -> Batch[NodeGpusUpdate]:
        """Return the reports with the times of the heartbeats that confirm them."""
        for name in removed_keys(batch, self._reports):
            self._reports.pop(name, None)
        for each in batch.updates:
            self._reports[each.key] = each.gpus
        confirmed = (
            NodeGpusUpdate(name, with_heartbeat(gpus, self._heartbeats.get(name))) for name, gpus in batch.updates
        )
        return batch._replace(updates=tuple(confirmed))

    def apply_heartbeats(self, batch: Batch[HeartbeatUpdate]) -> Batch[NodeGpusUpdate]:
        """Return the reports that the heartbeats confirm. A Lease that is gone leaves the last confirmed time."""
        for name in removed_keys(batch, self._heartbeats):
            self._heartbeats.pop(name, None)
        confirmed = []
        for name, heartbeat in batch.updates:
            self._heartbeats[name] = heartbeat
            report = self._reports.get(name)
            if report is not None and (found := with_heartbeat(report, heartbeat)) is not report:
                confirmed.append(NodeGpusUpdate(name, found))
        return Batch(NodeGpusUpdate, tuple(confirmed))
