"""Brings topology, state and Events to the publisher: what was there before, what is wanted, what was confirmed."""

from __future__ import annotations

import logging

from agent.daemon.delivery import Delivery
from agent.daemon.events import news
from agent.daemon.metrics import Metrics
from agent.daemon.schedule import Schedule
from agent.publish import Event, Outcome, Publisher, PublishError, Recalls
from gputopo import __version__
from gputopo.crd.nodegpus import Allocation, NodeGpus, content_hash
from gputopo.labels import EncodeError, NodeFacts, encode, keys
from gputopo.model import NodeTopology

_log = logging.getLogger("gputopo.agent")


class Publication:
    """What one node publishes. Each delivery has a back-off of its own; the newest value is the one that is sent."""

    def __init__(self, publisher: Publisher, schedule: Schedule, heartbeat_s: float, metrics: Metrics) -> None:
        self._publisher = publisher
        self._metrics = metrics
        self._recall: Delivery[Recalls, NodeTopology | None] = Delivery(
            lambda source: source.recall(), schedule, float("inf")
        )
        if isinstance(publisher, Recalls):
            self._recall.want(publisher, float("-inf"))
        self._facts: Delivery[NodeFacts, Outcome] = Delivery(publisher.publish, schedule, heartbeat_s)
        self._state: Delivery[NodeGpus, bool] = Delivery(publisher.report, schedule, heartbeat_s, _essence)
        self._offered: NodeTopology | None = None  # the topology of the facts that are wanted
        self.published: NodeTopology | None = None  # that of the facts that were confirmed, now or by an earlier agent
        self.kept_by_others: tuple[str, ...] = ()

    @property
    def recalling(self) -> bool:
        """Whether it is not known yet what an earlier agent published; until then nothing is written.

        Without it a link that died before this process began was never there.
        """
        return self._recall.wanted is not None and self._recall.confirmed is None

    @property
    def complete(self) -> bool:
        """Whether the facts were confirmed at least once by this process."""
        return self._facts.confirmed is not None

    @property
    def changed(self) -> bool:
        """Whether facts are waiting."""
        return self._facts.behind_since is not None

    @property
    def behind(self) -> bool:
        """Whether anything is waiting."""
        return self.changed or self._state.behind_since is not None

    @property
    def error(self) -> str | None:
        """Why the last attempt to read or to write the Node failed."""
        return self._facts.error or self._recall.error

    def late(self, now: float, grace_s: float) -> bool:
        """Whether facts have been waiting for that long."""
        return self._facts.behind_since is not None and now - self._facts.behind_since >= grace_s

    def due(self) -> float:
        """When to call ``recall`` or ``deliver``."""
        return self._recall.due() if self.recalling else min(self._facts.due(), self._state.due())

    def recall(self, now: float) -> NodeTopology | None:
        """What an earlier agent published, once; what was offered meanwhile is forgotten, to be judged in its light."""
        if not self.recalling or self._recall.due() > now:
            return None
        self.published = self._recall.attempt(now)
        if self._recall.error is not None:
            self._failed("node", self._recall.error)
        elif self.published is not None:
            self._facts.wanted = None
        return self.published

    def offer(self, topology: NodeTopology, now: float, *, mirror: bool) -> None:
        """Want the Node to carry this."""
        try:
            facts = encode(topology)
        except EncodeError as error:  # a machine beyond every limit: what was published stays
            _log.error("encode", extra={"fields": {"error": str(error)}})
            return
        self._offered = topology
        self._facts.want(facts if mirror else facts._replace(mirrors={}), now)

    def tell(self, observed_at: str, allocations: tuple[Allocation, ...] | None, now: float) -> None:
        """Want ``NodeGpus`` to say this of what is offered."""
        if self._facts.wanted is not None:
            subject = content_hash(self._facts.wanted.annotations[keys.TOPOLOGY.key])
            self._state.want(NodeGpus(observed_at, subject, __version__, allocations), now)

    def deliver(self, now: float) -> None:
        """Send what is due."""
        if self._facts.due() <= now:
            self._publish(now)
        if self._state.due() <= now:
            written = self._state.attempt(now)
            self._told("nodegpus", self._state.error, written=bool(written))

    def _publish(self, now: float) -> None:
        outcome = self._facts.attempt(now)
        self._told("node", self._facts.error, written=outcome is not None and outcome.written)
        if outcome is None:
            return
        assert self._offered is not None
        self.kept_by_others = outcome.kept_by_others
        before, self.published = self.published, self._offered
        for event in news(before, self._offered):
            self._announce(event)

    def _announce(self, event: Event) -> None:
        """Tell people, once: what an Event that is lost would have said, the labels say all the same."""
        fields = {"reason": event.reason, "message": event.message}
        _log.log(logging.WARNING if event.warning else logging.INFO, "event", extra={"fields": fields})
        error = None
        try:
            self._publisher.announce(event)
        except PublishError as refused:
            error = str(refused)
        self._told("event", error, written=True)

    def _told(self, what: str, error: str | None, *, written: bool) -> None:
        if error is not None:
            self._failed(what, error)
        elif written:
            self._metrics.writes.labels(what).inc()
            _log.info("publish", extra={"fields": {"object": what, "written": True}})

    def _failed(self, what: str, error: str) -> None:
        self._metrics.publish_failures.labels(what).inc()
        _log.warning("publish", extra={"fields": {"object": what, "error": error}})


def _essence(state: NodeGpus) -> object:
    """What of a state is news; the time alone is the heartbeat's."""
    return state.content_hash, state.allocations
