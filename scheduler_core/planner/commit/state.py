"""Input of ``reconcile``, and its result for one reservation. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from enum import Enum
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase, PlannedMember
from gputopo.timing import EXTENDER_ENDED_S, EXTENDER_LOST_S, LEDGER_SETTLE_S
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.policy.limits import DEFAULT_LIMITS


class Rollback(Enum):
    """Which of a gang's ungated members a rollback deletes, when not all could be bound in time."""

    GANG = "gang"  # all ungated members: the gang restarts as a whole
    UNSTARTED = "unstarted"  # members that no kubelet has admitted


class CommitTerms(NamedTuple):
    """How gangs are committed and rolled back."""

    gated: bool = False  # every GPU pod of the pool is gated: no acknowledgement is needed
    settle_s: float = LEDGER_SETTLE_S  # after the ledger was created
    rollback: Rollback = Rollback.GANG
    lost_s: float = EXTENDER_LOST_S
    ended_s: float = EXTENDER_ENDED_S
    lease: str = ""  # NAMESPACE/NAME; the ledger states the Lease and the levels for other programs
    levels: str = ""
    max_timeout_s: float = DEFAULT_LIMITS.max_timeout_s  # gangs with a longer timeout are rolled back after this time
    guarded: bool = False  # an admission policy allows the planner's annotations on pods to planners only

    def timeout_of(self, reservation: ReservationUpdate) -> float:
        """Return the seconds from ungating until all members must be bound."""
        return min(reservation.spec.timeout_s, self.max_timeout_s)


class ReconcileInput(NamedTuple):
    """The cluster as last read or written, with the planner's own observations. Built with keywords."""

    identity: str
    ledger: LedgerUpdate | None
    reservations: Mapping[str, ReservationUpdate]  # by UID
    member: Callable[[str], Member | None]  # by UID
    gang: Callable[[GangName], Gang | None]
    nodes: Container[str]
    no_longer_fitting: Container[str]  # UIDs of proposals that do not fit any more
    unwanted_holds: Container[str]  # UIDs of capacity holds that are not wanted any more
    estimates: Mapping[str, float | None]  # by UID of a capacity hold: when it will be free, in seconds since 1970
    observations: Observations
    now: float  # monotonic seconds
    wall_time: float  # seconds since 1970, for people
    exists: Callable[[str], bool] = lambda _: False  # whether a pod with GPUs still exists, by UID
    # By UID: when the grace period of a terminating pod ends, in seconds since 1970; None: it is not terminating.
    gone_by: Callable[[str], float | None] = lambda _: None
    hold_users: Mapping[str, tuple[str, ...]] = {}  # by UID of a hold: pods of a higher priority that use its capacity
    awaiting_binding: Collection[Member] = ()  # ungated members without a node, where a planner provably ungated them
    may_evict: bool = True  # the policy allows that further units are evicted
    cooldown_s: float = 0.0  # of the policy: records of preemptions are kept for so long
    # By UID of a hold: why its evictions are not proved to make the gang fit now; None: not checked yet.
    unproved: Mapping[str, str | None] = {}
    # By UID of a hold whose evictions are proved: where its gang would be without the pods to evict.
    proved_seats: Mapping[str, tuple[PlannedMember, ...]] = {}
    has_stale_view: bool = False  # the view may be old: nothing is listed, proposed or committed
    active: Collection[str] | None = None  # UIDs of reservations that may need a step; None: all
    in_flight: Container[tuple[str, str]] = ()  # ``Action.key`` of the writes without an answer yet
    plans: Container[tuple[str, str]] | None = None  # ``recovery.plan_keys`` of all reservations; None: not computed


class ReservationStep(NamedTuple):
    """The next step for one reservation."""

    writes: tuple[Action, ...] = ()
    phase: EntryPhase | None = None  # the phase that the ledger shall list it in
    remove: bool = False  # the ledger shall no longer list it
    was_listed: bool = False  # the ledger had listed it, and lost it
