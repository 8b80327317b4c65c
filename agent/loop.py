"""The agent's state: news in, due work out. One thread turns it; it starts none and never sleeps.

    Probed, Reading, Woken ──turn(now, news)──▶ look, publish, report, announce ──▶ Step (probe again? end? until when?)

Time and everything that takes long is outside: ``agent.running`` asks the machine and the kubelet on threads of their
own, so that a driver that hangs does not keep the loop from telling so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from agent.allocation.devices import allocations
from agent.allocation.watch import Reading
from agent.delivery import Delivery
from agent.look import View, look, only_a_restart_helps
from agent.metrics import Metrics
from agent.news import news as events_between
from agent.publish import Event, Outcome, Publisher, PublishError, Recalls
from agent.schedule import Schedule
from agent.settings import Settings
from agent.snapshot import Snapshot
from agent.status import Status
from gputopo import __version__
from gputopo.labels import EncodeError, NodeFacts, encode, keys
from gputopo.labels.nodegpus import Allocation, NodeGpus, content_hash
from gputopo.model import NodeTopology

TICK_S = 5.0  # the loop turns at least this often, so that a probe of its health can tell it from a hanging one
SETTLE_S = 5.0  # between looks that the driver's events cause: a broken GPU reports many in a row
RETRY_S = 10.0  # between looks while NVML fails
STUCK_S = 300.0  # a look that takes longer hangs in the driver: nvidia-smi alone is given up after 60 s

_STORMS = frozenset({"xid", "lost"})  # reasons that the driver may give many times a second
_log = logging.getLogger("gputopo.agent")


class Probed(NamedTuple):
    """The machine was asked, which took that long."""

    snapshot: Snapshot
    seconds: float


class Woken(NamedTuple):
    """Something happened: look at once."""

    reason: str  # "xid", "lost", "hangup", "driver", "file", "allocation"


class Now(NamedTuple):
    """One moment."""

    monotonic: float  # seconds, for intervals
    unix: float  # seconds, for people


class Step(NamedTuple):
    """What the loop wants."""

    probe: bool  # ask the machine and come back with ``Probed``
    until: float  # come back then, if nothing happens before (monotonic)
    end: str | None  # why this process must end and be started anew; None: go on


News = Probed | Reading | Woken


class Loop:
    """The agent of one node. ``status`` is its state as of the last turn."""

    def __init__(self, settings: Settings, publisher: Publisher, metrics: Metrics) -> None:
        self._settings = settings
        self._publisher = publisher
        self._metrics = metrics
        self._schedule = Schedule(settings.node)
        self._view = View()
        self._recall: Delivery[Recalls, NodeTopology | None] = Delivery(
            lambda source: source.recall(), self._schedule, float("inf")
        )
        if isinstance(publisher, Recalls):
            self._recall.want(publisher, float("-inf"))
        self._published: NodeTopology | None = None
        self._offered: NodeTopology | None = None  # the topology of the facts that are wanted
        self._facts: Delivery[NodeFacts, Outcome] = Delivery(publisher.publish, self._schedule, settings.heartbeat_s)
        self._state: Delivery[NodeGpus, bool] = Delivery(
            publisher.report,
            self._schedule,
            settings.heartbeat_s,
            lambda state: (state.content_hash, state.allocations),
        )
        self._reading = Reading(None, "not asked" if settings.socket else "switched off")
        self._looked_at = float("-inf")
        self._next_look = float("-inf")
        self._looking_since: float | None = None
        self._observed_at: datetime | None = None
        self._others: tuple[str, ...] = ()
        self.status = Status(turned_at=float("-inf"))
        metrics.expose(lambda: self.status)

    def turn(self, now: Now, news: Iterable[News]) -> Step:
        """Take note of what happened and do what is due."""
        for each in news:
            if isinstance(each, Probed):
                self._look(now, each)
            elif isinstance(each, Reading):
                self._read(now, each)
            else:
                self._wake(now, each)
        if self._knows_what_was_published(now.monotonic):
            self._state_wanted(now)
            self._publish(now.monotonic)
            self._report(now.monotonic)
        probe = self._looking_since is None and now.monotonic >= self._next_look
        if probe:
            self._looking_since = now.monotonic
            self._next_look = float("inf")
        self.status = self._status(now)
        return Step(probe, self._until(now.monotonic), self._must_end(now.monotonic))

    # -- news -----------------------------------------------------------------------------------------------------

    def _look(self, now: Now, probed: Probed) -> None:
        self._looking_since = None
        self._view = look(self._view, probed.snapshot, now.monotonic, self._settings.hold_s)
        good = "nvml" not in self._view.failures
        self._plan_next_look(now.monotonic, good=good)
        self._metrics.passes.labels("ok" if good else "failed").inc()
        self._metrics.pass_seconds.observe(probed.seconds)
        for source in self._view.failures:
            self._metrics.source_failures.labels(source).inc()
        if good:
            self._observed_at = datetime.fromtimestamp(now.unix, UTC)
            self._offer(now.monotonic)
        self._log_pass(probed)

    def _plan_next_look(self, now: float, *, good: bool) -> None:
        """Where something woke the loop while it looked, ``_next_look`` is set already."""
        beat = self._schedule.first if self._looked_at == float("-inf") else self._schedule.next
        wait = beat(self._settings.interval_s)
        self._next_look = min(max(self._next_look, now + SETTLE_S), now + (wait if good else min(wait, RETRY_S)))
        self._looked_at = now

    def _offer(self, now: float) -> None:
        topology = self._view.topology
        assert topology is not None
        try:
            facts = encode(topology)
        except EncodeError as error:  # a machine beyond every limit: what was published stays
            _log.error("encode", extra={"fields": {"error": str(error)}})
            return
        self._offered = topology
        self._facts.want(facts if self._settings.mirror else facts._replace(mirrors={}), now)

    def _read(self, now: Now, reading: Reading) -> None:
        if reading.error != self._reading.error:
            level = logging.INFO if reading.error is None else logging.WARNING
            _log.log(level, "podresources", extra={"fields": {"error": reading.error}})
        self._reading = reading
        known = {gpu.uuid for gpu in self._view.observed.gpus} if self._view.observed is not None else set()
        if known and any(each.gpu not in known for each in self._allocations() or ()):
            self._wake(now, Woken("allocation"))  # a MIG device that was made since the last look

    def _wake(self, now: Now, woken: Woken) -> None:
        self._metrics.wakeups.labels(woken.reason).inc()
        settled = self._looked_at + SETTLE_S if woken.reason in _STORMS else now.monotonic
        self._next_look = min(self._next_look, max(now.monotonic, settled))

    # -- publishing -----------------------------------------------------------------------------------------------

    def _knows_what_was_published(self, now: float) -> bool:
        """Whether there is no more to recall: without that a link that died before this process began was never there.

        What was seen while the API server could not be asked is looked at again in that light.
        """
        if self._recall.wanted is None or self._recall.confirmed is not None:
            return True
        if self._recall.due() > now:
            return False
        recalled = self._recall.attempt(now)
        if self._recall.error is not None:
            self._failed("node", self._recall.error)
            return False
        if recalled is not None:
            self._published = recalled
            self._view = View(recalled=recalled, snapshot=self._view.snapshot)
            self._facts.wanted = None
            self._next_look = float("-inf")
        return True

    def _state_wanted(self, now: Now) -> None:
        if self._observed_at is None or self._facts.wanted is None:
            return
        self._state.want(
            NodeGpus(
                observed_at=self._observed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                content_hash=content_hash(self._facts.wanted.annotations[keys.TOPOLOGY.key]),
                agent_version=__version__,
                allocations=self._allocations(),
            ),
            now.monotonic,
        )

    def _allocations(self) -> tuple[Allocation, ...] | None:
        if self._reading.held is None or self._view.observed is None:
            return None
        return allocations(self._reading.held, self._view.observed.gpus)

    def _publish(self, now: float) -> None:
        if self._facts.due() > now:
            return
        outcome = self._facts.attempt(now)
        if outcome is None:
            self._failed("node", self._facts.error)
            return
        self._others = outcome.kept_by_others
        self._written("node", outcome.written)
        offered, before = self._offered, self._published
        assert offered is not None
        self._published = offered
        for event in events_between(before, offered):
            self._announce(event)

    def _report(self, now: float) -> None:
        if self._state.due() > now:
            return
        written = self._state.attempt(now)
        if written is None:
            self._failed("nodegpus", self._state.error)
        else:
            self._written("nodegpus", written)

    def _announce(self, event: Event) -> None:
        """Tell people, once: an Event that is lost is told by the labels all the same."""
        fields = {"reason": event.reason, "message": event.message}
        _log.log(logging.WARNING if event.warning else logging.INFO, "event", extra={"fields": fields})
        try:
            self._publisher.announce(event)
        except PublishError as error:
            self._failed("event", str(error))
        else:
            self._written("event", written=True)

    def _failed(self, what: str, error: str | None) -> None:
        self._metrics.publish_failures.labels(what).inc()
        _log.warning("publish", extra={"fields": {"object": what, "error": error}})

    def _written(self, what: str, written: bool) -> None:
        if written:
            self._metrics.writes.labels(what).inc()
            _log.info("publish", extra={"fields": {"object": what, "written": True}})

    # -- what there is to say -------------------------------------------------------------------------------------

    def _until(self, now: float) -> float:
        recalling = self._recall.wanted is not None and self._recall.confirmed is None
        deliveries = self._recall.due() if recalling else min(self._facts.due(), self._state.due())
        return min(self._next_look, deliveries, now + TICK_S)

    def _must_end(self, now: float) -> str | None:
        grace, since = self._settings.grace_s, self._view.failing_since
        if self._stuck(now):
            return f"a look at the machine has not ended within {STUCK_S:g} s: the driver hangs"
        if since is not None and now - since >= grace and only_a_restart_helps(self._view):
            return f"NVML fails for {now - since:.0f} s, and this process cannot recover: {self._view.failures['nvml']}"
        return None

    def _stuck(self, now: float) -> bool:
        return self._looking_since is not None and now - self._looking_since >= STUCK_S

    def _unready(self, now: float) -> str | None:
        """Why not everything is as it should be, where that lasts."""
        failing, behind = self._view.failing_since, self._facts.behind_since
        grace = self._settings.grace_s
        if self._facts.confirmed is None:
            return f"nothing is published yet: {self._facts.error or self._view.failures.get('nvml') or 'starting'}"
        if failing is not None and now - failing >= grace:
            return f"NVML fails, and what was published stays: {self._view.failures['nvml']}"
        if behind is not None and now - behind >= grace:
            return f"what changed is not published yet: {self._facts.error}"
        return self._must_end(now)

    def _status(self, now: Now) -> Status:
        epoch = now.unix - now.monotonic
        return Status(
            turned_at=now.monotonic,
            observed=self._view.observed,
            published=self._published,
            observed_at=None if self._observed_at is None else self._observed_at.timestamp(),
            failures=self._view.failures,
            good_at={source: epoch + at for source, at in self._view.good_at.items()},
            allocations=self._allocations(),
            podresources=self._reading.error,
            kept_by_others=self._others,
            behind=self._facts.behind_since is not None or self._state.behind_since is not None,
            unready=self._unready(now.monotonic),
        )

    def _log_pass(self, probed: Probed) -> None:
        """The one line of a look."""
        seen = self._view.observed
        fields: dict[str, object] = {
            "outcome": "failed" if "nvml" in self._view.failures else "ok",
            "duration_s": round(probed.seconds, 3),
            "gpus": None if seen is None else len(seen.gpus),
            "usable": None if seen is None else len(seen.usable),
            "islands": None if seen is None or seen.islands is None else [island.size for island in seen.islands],
            "degraded": None if seen is None else [each.what for each in seen.degraded],
            "kept": dict(self._view.failures),  # sources whose earlier facts stand in
            "changed": self._facts.behind_since is not None,
        }
        _log.info("pass", extra={"fields": fields})
