"""Who is there: the members of each gang, and what their gang waits for. From pods alone; no I/O.

    members and gone ──▶ Roster ──▶ Gang (members, what they agree on, phase) ──▶ queue

An event costs the same however large its gang is: what a gang has become is worked out when it is asked for, and kept
until one of its members changes. Nothing is remembered of a pod that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from scheduler_core.gangs.member import GangName, Member
from scheduler_core.sightings import Batch


class GangPhase(Enum):
    """What a gang waits for, by its members alone. What its reservation adds is the ledger's to say."""

    REFUSED = "refused"  # what its members say cannot be understood, or they disagree
    GATHERING = "gathering"  # members are missing
    WAITING = "waiting"  # they are there, but gates of others hold them
    QUEUED = "queued"  # to be planned: ``ready``, beside what is ``placed``
    LET_GO = "let go"  # some members have no gate any more and no node yet
    BOUND = "bound"  # all have nodes
    RUNNING = "running"  # the kubelets took note of all
    ENDED = "ended"  # nobody is left who runs or waits
    ELSEWHERE = "elsewhere"  # neither a gate of ours nor a reservation: others place it


class Gang(NamedTuple):
    """A gang as its members show it. Members are in the order of their ranks, then names."""

    name: GangName
    phase: GangPhase
    reason: str  # for people: "3 of 16 members are there"
    ready: tuple[Member, ...] = ()  # held by our gate alone: what is to be planned
    held: tuple[Member, ...] = ()  # held by our gate and others'
    placed: tuple[Member, ...] = ()  # without our gate, neither ended nor ending: let go, bound, running
    succeeded: tuple[Member, ...] = ()  # that did their part while siblings of one making still run or wait
    surplus: tuple[Member, ...] = ()  # more than its size: they stay gated until one of the others goes
    size: int | None = None  # as many as there will be; None: nobody says
    minimum: int | None = None  # that it can start with; None: nobody says
    timeout_s: float | None = None
    required: str | None = None
    preferred: str | None = None
    by: str = ""  # by what its members are known
    priority: int = 0  # the highest of its members'
    created: float = 0.0  # its first member, seconds since 1970
    newest: float = 0.0  # its last

    @property
    def complete(self) -> bool:
        """Whether as many are there as there will be; else an elastic gang waits a little for the rest."""
        raise NotImplementedError

    @property
    def alone(self) -> bool:
        """Whether it is a single pod, to be placed in a batch with others."""
        raise NotImplementedError

    @property
    def fewest(self) -> int:
        """Of ``ready``, how many must be placed at once."""
        raise NotImplementedError


class Declared(NamedTuple):
    """What an object says of the size of a gang whose pods do not. Its key is its UID."""

    key: str
    gang: GangName
    size: int | None = None  # the members that this object stands for
    minimum: int | None = None
    timeout_s: float | None = None
    parts: int = 1  # objects that together say it: a JobSet's Jobs


class Roster:
    """The members of all gangs."""

    def take(self, batch: Batch[Member]) -> frozenset[GangName]:
        """Take note of members (keys are UIDs). Answers the gangs that may have changed."""
        raise NotImplementedError

    def take_sizes(self, batch: Batch[Any]) -> frozenset[GangName]:
        """Take note of sizes that objects declare; ``batch.kind`` is a ``Declared`` class of its own per source."""
        raise NotImplementedError

    def gang(self, name: GangName) -> Gang | None:
        """A gang as it is now; None: it has no member."""
        raise NotImplementedError

    def gangs(self) -> Iterable[Gang]:
        """All of them."""
        raise NotImplementedError

    def members(self, name: GangName) -> tuple[Member, ...]:
        """All members, ending and ended ones too."""
        raise NotImplementedError

    def member(self, uid: str) -> Member | None:
        """One member."""
        raise NotImplementedError
