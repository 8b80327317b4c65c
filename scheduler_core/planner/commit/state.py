"""What ``steps`` looks at, and what comes of it for one reservation. Values only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping
from enum import Enum
from typing import NamedTuple

from gputopo.crd.reservations import Phase
from gputopo.timing import EXTENDER_ENDED_S, EXTENDER_LOST_S, LEDGER_SETTLE_S
from scheduler_core.cache.events import LedgerSeen, ReservationSeen
from scheduler_core.planner.commit.actions import Write
from scheduler_core.planner.commit.observations import Memory
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member


class Rollback(Enum):
    """Which of a gang's members are deleted when not all of them could be bound in time."""

    GANG = "gang"  # all that were let go: the gang ends as a whole
    UNSTARTED = "unstarted"  # those that the kubelet has not taken note of


class Terms(NamedTuple):
    """How gangs are committed and rolled back."""

    gated: bool = False  # every GPU pod of the pool is gated: nobody needs to vouch
    settle_s: float = LEDGER_SETTLE_S  # after the ledger was made
    rollback: Rollback = Rollback.GANG
    lost_s: float = EXTENDER_LOST_S
    ended_s: float = EXTENDER_ENDED_S
    lease: str = ""  # NAMESPACE/NAME; the ledger tells people where to look whether we are there, and what we go by
    levels: str = ""
    guarded: bool = False  # only planners can write their annotations on pods: an admission policy sees to that


class World(NamedTuple):
    """What there is, as last read or written."""

    me: str
    ledger: LedgerSeen | None
    reservations: Mapping[str, ReservationSeen]  # by UID
    member: Callable[[str], Member | None]  # by UID
    gang: Callable[[GangName], Gang | None]
    nodes: Container[str]
    crowded: Container[str]  # UIDs of proposals for which there is no room any more
    unheld: Container[str]  # UIDs of holds that are not wanted any more
    estimates: Mapping[str, float | None]  # by UIDs of holds: when there will be room, in seconds since 1970
    memory: Memory
    now: float  # monotonic seconds
    wall: float  # seconds since 1970, for people
    coming: Collection[Member] = ()  # all that were surely let go and have no node yet
    blind: bool = False  # all of that may be old: nothing more is planned and committed
    awake: Collection[str] | None = None  # UIDs of reservations about which something may be to be done; None: all
    plans: Container[tuple[str, str]] | None = None  # ``vanished.plans_of`` all reservations; None: not known yet


class Step(NamedTuple):
    """What is to be done about one reservation."""

    writes: tuple[Write, ...] = ()
    phase: Phase | None = None  # the ledger shall say that of it
    strike: bool = False  # the ledger shall forget it
    again: bool = False  # the ledger listed it before, and lost it
