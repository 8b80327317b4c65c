"""A publisher that keeps what it is given, and settings of the agent."""

from __future__ import annotations

from pathlib import Path

from agent.daemon.settings import Settings
from agent.publish import Event, Outcome, PublishError
from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import NodeFacts

SETTINGS = Settings(
    node="gpu-5",  # its second look comes 56 s after the first
    publish=("node", None),
    mirror=True,
    interval_s=60.0,
    heartbeat_s=300.0,
    hold_s=300.0,
    grace_s=120.0,
    socket=Path("/run/kubelet.sock"),
    events=True,
    listen=None,
    log="json",
    node_source=None,
)


class Cluster:
    """An API server with one Node: it compares, writes and counts; while ``away`` it refuses everything."""

    def __init__(self) -> None:
        self.away: PublishError | None = None
        self.facts: NodeFacts | None = None
        self.state: NodeGpus | None = None
        self.writes: list[str] = []
        self.reads = 0
        self.events: list[Event] = []

    def publish(self, facts: NodeFacts) -> Outcome:
        self._there()
        self.reads += 1
        written = facts != self.facts
        if written:
            self.facts = facts
            self.writes.append("node")
        return Outcome(written, ("nvidia.com/gpu.product",))

    def report(self, state: NodeGpus) -> bool:
        self._there()
        written = state != self.state
        if written:
            self.state = state
            self.writes.append("nodegpus")
        return written

    def announce(self, event: Event) -> None:
        self._there()
        self.events.append(event)

    def _there(self) -> None:
        if self.away is not None:
            raise self.away
