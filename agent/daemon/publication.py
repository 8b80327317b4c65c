"""Publishes topology, state and Events, and reads back what an earlier agent published."""

from __future__ import annotations

import logging

from agent.daemon.delivery import Delivery, SlowPart
from agent.daemon.events import events_between, restored_event
from agent.daemon.metrics import AgentMetrics
from agent.daemon.schedule import NodeSchedule
from agent.publish import NodeEvent, Publisher, PublishError, PublishOutcome, ReadsPublished
from gputopo import __version__
from gputopo.crd.nodegpus import (
    MAX_NICS,
    MAX_RATE_GBPS,
    MAX_SHORT_TEXT,
    DeviceAllocation,
    GpuUsage,
    KubeletFacts,
    NicAllocation,
    NicRate,
    NodeGpus,
    bounds_error,
    content_hash,
)
from gputopo.labels import EncodedTopology, EncodeError, encode_topology, keys
from gputopo.model import NodeTopology

_log = logging.getLogger("gputopo.agent")
_USAGE_S = 600.0  # between writes that only the use of GPUs causes; with other writes it is sent along
_KINDS = {"node": "Node", "nodegpus": "NodeGpus"}  # of the objects, in metrics and in Events


class Publication:
    """The published state of one node. Each delivery has its own back-off and sends only the newest value."""

    def __init__(self, publisher: Publisher, schedule: NodeSchedule, heartbeat_s: float, metrics: AgentMetrics) -> None:
        self._publisher = publisher
        self._metrics = metrics
        self._published_read: Delivery[ReadsPublished, NodeTopology | None] = Delivery(
            lambda source: source.read_published(), schedule, float("inf")
        )
        if isinstance(publisher, ReadsPublished):
            self._published_read.set_wanted(publisher, float("-inf"))
        self._facts: Delivery[EncodedTopology, PublishOutcome] = Delivery(
            publisher.publish_facts, schedule, heartbeat_s
        )
        self._state: Delivery[NodeGpus, PublishOutcome] = Delivery(
            publisher.write_state,
            schedule,
            heartbeat_s,
            _compared_fields,
            SlowPart(lambda state: state.usage, _USAGE_S),
        )
        self._wanted_topology: NodeTopology | None = None  # the topology of the wanted facts
        self.published: NodeTopology | None = None  # the topology of the confirmed facts, of this or an earlier agent
        self.kept_by_others: tuple[str, ...] = ()
        self._checked: object = None  # the last allocations of GPUs and NICs, and facts of the kubelet
        self.allocations_error: str | None = None  # why they do not fit into ``NodeGpus``

    @property
    def awaiting_published(self) -> bool:
        """True if the topology that an earlier agent published is still unread; until then nothing is written.

        Without it, a link that failed before this process started would not be reported as missing.
        """
        return self._published_read.wanted is not None and self._published_read.confirmed is None

    @property
    def facts_confirmed(self) -> bool:
        """True if this process has published the facts at least once."""
        return self._facts.confirmed is not None

    @property
    def facts_pending(self) -> bool:
        """True if changed facts are not published yet."""
        return self._facts.pending_since is not None

    @property
    def pending(self) -> bool:
        """True if changed facts or state are not published yet."""
        return self.facts_pending or self._state.pending_since is not None

    @property
    def error(self) -> str | None:
        """The error of the last attempt to read or write the Node."""
        return self._facts.error or self._published_read.error

    def facts_overdue(self, now: float, grace_s: float) -> bool:
        """Return whether changed facts have been unpublished for ``grace_s`` seconds."""
        return self._facts.pending_since is not None and now - self._facts.pending_since >= grace_s

    def next_due_at(self) -> float:
        """Return when to call ``load_published`` or ``send_due``."""
        return (
            self._published_read.next_attempt_at()
            if self.awaiting_published
            else min(self._facts.next_attempt_at(), self._state.next_attempt_at())
        )

    def load_published(self, now: float) -> NodeTopology | None:
        """Return the topology that an earlier agent published, once. Facts set before are dropped and recomputed."""
        if not self.awaiting_published or self._published_read.next_attempt_at() > now:
            return None
        self.published = self._published_read.attempt(now)
        if self._published_read.error is not None:
            self._record_failure("node", self._published_read.error)
        elif self.published is not None:
            self._facts.wanted = None
        return self.published

    def set_topology(self, topology: NodeTopology, now: float, *, mirror: bool) -> None:
        """Set the topology to publish on the Node."""
        try:
            facts = encode_topology(topology)
        except EncodeError as error:  # the machine exceeds a limit: the published facts stay
            _log.error("encode", extra={"fields": {"error": str(error)}})
            return
        self._wanted_topology = topology
        self._facts.set_wanted(facts if mirror else facts._replace(mirrors={}), now)

    def set_state(
        self,
        observed_at: str,
        allocations: tuple[DeviceAllocation, ...] | None,
        nics: tuple[NicAllocation, ...] | None,
        kubelet: KubeletFacts | None,
        usage: tuple[GpuUsage, ...] | None,
        now: float,
    ) -> None:
        """Set the content of ``NodeGpus`` for the current facts. Allocations beyond its bounds count as unknown."""
        if self._facts.wanted is not None:
            subject = content_hash(self._facts.wanted.annotations[keys.TOPOLOGY.key])
            rates = None if self._wanted_topology is None else nic_rates(self._wanted_topology)
            state = NodeGpus(observed_at, subject, __version__, allocations, nics, kubelet, usage, rates)
            if (allocations, nics, kubelet) != self._checked:
                self._checked, self.allocations_error = (allocations, nics, kubelet), bounds_error(state)
                if self.allocations_error is not None:
                    _log.warning("allocations", extra={"fields": {"error": self.allocations_error}})
            if self.allocations_error is not None:
                state = NodeGpus(observed_at, subject, __version__)
            self._state.set_wanted(state, now)

    def send_due(self, now: float) -> None:
        """Send the values that are due."""
        if self._facts.next_attempt_at() <= now:
            self._send_facts(now)
        if self._state.next_attempt_at() <= now:
            outcome = self._state.attempt(now)
            self._record_outcome("nodegpus", self._state.error, outcome)

    def _send_facts(self, now: float) -> None:
        outcome = self._facts.attempt(now)
        self._record_outcome("node", self._facts.error, outcome)
        if outcome is None:
            return
        assert self._wanted_topology is not None
        self.kept_by_others = outcome.kept_by_others
        before, self.published = self.published, self._wanted_topology
        for event in events_between(before, self._wanted_topology):
            self._write_event(event)

    def _write_event(self, event: NodeEvent) -> None:
        """Write an Event, without retry: the labels carry the same information."""
        fields = {"reason": event.reason, "message": event.message}
        _log.log(logging.WARNING if event.warning else logging.INFO, "event", extra={"fields": fields})
        error = None
        try:
            self._publisher.write_event(event)
        except PublishError as refused:
            error = str(refused)
        self._record_result("event", error, written=True)

    def _record_outcome(self, what: str, error: str | None, outcome: PublishOutcome | None) -> None:
        self._record_result(what, error, written=outcome is not None and outcome.written)
        if outcome is not None and outcome.renewed:
            self._metrics.writes.labels("lease").inc()
        if outcome is not None and outcome.restored:
            self._metrics.restorations.labels(what).inc()
            self._write_event(restored_event(_KINDS[what], outcome.restored))

    def _record_result(self, what: str, error: str | None, *, written: bool) -> None:
        if error is not None:
            self._record_failure(what, error)
        elif written:
            self._metrics.writes.labels(what).inc()
            _log.info("publish", extra={"fields": {"object": what, "written": True}})

    def _record_failure(self, what: str, error: str) -> None:
        self._metrics.publish_failures.labels(what).inc()
        _log.warning("publish", extra={"fields": {"object": what, "error": error}})


def nic_rates(topology: NodeTopology) -> tuple[NicRate, ...] | None:
    """Return the rates of the NICs whose rate is known and within the bounds of ``NodeGpus``; None if there is none."""
    known = ((nic.name, nic.rate_gbps) for nic in topology.nics if len(nic.name) <= MAX_SHORT_TEXT)
    found = [NicRate(name, rate) for name, rate in known if rate and rate <= MAX_RATE_GBPS]
    return tuple(found[:MAX_NICS]) or None


def _compared_fields(state: NodeGpus) -> object:
    """The fields whose change is written at once; a new time alone waits for the heartbeat."""
    return state.content_hash, state.allocations, state.nics, state.kubelet
