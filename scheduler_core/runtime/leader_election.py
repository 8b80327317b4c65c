"""Leader election by a Lease, for extenders behind a Service and for planners. ``LeaseTiming`` has the timings.

The protocol is that of leader election in Kubernetes: the leader renews the Lease every ``retry_s``; another candidate
acquires it after it has not changed for the duration in its spec. Two rules prevent two leaders, whatever the clocks
say:

* Each candidate measures time by its own monotonic clock, from when it *observed* a change of the Lease. The times in
  the Lease are for people.
* The leader stops leading ``deadline_s`` after the *start* of its last successful renewal: ``is_leader`` compares the
  clock, so a process that was paused wakes up without the Lease. Other candidates observed that renewal after its start
  and wait ``duration_s``. The difference ``duration_s - deadline_s`` covers clock rates that differ by up to a third,
  and the effects of the last answers.

A candidate that cannot lead, because its watches are incomplete or silent, neither acquires nor renews the Lease.

A deleted Lease counts as a Lease that is not renewed, not as a free one: its leader writes it again.

``kubernetes.leaderelection`` of the Python client does not fit: it measures time by the wall clock, and has no
condition like ``can_lead``.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError
from gputopo.kube.leases import Lease, LeaseSpec
from gputopo.kube.rbac import LEASES
from gputopo.timestamps import format_micro_timestamp

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL.pattern}(\.{_LABEL.pattern})*")
_log = logging.getLogger(__name__)


class LeaseTiming(NamedTuple):
    """Seconds; the defaults of client-go and kube-scheduler."""

    duration_s: int = 15  # until a candidate acquires a Lease that is not renewed
    deadline_s: float = 10.0  # until the leader stops leading, from the start of its last renewal
    retry_s: float = 2.0
    call_s: float = 3.0  # timeout of one call: three attempts or more before the deadline
    settle_s: float = 5.0  # after a release: until all watches have shown the effects of the last answers


class LeaseObservation(NamedTuple):
    """The Lease as last read, and since when it is unchanged. ``spec`` None: the Lease does not exist."""

    spec: LeaseSpec | None
    since: float  # by the own monotonic clock


def observe_lease(before: LeaseObservation | None, spec: LeaseSpec | None, now: float) -> LeaseObservation:
    """Return the observation after a read of the Lease."""
    return before if before is not None and before.spec == spec else LeaseObservation(spec, now)


def may_acquire(observation: LeaseObservation, identity: str, now: float, timing: LeaseTiming) -> bool:
    """Return whether the Lease is the candidate's already, was released a while ago, or was not renewed in time."""
    if observation.spec is not None and observation.spec.holder_identity == identity:
        return True
    if observation.spec is not None and not observation.spec.holder_identity:
        return now - observation.since >= timing.settle_s
    duration = None if observation.spec is None else observation.spec.lease_duration_seconds
    return now - observation.since >= (duration or timing.duration_s)


def held_lease_spec(spec: LeaseSpec | None, identity: str, at: datetime, timing: LeaseTiming) -> LeaseSpec:
    """Return the Lease as its holder writes it."""
    stamp = format_micro_timestamp(at.timestamp())
    if spec is None:
        return LeaseSpec(identity, timing.duration_s, stamp, stamp, 0)
    renewed, transitions = spec.holder_identity == identity, spec.lease_transitions or 0
    return LeaseSpec(
        holder_identity=identity,
        lease_duration_seconds=timing.duration_s,
        acquire_time=spec.acquire_time if renewed else stamp,
        renew_time=stamp,
        lease_transitions=transitions if renewed else transitions + 1,
    )


class LeaseName(NamedTuple):
    """The name of a Lease."""

    namespace: str
    name: str

    def lease_body(self, spec: LeaseSpec, version: str = "") -> dict[str, Any]:
        """Return the Lease as it is sent."""
        metadata = {"name": self.name, "namespace": self.namespace}
        if version:
            metadata["resourceVersion"] = version
        return {
            "apiVersion": LEASES.api_version,
            "kind": "Lease",
            "metadata": metadata,
            "spec": msgspec.to_builtins(spec),
        }


def parse_lease_name(text: str) -> LeaseName:
    """Parse ``NAMESPACE/NAME``. Raises ``ValueError`` that says what to write."""
    namespace, slash, name = text.partition("/")
    if not (slash and _LABEL.fullmatch(namespace) and _SUBDOMAIN.fullmatch(name)):
        raise ValueError("expected NAMESPACE/NAME of a Lease, in lower-case letters, digits and - (the name also .)")
    return LeaseName(namespace, name)


