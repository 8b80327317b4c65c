"""What ``steps`` looks at, and what comes of it for one reservation. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from enum import Enum
from typing import NamedTuple

from gputopo.crd.reservations import EntryPhase
from gputopo.timing import EXTENDER_ENDED_S, EXTENDER_LOST_S, LEDGER_SETTLE_S
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import Action
from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member


class Rollback(Enum):
    """Which of a gang's members are deleted when not all of them could be bound in time."""

    GANG = "gang"  # all that were let go: the gang ends as a whole
    UNSTARTED = "unstarted"  # those that the kubelet has not taken note of


class CommitTerms(NamedTuple):
    """How gangs are committed and rolled back."""

    gated: bool = False  # every GPU pod of the pool is gated: nobody needs to vouch
    settle_s: float = LEDGER_SETTLE_S  # after the ledger was made
    rollback: Rollback = Rollback.GANG
    lost_s: float = EXTENDER_LOST_S
    ended_s: float = EXTENDER_ENDED_S
    lease: str = ""  # NAMESPACE/NAME; the ledger tells people where to look whether we are there, and what we go by
    levels: str = ""
    guarded: bool = False  # only planners can write their annotations on pods: an admission policy sees to that


class ReconcileInput(NamedTuple):
    """What there is, as last read or written."""

    identity: str
    ledger: LedgerUpdate | None
    reservations: Mapping[str, ReservationUpdate]  # by UID
    member: Callable[[str], Member | None]  # by UID
    gang: Callable[[GangName], Gang | None]
    nodes: Container[str]
    no_longer_fitting: Container[str]  # UIDs of proposals for which there is no room any more
    unwanted_holds: Container[str]  # UIDs of holds that are not wanted any more
    estimates: Mapping[str, float | None]  # by UIDs of holds: when there will be room, in seconds since 1970
    observations: Observations
    now: float  # monotonic seconds
    wall_time: float  # seconds since 1970, for people
    awaiting_binding: Collection[Member] = ()  # all that were surely let go and have no node yet
    has_stale_view: bool = False  # all of that may be old: nothing more is planned and committed
    active: Collection[str] | None = None  # UIDs of reservations about which something may be to be done; None: all
    plans: Container[tuple[str, str]] | None = None  # ``vanished.plans_of`` all reservations; None: not known yet


class ReservationStep(NamedTuple):
    """What is to be done about one reservation."""

    writes: tuple[Action, ...] = ()
    phase: EntryPhase | None = None  # the ledger shall say that of it
    strike: bool = False  # the ledger shall forget it
    was_listed: bool = False  # the ledger listed it before, and lost it
