"""Which of several extenders answers: the holder of a Lease, and nobody while that is in doubt.

As leader election in Kubernetes goes: the holder writes the Lease every ``retry_s``; who else wants it takes it once it
has not changed for the duration that it names. Two rules keep two from answering at once, whatever their clocks say:

* Time is measured by one's own monotonic clock, from when one *saw* the Lease change. What the record says of the time
  is for people.
* The holder stops answering ``deadline_s`` after it *began* its last write that succeeded, by itself: ``holds`` is read
  off the clock, so a process that was paused wakes up without the Lease. Others saw that write later than it began and
  wait ``duration_s``, so ``duration_s - deadline_s`` is between the two, for clocks of different pace (by up to a
  third) and for what the last answer leads to.

Who is not fit to answer, its watches not in or silent, neither takes nor renews it, and so makes way for one that is.

A Lease that was deleted counts as one that nobody renews, not as a free one: its holder writes it again.
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
from gputopo.kube.objects import ObjectMeta
from gputopo.kube.rbac import LEASES
from gputopo.timestamps import format_micro_timestamp

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){_LABEL.pattern}(\.{_LABEL.pattern})*")
_log = logging.getLogger(__name__)


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``coordination.k8s.io/v1`` LeaseSpec."""

    holder_identity: str | None = None  # None and "": released
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class LeaseTiming(NamedTuple):
    """Seconds; client-go's defaults, which kube-scheduler has too."""

    duration_s: int = 15  # who does not hold it waits that long
    deadline_s: float = 10.0  # who holds it stops answering that long after its last renewal began
    retry_s: float = 2.0
    call_s: float = 3.0  # for one answer of the API server: three tries and more before the deadline
    settle_s: float = 5.0  # after it was let go: until what the last answers led to has shown in everybody's watch


class LeaseObservation(NamedTuple):
    """What the Lease was when last read, and since when it has been so. ``spec`` is None: there is none."""

    spec: LeaseSpec | None
    since: float  # of the reader's own clock


def observe_lease(before: LeaseObservation | None, spec: LeaseSpec | None, now: float) -> LeaseObservation:
    """What is known after a look at the Lease."""
    return before if before is not None and before.spec == spec else LeaseObservation(spec, now)


def may_acquire(found: LeaseObservation, me: str, now: float, timing: LeaseTiming) -> bool:
    """Whether the Lease is mine already, was let go a while ago, or has not been renewed for its duration."""
    if found.spec is not None and found.spec.holder_identity == me:
        return True
    if found.spec is not None and not found.spec.holder_identity:
        return now - found.since >= timing.settle_s
    named = None if found.spec is None else found.spec.lease_duration_seconds
    return now - found.since >= (named or timing.duration_s)


def held_lease_spec(spec: LeaseSpec | None, me: str, at: datetime, timing: LeaseTiming) -> LeaseSpec:
    """The Lease as its holder writes it."""
    stamp = format_micro_timestamp(at.timestamp())
    if spec is None:
        return LeaseSpec(me, timing.duration_s, stamp, stamp, 0)
    mine, transitions = spec.holder_identity == me, spec.lease_transitions or 0
    return LeaseSpec(
        me, timing.duration_s, spec.acquire_time if mine else stamp, stamp, transitions if mine else transitions + 1
    )


class LeaseName(NamedTuple):
    """Which Lease it is."""

    namespace: str
    name: str

    def lease_body(self, spec: LeaseSpec, version: str = "") -> dict[str, Any]:
        """The Lease as it is sent."""
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
    """``NAMESPACE/NAME``. Raises ``ValueError`` that says what to write."""
    namespace, slash, name = text.partition("/")
    if not (slash and _LABEL.fullmatch(namespace) and _SUBDOMAIN.fullmatch(name)):
        raise ValueError("write NAMESPACE/NAME of a Lease, both in lower-case letters, digits and - (the name also .)")
    return LeaseName(namespace, name)