class Election(Protocol):
    """The state of an election, for any thread."""

    @property
    def is_leader(self) -> bool:
        """Return whether this process, and no other, leads now."""
        ...

    @property
    def holder(self) -> str | None:
        """Return the holder of the Lease as last read."""
        ...

    @property
    def error(self) -> str | None:
        """Return the error of the last attempt, if it failed."""
        ...

    @property
    def renewed_at(self) -> float:
        """Return when the last successful renewal of this process began, in monotonic seconds; -inf: never."""
        ...


class LeaderElector:
    """A candidate from ``start`` to ``stop``. The properties are for any thread, the methods for one."""

    def __init__(
        self,
        kube: Kube,
        lease: LeaseName,
        identity: str,
        timing: LeaseTiming = LeaseTiming(),  # noqa: B008  frozen
        clock: Callable[[], float] = time.monotonic,
        can_lead: Callable[[], bool] = lambda: True,
    ) -> None:
        """``identity`` is unique to this process for all time: a restarted process must not believe that it leads.

        ``can_lead`` is called on the thread of the election: without it, this process neither acquires nor renews.
        """
        self.identity = identity
        self.error: str | None = None
        self.renewed_at = float("-inf")
        self._kube, self._lease, self._timing, self._clock = kube.with_timeout(timing.call_s), lease, timing, clock
        self._can_lead = can_lead
        self._observation: LeaseObservation | None = None
        self._leads_until = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def is_leader(self) -> bool:
        """Return whether this process, and no other, leads now."""
        return self._clock() < self._leads_until

    @property
    def holder(self) -> str | None:
        """Return the holder of the Lease as last read."""
        return (
            (self._observation.spec.holder_identity or None) if self._observation and self._observation.spec else None
        )

    def start(self) -> None:
        """Take part in the election, on its own thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop leading, then release the Lease, so that no candidate waits for expiry. Allowed before ``start``."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.is_leader:
            self._leads_until = float("-inf")
            self._attempt(self._release)

    def run_once(self) -> None:
        """Read the Lease once, and acquire or renew it if due."""
        led = self.is_leader
        self._attempt(self._take_part)
        if self.is_leader != led:
            _log.info("lease", extra={"fields": {"holds": not led, "holder": self.holder}})

    def _run(self) -> None:
        while not self._ended.is_set():
            self.run_once()
            self._ended.wait(self._timing.retry_s)

    def _attempt(self, action: Callable[[], None]) -> None:
        failure = None
        try:
            action()
        except ConflictError:  # another candidate wrote it meanwhile: the next read shows it
            pass
        except KubeError as error:
            failure = str(error)
        except Exception as error:  # noqa: BLE001  if the thread ended, this process would never lead again
            failure = repr(error)
        if failure != self.error:  # not at every attempt, every two seconds
            self.error = failure
            level = logging.INFO if failure is None else logging.WARNING
            fields = {"answers": True} if failure is None else {"error": failure}
            _log.log(level, "lease", extra={"fields": fields})

    def _take_part(self) -> None:
        started = self._clock()
        lease = self._read_lease()
        self._observation = observe_lease(self._observation, lease.spec if lease is not None else None, self._clock())
        deleted = self.is_leader and lease is None
        if not deleted and not may_acquire(self._observation, self.identity, self._clock(), self._timing):
            self._leads_until = float("-inf")
            return
        if not self._can_lead():
            return
        spec = held_lease_spec(self._observation.spec, self.identity, datetime.now(UTC), self._timing)
        self._write(spec, lease)
        self._observation = observe_lease(self._observation, spec, self._clock())
        self.renewed_at, self._leads_until = started, started + self._timing.deadline_s

    def _release(self) -> None:
        lease = self._read_lease()
        if lease is not None and lease.spec.holder_identity == self.identity:
            self._write(msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1), lease)

    def _read_lease(self) -> Lease | None:
        try:
            return self._kube.get(LEASES, self._lease.name, Lease, ListOptions(self._lease.namespace))
        except NotFoundError:
            return None

    def _write(self, spec: LeaseSpec, existing: Lease | None) -> None:
        if existing is None:
            self._kube.create(LEASES, self._lease.lease_body(spec))
        else:
            self._kube.replace(LEASES, self._lease.lease_body(spec, existing.metadata.resource_version))
