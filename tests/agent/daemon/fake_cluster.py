"""A publisher that keeps the published values, and settings of the agent."""

from __future__ import annotations

from pathlib import Path

from agent.daemon.settings import AgentSettings
from agent.publish import NodeEvent, PublishError, PublishOutcome, RestoredField
from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import EncodedTopology

SETTINGS = AgentSettings(
    node="gpu-5",  # its second pass comes 56 s after the first
    publish=("node", None),
    mirror=True,
    interval_s=60.0,
    heartbeat_s=300.0,
    lease_after_s=3600.0,
    hold_s=300.0,
    grace_s=120.0,
    socket=Path("/run/kubelet.sock"),
    kubelet_config=(),
    node_resource_topology=False,
    events=True,
    listen=None,
    log="json",
    node_source=None,
)


class FakeNodePublisher:
    """An API server with one Node: it compares, writes and counts; while ``away`` is set every call fails."""

    def __init__(self) -> None:
        self.away: PublishError | None = None
        self.facts: EncodedTopology | None = None
        self.state: NodeGpus | None = None
        self.writes: list[str] = []
        self.reads = 0
        self.events: list[NodeEvent] = []
        self.edited: dict[str, tuple[RestoredField, ...]] = {}  # "node", "nodegpus" -> what others have changed there

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        self._raise_if_away()
        self.reads += 1
        written = facts != self.facts
        if written:
            self.facts = facts
            self.writes.append("node")
        return PublishOutcome(written, ("nvidia.com/gpu.product",), self.edited.pop("node", ()))

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        self._raise_if_away()
        written = state != self.state
        if written:
            self.state = state
            self.writes.append("nodegpus")
        return PublishOutcome(written, restored=self.edited.pop("nodegpus", ()))

    def write_event(self, event: NodeEvent) -> None:
        self._raise_if_away()
        self.events.append(event)

    def _raise_if_away(self) -> None:
        if self.away is not None:
            raise self.away