class Election(Protocol):
    """``Leader``, of which any thread may ask."""

    @property
    def is_leader(self) -> bool:
        """Whether this process, and no other, may answer now."""
        ...

    @property
    def holder(self) -> str | None:
        """Who holds the Lease, when last seen."""
        ...

    @property
    def error(self) -> str | None:
        """What the API server said to the last look at it, where it was not looked at in vain."""
        ...


class LeaderElector:
    """Takes part in the election from ``start`` to ``stop``. ``holds`` is for any thread, the rest for one."""

    def __init__(
        self,
        kube: Kube,
        lease: LeaseName,
        me: str,
        timing: LeaseTiming = LeaseTiming(),  # noqa: B008  frozen
        clock: Callable[[], float] = time.monotonic,
        fit: Callable[[], bool] = lambda: True,
    ) -> None:
        """``me`` is a name that no other process has or had: a restarted one must not believe that it holds.

        ``fit``: whether this process could answer. One that could not takes no Lease and renews none; called on the
        thread of the election.
        """
        self.identity = me
        self.error: str | None = None
        self._kube, self._lease, self._timing, self._clock = kube.with_timeout(timing.call_s), lease, timing, clock
        self._fit = fit
        self._seen: LeaseObservation | None = None
        self._until = float("-inf")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    @property
    def is_leader(self) -> bool:
        """Whether this process, and no other, may answer now."""
        return self._clock() < self._until

    @property
    def holder(self) -> str | None:
        """Who held it when last seen."""
        return (self._seen.spec.holder_identity or None) if self._seen and self._seen.spec else None

    def start(self) -> None:
        """Take part, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, then let go of the Lease, so that nobody waits for it to run out. Also before ``start``."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.is_leader:
            self._until = float("-inf")
            self._attempt(self._release)

    def run_once(self) -> None:
        """Look at the Lease once, and take or renew it where that is due."""
        held = self.is_leader
        self._attempt(self._take_part)
        if self.is_leader != held:
            _log.info("lease", extra={"fields": {"holds": not held, "holder": self.holder}})

    def _run(self) -> None:
        while not self._ended.is_set():
            self.run_once()
            self._ended.wait(self._timing.retry_s)

    def _attempt(self, what: Callable[[], None]) -> None:
        trouble = None
        try:
            what()
        except ConflictError:  # somebody wrote it meanwhile: the next look tells what, and time who may answer
            pass
        except KubeError as error:
            trouble = str(error)
        except Exception as error:  # noqa: BLE001  a thread that ends would never hold the Lease again
            trouble = repr(error)
        if trouble != self.error:  # every two seconds the same would be said
            self.error = trouble
            level = logging.INFO if trouble is None else logging.WARNING
            fields = {"answers": True} if trouble is None else {"error": trouble}
            _log.log(level, "lease", extra={"fields": fields})

    def _take_part(self) -> None:
        began = self._clock()
        lease = self._read()
        self._seen = observe_lease(self._seen, lease.spec if lease is not None else None, self._clock())
        mine = self.is_leader and lease is None
        if not mine and not may_acquire(self._seen, self.identity, self._clock(), self._timing):
            self._until = float("-inf")
            return
        if not self._fit():
            return
        spec = held_lease_spec(self._seen.spec, self.identity, datetime.now(UTC), self._timing)
        self._write(spec, lease)
        self._seen = observe_lease(self._seen, spec, self._clock())
        self._until = began + self._timing.deadline_s

    def _release(self) -> None:
        lease = self._read()
        if lease is not None and lease.spec.holder_identity == self.identity:
            self._write(msgspec.structs.replace(lease.spec, holder_identity="", lease_duration_seconds=1), lease)

    def _read(self) -> Lease | None:
        try:
            return self._kube.get(LEASES, self._lease.name, Lease, ListOptions(self._lease.namespace))
        except NotFoundError:
            return None

    def _write(self, spec: LeaseSpec, over: Lease | None) -> None:
        if over is None:
            self._kube.create(LEASES, self._lease.lease_body(spec))
        else:
            self._kube.replace(LEASES, self._lease.lease_body(spec, over.metadata.resource_version))
