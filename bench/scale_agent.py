"""API calls of one agent in a quiet hour, in its own process: ``python bench/scale_agent.py``.

The agent's own publication and writer on a simulated clock, a day after the start; nothing changes but the time. Bytes
are of the bodies that are sent. What etcd stores of each object is measured by ``tests/e2e/agent/test_heartbeats.py``.
It uses only functions that older commits have too.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from inspect import signature
from typing import Any

import msgspec

from agent.daemon.metrics import AgentMetrics
from agent.daemon.publication import Publication
from agent.daemon.schedule import NodeSchedule
from agent.publish import NodeEvent, PublishOutcome, state
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.kube.errors import NotFoundError
from gputopo.kube.objects import ObjectMeta
from gputopo.kube.rbac import LEASES, NODE_GPUS, Resource
from gputopo.labels import EncodedTopology
from gputopo.timestamps import format_timestamp
from gputopo.timing import HEARTBEAT_S
from tests.machines import MACHINES

START = 1_795_000_000.0
SETTLED_S, HOURS = 86400, 96
PASS_S, TICK_S = 60.0, 5.0
KINDS = {NODE_GPUS: "nodegpus", LEASES: "lease"}


class CountingKube:
    """Stores objects as an API server does: a write of an equal object changes nothing. Counts calls and bytes."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._stored: dict[Resource, dict[str, Any]] = {}
        self._version = 0

    def get(self, resource: Resource, name: str, kind: type[Any], _: Any = None) -> Any:
        """Return the metadata of a Node; no other object exists at the start."""
        if resource in KINDS:
            raise NotFoundError("no such object", kind_missing=False)
        return kind(ObjectMeta(name, uid="5a1f29bd-5b0c-4c0f-9a53-000000000001"))

    def apply(self, resource: Resource, _: str, body: dict[str, Any], **__: Any) -> ObjectMeta:
        """Store the object."""
        self._count(f"{KINDS[resource]}_bytes", len(msgspec.json.encode(body)))
        self._count(f"{KINDS[resource]}_requests", 1)
        fields = {name: value for name, value in body.items() if name != "metadata"}
        if self._stored.get(resource) != fields:
            self._version += 1
            self._stored[resource] = fields
            self._count(f"{KINDS[resource]}_stored", 1)
        return ObjectMeta(body["metadata"]["name"], uid="1", resource_version=str(self._version))

    def create(self, resource: Resource, body: dict[str, Any]) -> ObjectMeta:
        """Store the object."""
        return self.apply(resource, "", body)

    def patch(self, resource: Resource, body: dict[str, Any]) -> ObjectMeta:
        """Store the object."""
        return self.apply(resource, "", body)

    def _count(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number


class CountingPublisher:
    """Counts the calls that ``--publish node`` makes where nothing has changed."""

    def __init__(self) -> None:
        self.kube, self.gets, self.seconds = CountingKube(), 0, 0.0
        kube: Any = self.kube
        make: Any = state.StateWriter
        if "lease_after_s" in signature(make).parameters:
            clock = state.WriterClock(lambda: datetime.now(UTC), lambda: self.seconds)
            self._writer = make(kube, "gpu-node", HEARTBEAT_S, clock)
        else:
            self._writer = make(kube, "gpu-node")

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:  # noqa: ARG002  part of the protocol
        """Count the read of the Node."""
        self.gets += 1
        return PublishOutcome(written=False)

    def write_state(self, found: NodeGpus) -> PublishOutcome:
        """Write it as the agent does."""
        outcome: PublishOutcome = self._writer.write_state(found)
        return outcome

    def write_event(self, event: NodeEvent) -> None:
        """Count nothing: a quiet cluster has no Events."""


def main() -> None:
    """Print the figures of a node and an hour as JSON: 8 GPUs, two pods with 4 GPUs."""
    topology, publisher = MACHINES["hgx_h100"](), CountingPublisher()
    publication = Publication(publisher, NodeSchedule("gpu-node"), HEARTBEAT_S, AgentMetrics())
    held = tuple(
        DeviceAllocation(gpu.uuid or "", PodRef("team", f"train-{at // 4}", "main"))
        for at, gpu in enumerate(topology.gpus)
    )
    set_state: Any = publication.set_state
    fields = len(signature(set_state).parameters) - 1  # older commits have one less
    for tick in range(int((SETTLED_S + HOURS * 3600) / TICK_S)):
        now = tick * TICK_S
        publisher.seconds = now
        if now == SETTLED_S:
            publisher.kube.counts.clear()
            publisher.gets = 0
        if tick == 0:
            publication.set_topology(topology, now, mirror=True)
        observed = format_timestamp(START + now - now % PASS_S)
        set_state(*(observed, held, (), None, None)[:fields], now)
        publication.send_due(now)
    hourly = {"gets": publisher.gets, **publisher.kube.counts}
    print(json.dumps({name: round(value / HOURS, 2) for name, value in hourly.items()}))


if __name__ == "__main__":
    main()
