"""One term of leadership: what was seen and answered goes in, what is to be written or planned next comes out.

On the loop's thread, without I/O: writes and plans are handed over and their answers come back. A term begins with
nothing known: the ledger is taken over first and everything is listed after that, so what a predecessor wrote is known
before anything is done about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gputopo.crd.reservations import Phase
from gputopo.timestamps import since_epoch
from scheduler_core.cache.events import Batch, LedgerSeen, WatchStatus
from scheduler_core.evaluation.reservation_check import Known, Voucher, policy_of
from scheduler_core.planner.commit.actions import AskForPod, CreateReservation, WriteLedger
from scheduler_core.planner.commit.ledger import Turn, turn
from scheduler_core.planner.commit.reconcile import resting, steps
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import Candidate
from scheduler_core.planner.leader.backlog import Backlog
from scheduler_core.planner.leader.context import Clock, Given, Hands, Settled
from scheduler_core.planner.leader.freshness import Sight
from scheduler_core.planner.leader.hold_search import Held
from scheduler_core.planner.leader.outbox import Sending
from scheduler_core.planner.leader.plan_task import Placing
from scheduler_core.planner.leader.releases import releases
from scheduler_core.planner.leader.results import Consequences
from scheduler_core.planner.leader.scheduling import Planning
from scheduler_core.planner.leader.view import Outlook, View
from scheduler_core.planner.leader.wait_times import Waits
from scheduler_core.planner.leader.writer import Answer, Outcome
from scheduler_core.policy.profiles import Policies

_GATHER_S = 0.03  # what happens within so long is looked at together: a look costs the same for one and for a hundred
_UNDER_WAY_S = 0.1  # the same of pods that are let go and bound: nothing follows before the last of them
_log = logging.getLogger(__name__)


class Term:
    """From taking over the ledger until another does, or the Lease is lost."""

    def __init__(
        self,
        settled: Settled,
        policies: Callable[[], Policies],
        me: str,
        hands: Hands,
        clock: Clock,
        sight: Sight | None = None,
    ) -> None:
        given = Given(settled, policies, hands, clock)
        self.view = View(policies().common, settled.pool, me, guarded=settled.terms.guarded)
        self.backlog = Backlog(given, self.view.roster)
        self.sight = sight or Sight()
        self.deposed = False
        self.leads = False  # the ledger is ours
        self._given, self._me = given, me
        self._ledger_read = False
        self._sending = Sending(given, self.view)
        self._planning = Planning(given, self.view, self.backlog)
        self._waits = Waits(given, self.view.roster)
        self._consequences = Consequences(given, self.view, self.backlog, self._waits)
        self._voucher = Voucher()
        self._touched: set[GangName] = set()  # that may be others since the last round

    def take(self, batch: Batch[Any]) -> None:
        """What a watch saw."""
        self._touched |= self.view.take(batch, self._given.clock.wall())
        self._given.hands.wake(_UNDER_WAY_S if _is_on_its_way(batch) else _GATHER_S)

    def tick(self, watches: Iterable[WatchStatus] = ()) -> None:
        """Let time pass. ``watches``: how they are doing."""
        wall = self._given.clock.wall()
        self.view.knowledge.tick(wall)
        if self.view.knowledge.synced:
            written = self.view.unshown_since()
            self.sight.look(watches, None if written is None else wall - written, self._given.clock.monotonic())
        self._given.hands.wake(0.0)

    def read(self, ledger: LedgerSeen | None) -> None:
        """The ledger as it is at the beginning."""
        wall = self._given.clock.wall()
        self.view.read(ledger, wall)
        if ledger is not None and _is_new(ledger, self._given.settled.terms.settle_s, wall):
            self.view.memory = self.view.memory._replace(fresh=True)
        self._ledger_read = True
        self._given.hands.wake(0.0)

    def round(self) -> None:
        """Hand over all that is to be done now."""
        now = self._given.clock.monotonic()
        if not self._ledger_read or self.deposed or self._sending.paused(now):
            return
        ledger = self.view.ledger
        mine = turn(ledger, self._me) is Turn.LEAD
        if self.leads and not mine:
            self.deposed = True
            _log.warning("deposed", extra={"fields": {"planner": ledger.spec.planner if ledger else None}})
            return
        self.leads = mine
        if mine and not self.view.knowledge.synced:
            return
        self._put()
        self.view.look(now)
        listed_again = self._write(now)
        if mine and self.sight.trouble is None and not self._sending.plans and not listed_again:
            self._planning.begin(now)

    def answered(self, answer: Answer) -> None:
        """What became of a write."""
        what, outcome, now = answer.write, answer.outcome, self._given.clock.monotonic()
        self._given.hands.note(answer)
        untaken = self._sending.answered(what, outcome, now)
        if untaken and isinstance(what, CreateReservation):
            self.backlog.set_back(what, answer.error)
        if outcome is Outcome.AWAY:
            self._consequences.unanswered(what, answer.error, now, elsewhere=not untaken)
        if outcome in (Outcome.AWAY, Outcome.DEPOSED):  # it says nothing of what there is
            return
        if outcome is Outcome.REFUSED:
            self._consequences.refused(what, answer.error, now)
        if isinstance(what, AskForPod):
            self._consequences.heard_of(what, gone=outcome is Outcome.GONE, now=now)
        elif outcome is Outcome.DONE:
            self._touched |= self._consequences.done(answer)
        elif what.key[0] == "ledger":
            self.view.read(answer.ledger, self._given.clock.wall())
        self._given.hands.wake(_UNDER_WAY_S if what.key[0] == "pod" and self._sending.busy else 0.0)

    def planned(self, found: Placing) -> None:
        """What came of a plan."""
        now = self._given.clock.monotonic()
        self._planning.planned(found, now)
        for write in found.created:
            self._sending.submit(write, now)
        self._given.hands.wake(0.0)

    def found_room(self, found: Held) -> None:
        """Where room is to be held."""
        now = self._given.clock.monotonic()
        create = self._planning.found_room(found, now)
        if create is not None:
            self._sending.submit(create, now)
        self._given.hands.wake(0.0)

    def _put(self) -> None:
        """What became of gangs, once for all that happened since the last round: it costs what they are large."""
        touched, self._touched = self._touched, set()
        found = [(name, self.view.roster.gang(name)) for name in touched]
        # The oldest first: the queue puts a gang that becomes complete behind those that it has seen.
        for name, gang in sorted(found, key=lambda each: (0.0 if each[1] is None else each[1].newest, each[0])):
            self._waits.put(name, gang)
            self.backlog.put(name, gang)

    def _write(self, now: float) -> bool:
        """All that may be written now. Answers whether plans are listed again: their places look free as yet."""
        settled, wall, holds = self._given.settled, self._given.clock.wall(), self._planning.holds
        outlook = Outlook(self._crowded(), holds.unheld(now), holds.estimates(now), self.sight.trouble is not None)
        world = self.view.world(now, wall, outlook)
        writes = steps(world, settled.terms, settled.pool)
        for write in writes:
            self._sending.submit(write, now)
        if self.leads:
            self.view.shelf.rest(resting(world, settled.terms))
            for write in releases(settled, self.view, self.backlog, now):
                self._sending.submit(write, now)
        return any(isinstance(each, WriteLedger) and each.again for each in writes)

    def _crowded(self) -> frozenset[str]:
        """Proposals for which there is no room any more, as far as is known here."""
        view, ledger = self.view, self.view.ledger
        if ledger is None or all(each.phase is not Phase.PROPOSED for each in ledger.spec.entries):
            return frozenset()
        policies = self._given.policies()
        known = Known(view.knowledge.table, view.knowledge.pods, ())
        said = self._voucher.vouch(ledger, view.knowledge.reserved, known, partial(policy_of, policies), "")
        self._voucher.keep(view.knowledge.reserved.counting)
        return frozenset(said.blocked)


def _is_on_its_way(batch: Batch[Any]) -> bool:
    """Whether it tells only of pods that were let go, and are there."""
    if batch.kind is not Candidate or batch.gone or batch.complete:
        return False
    return all(each.member is not None and each.member.reservation and not each.member.ending for each in batch.seen)


def _is_new(ledger: LedgerSeen, settle_s: float, now: float) -> bool:
    """Whether extenders may not know of it yet: by two clocks, so with a minute between them."""
    made = since_epoch(ledger.created)
    return made is not None and now - made < settle_s + 60.0
