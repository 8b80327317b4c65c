"""What the members of a gang come to: who is there, what they agree on, what they wait for. Pure.

A gang starts when as many are there as it needs: those that our gate alone holds, beside those that have their places.
Who ends or has failed is not there. Who has succeeded is, as long as what made it keeps others at work: so the pod that
replaces a failed one of an almost finished job does not wait for siblings that will never come again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from gputopo.labels.keys import GATE, POD_GANG_SIZE
from scheduler_core.gangs.member import GangName, Member
from scheduler_core.request import Refused

_DIGITS = re.compile(r"(\d+)", re.ASCII)


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


class Size(NamedTuple):
    """What an object says of the size of a gang whose pods do not."""

    gang: GangName
    size: int | None = None  # as many as there will be; None: it does not say
    minimum: int | None = None  # that it can start with; None: its size


class Declared(NamedTuple):
    """An object that says the sizes of gangs: a JobSet those of its groups, others of one. Its key is its UID."""

    key: str
    sizes: tuple[Size, ...]
    ends: float | None = None  # when its deadline passes and its pods are ended, in seconds since 1970


class Gang(NamedTuple):
    """A gang as its members show it. Members are in the order of their ranks, then names."""

    name: GangName
    phase: GangPhase
    reason: str  # for people: "3 of 16 members are there"
    ready: tuple[Member, ...] = ()  # held by our gate alone: what is to be planned
    held: tuple[Member, ...] = ()  # held by our gate and others'
    placed: tuple[Member, ...] = ()  # without our gate, neither ended nor ending: let go, bound, running
    succeeded: tuple[Member, ...] = ()  # that did their part, while siblings of the same making are at work
    surplus: tuple[Member, ...] = ()  # more than its size: they stay gated until one of the others goes
    size: int | None = None  # as many as there will be; None: nobody says
    minimum: int | None = None  # that it can start with; None: its size
    timeout_s: float | None = None
    required: str | None = None
    preferred: str | None = None
    by: str = ""  # by what its members are known
    priority: int = 0  # the highest of its members'
    created: float = 0.0  # its first member's creation, seconds since 1970
    newest: float = 0.0  # its last's

    @property
    def need(self) -> int | None:
        """Members that must have places before any is let go; None: nobody says how many."""
        return self.size if self.minimum is None else self.minimum

    @property
    def present(self) -> int:
        """Members that have places or could be given one, and those that have succeeded."""
        return len(self.ready) + len(self.placed) + len(self.succeeded)

    @property
    def complete(self) -> bool:
        """Whether as many are there as there will be, as far as anybody knows."""
        return self.size is None or self.present >= self.size

    @property
    def fewest(self) -> int:
        """How many of ``ready`` must be given places at once, so that as many run as it needs."""
        return max(1, (self.need or 1) - len(self.placed) - len(self.succeeded))


def assess(name: GangName, members: Collection[Member], declared: Size | None = None) -> Gang:
    """The gang of those members. ``declared``: what an object says of its size."""
    latest = max((each.wanted.attempt for each in members), default=0)
    current = [each for each in members if each.wanted.attempt == latest and not each.ending]
    live = _ordered(each for each in current if each.phase not in ("Succeeded", "Failed"))
    if not live:
        return Gang(name, GangPhase.ENDED, "no member runs or waits")
    placed = [each for each in live if GATE not in each.gates]
    gated = [each for each in live if GATE in each.gates]
    gang = _described(name, live, declared)
    if not gated and not any(each.reservation for each in placed):
        return gang._replace(phase=GangPhase.ELSEWHERE, reason="no member has gputopo's gate", placed=tuple(placed))
    succeeded = _succeeded(current, live)
    room = None if gang.size is None else max(0, gang.size - len(placed) - len(succeeded))
    chosen = _chosen(gated, placed, room)
    gang = gang._replace(
        placed=tuple(placed),
        succeeded=succeeded,
        ready=tuple(each for each in gated if each.uid in chosen and each.gates == (GATE,)),
        held=tuple(each for each in gated if each.uid in chosen and each.gates != (GATE,)),
        surplus=tuple(each for each in gated if each.uid not in chosen),
    )
    phase, reason = _refusal(live, gated) or _started(gang) or _gathered(gang)
    return gang._replace(phase=phase, reason=reason)


def by_rank(member: Member) -> tuple[Any, ...]:
    """Sorts members: by rank, those without after those with one; then by name, "w-9" before "w-10"."""
    rank = member.wanted.rank
    parts = _DIGITS.split(member.name)
    name = tuple((int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts))
    return rank is None, rank or 0, name, member.uid


def _ordered(members: Iterable[Member]) -> tuple[Member, ...]:
    return tuple(sorted(members, key=by_rank))


def _described(name: GangName, live: Sequence[Member], declared: Size | None) -> Gang:
    """What they say, where they agree; where they do not, ``_refusal`` tells so."""
    first: dict[str, Any] = {}
    for field in _AGREED:
        first[field] = next((said for each in live if (said := getattr(each.wanted, field)) is not None), None)
    if declared is not None and first["size"] is None and first["minimum"] is None:
        first["size"], first["minimum"] = declared.size, declared.minimum
    created = [each.created for each in live]
    return Gang(
        name,
        GangPhase.GATHERING,
        "",
        by=live[0].wanted.by,
        priority=max(each.priority for each in live),
        created=min(created),
        newest=max(created),
        **first,
    )


_AGREED = {
    "size": "sizes",
    "minimum": "minimums",
    "timeout_s": "timeouts",
    "required": "required topologies",
    "preferred": "preferred topologies",
}


def _succeeded(current: Iterable[Member], live: Collection[Member]) -> tuple[Member, ...]:
    makers = {each.wanted.maker for each in live} - {None}
    again = {_post(each) for each in live} - {None}
    return _ordered(
        each
        for each in current
        if each.phase == "Succeeded" and each.wanted.maker in makers and _post(each) not in again
    )


def _chosen(gated: Sequence[Member], placed: Iterable[Member], room: int | None) -> frozenset[str]:
    """UIDs of who is of the gang where more say so than it has members: the oldest, and of one rank only one."""
    taken = {_post(each) for each in placed} - {None}
    chosen: list[str] = []
    for each in sorted(gated, key=lambda each: (each.gates != (GATE,), each.created, *by_rank(each))):
        post = _post(each)
        if post not in taken:
            chosen.append(each.uid)
        if post is not None:
            taken.add(post)
    return frozenset(chosen[:room])


def _post(member: Member) -> tuple[str | None, int] | None:
    """What only one member at a time can be; None where ranks say nothing."""
    rank = member.wanted.rank
    return None if rank is None else (member.wanted.maker, rank)


def _refusal(live: Sequence[Member], gated: Sequence[Member]) -> tuple[GangPhase, str] | None:
    """Why it is not planned, whoever else comes."""
    if not gated:
        return None
    for each in gated:
        if isinstance(each.request, Refused):
            return GangPhase.REFUSED, f"{each.name}: {each.request.reason}"
    for field, plural in _AGREED.items():
        said = Counter(value for each in live if (value := getattr(each.wanted, field)) is not None)
        if len(said) > 1:
            listed = ", ".join(f"{value} ({count})" for value, count in sorted(said.items()))
            return GangPhase.REFUSED, f"its members say different {plural}: {listed}"
    return None


def _started(gang: Gang) -> tuple[GangPhase, str] | None:
    """How far it has come since it was let go; None where members are to be placed."""
    bound = sum(each.node is not None for each in gang.placed)
    there = f"{bound} of {len(gang.placed)} members have nodes"
    if any(each.node is None and each.reservation is not None for each in gang.placed):
        return GangPhase.LET_GO, there
    if gang.ready or gang.held:
        return None
    more = f"; {len(gang.surplus)} more to wait until one of them goes" if gang.surplus else ""
    if bound < len(gang.placed):
        return GangPhase.LET_GO, there + more
    if all(each.started for each in gang.placed):
        return GangPhase.RUNNING, f"{_count(bound)} started{more}"
    return GangPhase.BOUND, f"{_count(bound)} bound{more}"


def _gathered(gang: Gang) -> tuple[GangPhase, str]:
    need, there = gang.need, gang.present + len(gang.held)
    if need is None:
        unsaid = f"nobody says of how many: {POD_GANG_SIZE.key} would"
        return GangPhase.GATHERING, f"{_count(there)} there, and {unsaid}"
    if there < need:
        least = "" if need == gang.size else "at least "
        return GangPhase.GATHERING, f"{there} of {least}{need} members are there"
    if gang.present < need or not gang.ready:
        gates = sorted({gate for each in gang.held for gate in each.gates if gate != GATE})
        return GangPhase.WAITING, f"{len(gang.held)} of {there} members are held by {', '.join(gates)}"
    beside = len(gang.placed) + len(gang.succeeded)
    return GangPhase.QUEUED, f"{_count(len(gang.ready))} to be placed{f' beside {beside}' if beside else ''}"


def _count(members: int) -> str:
    return f"{members} member{'' if members == 1 else 's'}"
