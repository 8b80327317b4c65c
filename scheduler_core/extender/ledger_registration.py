"""The status of an extender in every ledger: that it answers, and what it acknowledges. Pure, except for its memory.

Planners commit a reservation only after all registered extenders have acknowledged it. So an extender registers before
it answers calls, and answers no calls while its own watch shows a ledger without its registration: it then knows of
every earlier commit. It acknowledges nothing in the first ``ASSUMED_POD_LIFETIME_S`` in which it answers: after that
time, each pod that other extenders accepted before is either bound or will never be.

After a restart of its container it names the registration of the previous process as replaced. So the planner waits for
the end of that registration while this process settles, and not after it.

The extender writes a status once, and again if the ledger does not show it after a while or was recreated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.reservations import LEDGER_KIND, VERSION, EntryPhase, ExtenderAck
from gputopo.labels.keys import API_GROUP
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.evaluation.reservation_check import ExtenderView, ReservationChecker
from scheduler_core.policy.profiles import Policies

MAX_REPLACED = (
    16  # previous processes that a status names: a container that crashes in a loop leaves one after the other
)
REWRITE_S = 1.0  # a status that the ledger does not show is written again after this time
# An entry without a reservation for this time has none: two watches are never so far apart.
UNMATCHED_S = 10.0
# An update is followed by a pause of this many times its duration, except after writes of planners: the updates take at
# most a tenth of the event loop's time.
_PAUSE_FACTOR = 10.0

WriteAck = Callable[[LedgerUpdate, ExtenderAck | None], None]  # write the status to the ledger; None: remove it


class _WrittenAck(NamedTuple):
    ledger: str  # its UID
    ack: ExtenderAck | None
    at: float


class LedgerRegistration:
    """The registration of one process. For the thread of the event loop."""

    def __init__(
        self,
        identity: str,
        pod: str,
        cache: ClusterCache,
        write_ack: WriteAck,
        clock: Callable[[], float],
        settle_s: float = ASSUMED_POD_LIFETIME_S,
    ) -> None:
        """``identity``: unique to this process for all time. ``pod``: of this process, NAMESPACE/NAME, or "".

        ``clock``: monotonic seconds.
        """
        self.identity = identity
        self._pod = pod
        self._cache = cache
        self._write_ack = write_ack
        self._clock = clock
        self._settle_s = settle_s
        self._checker = ReservationChecker()
        self._policies: Policies | None = None
        self._answering_since: float | None = None  # or would answer, if the ledgers showed it
        self._term = 0  # how often it has resumed answering
        self._stopped_at: float | None = None
        self._written: dict[str, _WrittenAck] = {}  # by ledger
        self._unmatched: dict[str, float] = {}  # first time of each entry without a reservation
        self._next_update = float("-inf")
        self.not_ready_reason: str | None = None  # None: calls may be answered

    def update(self, policies: Policies, *, answering: bool, urgent: bool = False) -> None:
        """Write the statuses that are due. ``answering``: calls can be answered, apart from the registration."""
        now = self._clock()
        if now < self._next_update and not urgent:
            return
        if policies is not self._policies:
            self._policies = policies
            self._checker.reset()
        self._update_term(now, answering=answering)
        self._update_unmatched(now)
        ledgers = self._cache.reservations.ledgers
        self._checker.retain_only(self._cache.reservations.active)
        self._written = {name: written for name, written in self._written.items() if name in ledgers}
        for ledger in ledgers.values():
            self._write_if_changed(ledger, self._wanted_ack(ledger, policies, now), now)
        self.not_ready_reason = self._find_not_ready_reason()
        ended = self._clock()
        self._next_update = ended + _PAUSE_FACTOR * (ended - now)

    def _update_term(self, now: float, *, answering: bool) -> None:
        """Begin, continue or stop answering.

        An extender that resumes needs a new term in the ledgers: its watch may still show the registration of the
        previous term although a planner has removed it since.
        """
        if answering and self._answering_since is None:
            self._term += self._stopped_at is not None
            self._answering_since, self._stopped_at = now, None
        elif not answering and self._answering_since is not None:
            self._answering_since, self._stopped_at = None, now

    @property
    def settling(self) -> bool:
        """Return whether pods that were accepted before this term may still be in flight, unknown to the cache."""
        return self._answering_since is None or self._clock() - self._answering_since < self._settle_s

    @property
    def showing_ledgers(self) -> tuple[LedgerUpdate, ...]:
        """Return the ledgers that show this extender."""
        return tuple(each for each in self._cache.reservations.ledgers.values() if self.identity in each.extenders)

    def withdraw(self) -> None:
        """Remove the registration from all ledgers. Call ``update`` no more after this."""
        for ledger in self.showing_ledgers:
            self._write_ack(ledger, None)

    def _wanted_ack(self, ledger: LedgerUpdate, policies: Policies, now: float) -> ExtenderAck | None:
        """Return the status that the ledger is to show."""
        assumed = self._cache.assumed_pods
        if self._answering_since is None:
            # Pods that it accepted may not be bound yet, so it stays registered, but acknowledges nothing new.
            in_flight = (
                self._stopped_at is not None and now - self._stopped_at < ASSUMED_POD_LIFETIME_S and len(assumed)
            )
            return ledger.extenders.get(self.identity) if in_flight else None
        written = self._written.get(ledger.key)
        before = written.ack if written is not None and written.ledger == ledger.uid else None
        unsettled = ExtenderAck(self._pod, term=self._term, replaces=self._replaced(ledger, before))
        if now - self._answering_since < self._settle_s:
            return unsettled
        proposed = any(entry.phase is EntryPhase.PROPOSED for entry in ledger.spec.entries)
        # The last acknowledgement considered accepted pods that have been dropped since; a new one would not.
        if before is not None and before.generation and (not proposed or assumed.has_overflowed):
            return before
        if assumed.has_overflowed:
            return unsettled
        view = ExtenderView(self._cache.snapshot, self._cache.pods, assumed.on_several_nodes)
        ack = self._checker.acknowledge(
            ledger, self._cache.reservations, view, lambda pod: policies.policy_for(pod.request), self._pod
        )
        return msgspec.structs.replace(ack, term=self._term, replaces=unsettled.replaces)

    def _replaced(self, ledger: LedgerUpdate, before: ExtenderAck | None) -> tuple[str, ...]:
        """Return the previous processes of this pod, also those that left the ledger: a shorter list saves no write."""
        if not self._pod:
            return ()
        named = () if before is None else before.replaces
        shown = sorted(name for name, each in ledger.extenders.items() if each.pod == self._pod)
        return tuple(dict.fromkeys((*named, *(name for name in shown if name != self.identity))))[-MAX_REPLACED:]

    def _write_if_changed(self, ledger: LedgerUpdate, wanted: ExtenderAck | None, now: float) -> None:
        written = self._written.get(ledger.key)
        if ledger.extenders.get(self.identity) == wanted:
            self._written[ledger.key] = _WrittenAck(ledger.uid, wanted, now)
        elif written is None or written[:2] != (ledger.uid, wanted) or now - written.at >= REWRITE_S:
            self._written[ledger.key] = _WrittenAck(ledger.uid, wanted, now)
            self._write_ack(ledger, wanted)

    def _update_unmatched(self, now: float) -> None:
        unmatched = (
            entry.uid for entry in self._cache.reservations.unmatched_entries if entry.phase is not EntryPhase.PROPOSED
        )
        self._unmatched = {uid: self._unmatched.get(uid, now) for uid in unmatched}

    def _find_not_ready_reason(self) -> str | None:
        for name, ledger in self._cache.reservations.ledgers.items():
            shown = ledger.extenders.get(self.identity)
            if shown is None or shown.term != self._term:
                return f"this extender is not registered in the ledger {name} yet, so planners do not know of it"
        waiting = [uid for uid, since in self._unmatched.items() if self._clock() - since < UNMATCHED_S]
        return f"a ledger lists the reservation {waiting[0]}, which the watch has not shown yet" if waiting else None


def apply_body(ledger: LedgerUpdate, identity: str, ack: ExtenderAck | None) -> dict[str, Any]:
    """Return the body to apply to the ledger's status; without ``ack`` it removes what was applied before.

    A body with an empty map would be rejected: if no other extender is left, the API server makes it null.
    """
    body = {
        "apiVersion": f"{API_GROUP}/{VERSION}",
        "kind": LEDGER_KIND,
        "metadata": {"name": ledger.key, "uid": ledger.uid},  # not of another ledger with that name
    }
    if ack is None:
        return body
    status = msgspec.structs.asdict(ack) | {"blocked": list(ack.blocked), "replaces": list(ack.replaces)}
    if not ack.replaces:
        del status["replaces"]  # unknown to older definitions of the ledger
    return {**body, "status": {"extenders": {identity: status}}}
