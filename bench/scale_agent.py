"""API calls of one agent in a quiet hour, in its own process: ``python bench/scale_agent.py``.

The agent's own publication on a simulated clock; nothing changes but the time. Bytes are of the bodies that are sent;
etcd also stores the metadata of the object. It uses only functions that older commits have too.
"""

from __future__ import annotations

import json
from inspect import signature
from typing import Any

import msgspec

from agent.daemon.metrics import AgentMetrics
from agent.daemon.publication import Publication
from agent.daemon.schedule import NodeSchedule
from agent.publish import NodeEvent, PublishOutcome
from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.labels import EncodedTopology
from gputopo.timestamps import format_timestamp
from gputopo.timing import HEARTBEAT_S
from tests.machines import MACHINES

START = 1_795_000_000.0
HOURS = 100
PASS_S, TICK_S = 60.0, 5.0


class CountingPublisher:
    """Counts the calls that ``--publish node`` makes where nothing has changed: a GET of the Node, a PATCH."""

    def __init__(self) -> None:
        self.gets = self.writes = self.bytes = 0

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:  # noqa: ARG002  part of the protocol
        """Count the read of the Node."""
        self.gets += 1
        return PublishOutcome(written=False)

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Count the write of the NodeGpus."""
        self.writes += 1
        self.bytes += len(msgspec.json.encode(state))
        return PublishOutcome(written=True)

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
    for tick in range(int(HOURS * 3600 / TICK_S)):
        now = tick * TICK_S
        if tick == 0:
            publication.set_topology(topology, now, mirror=True)
        observed = format_timestamp(START + now - now % PASS_S)
        set_state(*(observed, held, (), None, None)[:fields], now)
        publication.send_due(now)
    hourly = {"gets": publisher.gets, "writes": publisher.writes, "bytes": publisher.bytes}
    print(json.dumps({name: value / HOURS for name, value in hourly.items()}))


if __name__ == "__main__":
    main()
