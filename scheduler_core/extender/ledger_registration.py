"""What an extender says of itself in every ledger: that it answers, and what it vouches for. Pure, but for its memory.

Planners commit nothing before all extenders that are registered have vouched for it. So an extender registers before it
answers anything, and answers nothing while a ledger does not show it, in its own watch: whatever was committed by then
it knows of. It vouches for nothing in the first ``ASSUMED_POD_LIFETIME_S`` in which it answers: by then what
others let in before is bound, or will never be.

What is said is said once. It is said again where the ledger does not show it after a while, and where a ledger was
made anew.
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
from scheduler_core.evaluation.reservation_check import ExtenderView, ReservationChecker, policy_for_pod
from scheduler_core.policy.profiles import Policies

REWRITE_S = 1.0  # after that long what is not shown is said again
UNMATCHED_S = (
    10.0  # an entry whose reservation was not shown for that long has none: two watches are never so far apart
)
_REST = (
    10.0  # times as long as a look took nothing is looked at again, unless planners wrote: a tenth of the loop's time
)

WriteAck = Callable[[LedgerUpdate, ExtenderAck | None], None]  # write that to the ledger; None: take it away


class _WrittenAck(NamedTuple):
    ledger: str  # its UID
    vouching: ExtenderAck | None
    at: float


class LedgerRegistration:
    """Of one process. Lives on the loop's thread."""

    def __init__(
        self,
        me: str,
        pod: str,
        knowledge: ClusterCache,
        say: WriteAck,
        clock: Callable[[], float],
        settle_s: float = ASSUMED_POD_LIFETIME_S,
    ) -> None:
        """``me``: a name that no other process has or had. ``pod``: in which it runs, NAMESPACE/NAME, or "".

        ``clock``: monotonic seconds.
        """
        self.identity = me
        self._pod = pod
        self._knowledge = knowledge
        self._write_ack = say
        self._clock = clock
        self._settle_s = settle_s
        self._checker = ReservationChecker()
        self._policies: Policies | None = None
        self._since: float | None = None  # since when it answers, or would if it were shown
        self._term = 0  # times that it began to, before
        self._ended: float | None = None  # since when it does not
        self._written: dict[str, _WrittenAck] = {}  # by ledger
        self._unmatched: dict[str, float] = {}  # since when there are entries without a reservation
        self._next_look = float("-inf")
        self.not_ready_reason: str | None = None  # why nothing may be answered; None: it may

    def update(self, policies: Policies, *, answering: bool, urgent: bool = False) -> None:
        """Say what is to be said now. ``answering``: all else that it needs to answer is there."""
        now = self._clock()
        if now < self._next_look and not urgent:
            return
        if policies is not self._policies:
            self._policies = policies
            self._checker.reset()
        self._update_term(now, answering=answering)
        self._note_unseen(now)
        ledgers = self._knowledge.reservations.ledgers
        self._checker.retain_only(self._knowledge.reservations.active)
        self._written = {name: said for name, said in self._written.items() if name in ledgers}
        for ledger in ledgers.values():
            self._write_if_changed(ledger, self._wanted_ack(ledger, policies, now), now)
        self.not_ready_reason = self._not_shown_reason()
        ended = self._clock()
        self._next_look = ended + _REST * (ended - now)

    def _update_term(self, now: float, *, answering: bool) -> None:
        """Begin to answer, go on, or end.

        Who begins again must see that shown: what its watch showed before may be from before it was struck.
        """
        if answering and self._since is None:
            self._term += self._ended is not None
            self._since, self._ended = now, None
        elif not answering and self._since is not None:
            self._since, self._ended = None, now

    @property
    def settling(self) -> bool:
        """Whether pods that others let in, or it did before it was cut off, may be on their way unseen."""
        return self._since is None or self._clock() - self._since < self._settle_s

    @property
    def showing_ledgers(self) -> tuple[LedgerUpdate, ...]:
        """The ledgers that show it."""
        return tuple(each for each in self._knowledge.reservations.ledgers.values() if self.identity in each.extenders)

    def withdraw(self) -> None:
        """Take every registration back. After that nothing is to be looked at any more."""
        for ledger in self.showing_ledgers:
            self._write_ack(ledger, None)

    def _wanted_ack(self, ledger: LedgerUpdate, policies: Policies, now: float) -> ExtenderAck | None:
        """What the ledger is to show."""
        if self._since is None:
            shown = ledger.extenders.get(self.identity)
            open_ = (
                self._ended is not None
                and now - self._ended < ASSUMED_POD_LIFETIME_S
                and len(self._knowledge.assumed_pods)
            )
            return shown if open_ else None  # whom it let in may not be bound yet: it vouches for nothing new
        said = self._written.get(ledger.key)
        before = said.vouching if said is not None and said.ledger == ledger.uid else None
        if now - self._since < self._settle_s:
            return ExtenderAck(self._pod, term=self._term)
        proposed = any(entry.phase is EntryPhase.PROPOSED for entry in ledger.spec.entries)
        # Whom it let in and has forgotten since it counted when it vouched last, but would not now.
        if before is not None and before.generation and (not proposed or self._knowledge.assumed_pods.has_overflowed):
            return before
        if self._knowledge.assumed_pods.has_overflowed:
            return ExtenderAck(self._pod, term=self._term)
        known = self._knowledge
        seen = ExtenderView(known.table, known.pods, known.assumed_pods.on_several_nodes)
        found = self._checker.acknowledge(
            ledger, known.reservations, seen, lambda pod: policy_for_pod(policies, pod), self._pod
        )
        return msgspec.structs.replace(found, term=self._term)

    def _write_if_changed(self, ledger: LedgerUpdate, wanted: ExtenderAck | None, now: float) -> None:
        said = self._written.get(ledger.key)
        if ledger.extenders.get(self.identity) == wanted:
            self._written[ledger.key] = _WrittenAck(ledger.uid, wanted, now)
        elif said is None or said[:2] != (ledger.uid, wanted) or now - said.at >= REWRITE_S:
            self._written[ledger.key] = _WrittenAck(ledger.uid, wanted, now)
            self._write_ack(ledger, wanted)

    def _note_unseen(self, now: float) -> None:
        unseen = (
            entry.uid
            for entry in self._knowledge.reservations.unmatched_entries
            if entry.phase is not EntryPhase.PROPOSED
        )
        self._unmatched = {uid: self._unmatched.get(uid, now) for uid in unseen}

    def _not_shown_reason(self) -> str | None:
        for name, ledger in self._knowledge.reservations.ledgers.items():
            shown = ledger.extenders.get(self.identity)
            if shown is None or shown.term != self._term:
                return f"the ledger {name} does not show this extender yet, so planners do not know that it answers"
        waiting = [uid for uid, since in self._unmatched.items() if self._clock() - since < UNMATCHED_S]
        return f"gputopo has not seen the reservation {waiting[0]} yet, which a ledger lists" if waiting else None


def apply_body(ledger: LedgerUpdate, me: str, vouching: ExtenderAck | None) -> dict[str, Any]:
    """What is applied to the ledger's status; without one, what was applied before is taken away.

    An empty map in its place is refused: where nobody else is left in it, the API server makes it null.
    """
    body = {
        "apiVersion": f"{API_GROUP}/{VERSION}",
        "kind": LEDGER_KIND,
        "metadata": {"name": ledger.key, "uid": ledger.uid},  # not of another one of that name
    }
    if vouching is None:
        return body
    said = msgspec.structs.asdict(vouching) | {"blocked": list(vouching.blocked)}
    return {**body, "status": {"extenders": {me: said}}}
