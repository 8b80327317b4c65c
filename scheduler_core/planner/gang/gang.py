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
from operator import attrgetter
from typing import Any, NamedTuple

from gputopo.labels.gate import other_gates
from gputopo.labels.keys import GATE, POD_GANG_SIZE
from gputopo.render.wording import counted, first_of, part
from scheduler_core.planner.gang.conventions import is_single_pod_gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.request.pod_request import InvalidRequest

_DIGITS = re.compile(r"(\d+)", re.ASCII)
Words = tuple[Any, ...]  # what a member says that all are to agree on; None: nothing


class GangPhase(Enum):
    """What a gang waits for, by its members alone. What its reservation adds is the ledger's to say."""

    REFUSED = "refused"  # what its members say cannot be understood, or they disagree
    WAITING_FOR_MEMBERS = "gathering"  # members are missing
    WAITING = "waiting"  # they are there, but gates of others hold them
    QUEUED = "queued"  # to be planned: ``ready``, beside what is ``placed``
    UNGATED = "let go"  # some members have no gate any more and no node yet
    BOUND = "bound"  # all have nodes
    RUNNING = "running"  # the kubelets took note of all
    FINISHED = "ended"  # nobody is left who runs or waits
    ELSEWHERE = "elsewhere"  # neither a gate of ours nor a reservation: others place it


class DeclaredSize(NamedTuple):
    """What an object says of the size of a gang whose pods do not."""

    gang: GangName
    size: int | None = None  # as many as there will be; None: it does not say
    minimum: int | None = None  # that it can start with; None: its size


class DeclaredSizes(NamedTuple):
    """An object that says the sizes of gangs: a JobSet those of its groups, others of one. Its key is its UID."""

    key: str
    sizes: tuple[DeclaredSize, ...]
    deadline: float | None = None  # when its deadline passes and its pods are ended, in seconds since 1970


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
    priority: int = 0  # the lowest of its members that ask for GPUs; of all members where none asks for GPUs
    priorities: tuple[int, ...] = ()  # of these members, the lowest first, where they differ
    created: float = 0.0  # its first member's creation, seconds since 1970
    newest: float = 0.0  # its last member's creation: the gang has not been complete for longer

    @property
    def required_members(self) -> int | None:
        """Members that must have places before any is let go; None: nobody says how many."""
        return self.size if self.minimum is None else self.minimum

    @property
    def present_members(self) -> int:
        """Members that have places or could be given one, and those that have succeeded."""
        return len(self.ready) + len(self.placed) + len(self.succeeded)

    @property
    def is_complete(self) -> bool:
        """Whether as many are there as there will be, as far as anybody knows."""
        return self.size is None or self.present_members >= self.size

    @property
    def asks(self) -> Counter[str]:
        """Devices of each resource that the members which are to be placed ask for."""
        return devices_of(self.ready)

    @property
    def gates(self) -> list[str]:
        """Of others, that hold members."""
        return sorted({gate for each in self.held for gate in other_gates(each.gates)})

    @property
    def min_ready(self) -> int:
        """How many of ``ready`` must be given places at once, so that as many run as it needs."""
        return max(1, (self.required_members or 1) - len(self.placed) - len(self.succeeded))


def gang_of(name: GangName, members: Sequence[Member], declared: DeclaredSize | None = None) -> Gang:
    """The gang of those members, which are sorted ``by_rank``. ``declared``: what an object says of its size."""
    latest = max(map(_attempt, members), default=0)
    current = [each for each in members if each.gang_request.attempt == latest and not each.is_terminating]
    live = [each for each in current if each.phase not in FINISHED_PHASES]
    if not live:
        return Gang(name, GangPhase.FINISHED, "no member runs or waits")
    placed = [each for each in live if GATE not in each.gates]
    gated = [each for each in live if GATE in each.gates]
    words = set(map(declared_by, live))
    gang = _described(Gang(name, GangPhase.ELSEWHERE, "no member has gputopo's gate"), live, words, declared)
    if not gated and not any(each.reservation for each in placed):
        return gang._replace(placed=tuple(placed))
    succeeded = () if len(live) == len(current) else _succeeded(current, live)
    room = None if gang.size is None else max(0, gang.size - len(placed) - len(succeeded))
    surplus = _surplus(gated, placed, room) if gated else frozenset()
    chosen = [each for each in gated if each.uid not in surplus] if surplus else gated
    gang = gang._replace(
        placed=tuple(placed),
        succeeded=succeeded,
        ready=tuple(each for each in chosen if each.gates == _OURS),
        held=tuple(each for each in chosen if each.gates != _OURS),
        surplus=tuple(each for each in gated if each.uid in surplus),
    )
    phase, reason = _refusal(gated, live, words) or _started(gang) or _gathered(gang)
    return gang._replace(phase=phase, reason=reason)


def devices_of(members: Iterable[Member]) -> Counter[str]:
    """Return the devices of each resource that members ask for together."""
    found = Counter[str]()
    for each in members:
        for resource, number in each.devices:
            found[resource] += number
    return found


def single_pod_of(gang: Gang) -> str | None:
    """The name of a pod that is on its own; None: it is a gang, or nobody is left of it."""
    live = (*gang.ready, *gang.held, *gang.placed)
    return live[0].name if live and is_single_pod_gang(gang.name) else None


def by_rank(member: Member) -> tuple[Any, ...]:
    """Sorts members: by rank, those without after those with one; then by name, "w-9" before "w-10"."""
    rank = member.gang_request.rank
    parts = _DIGITS.split(member.name)
    name = tuple((int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts))
    return rank is None, rank or 0, name, member.uid


_OURS = (GATE,)
FINISHED_PHASES = ("Succeeded", "Failed")
_AGREED = ("sizes", "minimums", "timeouts", "required topologies", "preferred topologies")
# These look at every member at every event: attrgetter does so at a third of the time.
declared_by = attrgetter(
    "gang_request.size",
    "gang_request.minimum",
    "gang_request.timeout_s",
    "gang_request.required",
    "gang_request.preferred",
)
_post = attrgetter("gang_request.maker", "gang_request.rank")  # what only one member at a time can be, if it has a rank
_attempt, _created, _priority = attrgetter("gang_request.attempt"), attrgetter("created"), attrgetter("priority")


def _described(gang: Gang, live: Sequence[Member], words: Collection[Words], declared: DeclaredSize | None) -> Gang:
    """What they say, where they agree; where they do not, ``_refusal`` tells so."""
    if len(words) == 1:
        ((size, minimum, timeout_s, required, preferred),) = words
    else:
        said = [min((each[at] for each in words if each[at] is not None), default=None) for at in range(len(_AGREED))]
        size, minimum, timeout_s, required, preferred = said
    if declared is not None and size is None and minimum is None:
        size, minimum = declared.size, declared.minimum
    created, priorities = list(map(_created, live)), _priorities(live)
    return gang._replace(
        size=size,
        minimum=minimum,
        timeout_s=timeout_s,
        required=required,
        preferred=preferred,
        by=live[0].gang_request.by,
        priority=priorities[0],
        priorities=priorities if len(priorities) > 1 else (),
        created=min(created),
        newest=max(created),
    )


def _priorities(live: Sequence[Member]) -> tuple[int, ...]:
    """Return the priorities that count, the lowest first.

    A member without GPUs costs its owner nothing, so its priority must not move members that ask for GPUs.
    """
    if len(found := set(map(_priority, live))) > 1:
        found = {each.priority for each in live if each.asks_for_gpus} or found
    return tuple(sorted(found))


def _succeeded(current: Iterable[Member], live: Collection[Member]) -> tuple[Member, ...]:
    makers = {each.gang_request.maker for each in live} - {None}
    again = set(_posts(live))
    return tuple(
        each
        for each in current
        if each.phase == "Succeeded" and each.gang_request.maker in makers and _post(each) not in again
    )


def _posts(members: Iterable[Member]) -> list[tuple[str | None, int]]:
    return [post for post in map(_post, members) if post[1] is not None]


def _surplus(gated: Sequence[Member], placed: Sequence[Member], room: int | None) -> frozenset[str]:
    """UIDs of those who are too many where more say so than the gang has members: of one rank all but the oldest."""
    held, asked = set(_posts(placed)), _posts(gated)
    once = len(set(asked)) == len(asked) and held.isdisjoint(asked)
    if once and (room is None or len(gated) <= room):
        return frozenset()
    taken: set[tuple[str | None, int | None]] = set(held)
    chosen: list[str] = []
    for each in sorted(gated, key=lambda each: (each.gates != _OURS, each.created, *by_rank(each))):
        post = _post(each)
        if post not in taken:
            chosen.append(each.uid)
        if each.gang_request.rank is not None:
            taken.add(post)
    return frozenset(each.uid for each in gated) - frozenset(chosen[:room])


def _refusal(gated: Sequence[Member], live: Iterable[Member], words: Collection[Words]) -> tuple[GangPhase, str] | None:
    """Why it is not planned, whoever else comes."""
    if not gated:
        return None
    for each in gated:
        if isinstance(each.request, InvalidRequest):
            return GangPhase.REFUSED, f"{each.name}: {each.request.reason}"
    for at, plural in enumerate(_AGREED if len(words) > 1 else ()):
        if len({word[at] for word in words} - {None}) > 1:
            return GangPhase.REFUSED, f"its members say different {plural}: {_declaring_members(live, at)}"
    return None


def _declaring_members(live: Iterable[Member], at: int) -> str:
    """``2 (w-0), 4 (w-1 and 2 more)``."""
    said: dict[Any, list[str]] = {}
    for each in live:
        said.setdefault(declared_by(each)[at], []).append(each.name)
    said.pop(None, None)
    return ", ".join(f"{_as_written(value)} ({first_of(names)})" for value, names in sorted(said.items()))


def _as_written(value: float | str) -> str:
    """The only fractions are seconds."""
    return f"{value:g}s" if isinstance(value, float) else str(value)


def _started(gang: Gang) -> tuple[GangPhase, str] | None:
    """How far it has come since it was let go; None where members are to be placed."""
    bound = sum(each.node is not None for each in gang.placed)
    there = part(bound, len(gang.placed), "has its node", "have nodes")
    if any(each.node is None and each.reservation is not None for each in gang.placed):
        return GangPhase.UNGATED, there
    if gang.ready or gang.held:
        return None
    more = f"; {len(gang.surplus)} more to wait until one of them goes" if gang.surplus else ""
    if bound < len(gang.placed):
        return GangPhase.UNGATED, there + more
    if all(each.started for each in gang.placed):
        return GangPhase.RUNNING, f"{counted(bound, 'member')} started{more}"
    return GangPhase.BOUND, f"{counted(bound, 'member')} bound{more}"


def _gathered(gang: Gang) -> tuple[GangPhase, str]:
    need, there = gang.required_members, gang.present_members + len(gang.held)
    if need is None:
        unsaid = f"nobody says of how many: {POD_GANG_SIZE.key} would"
        return GangPhase.WAITING_FOR_MEMBERS, f"{counted(there, 'member')} there, and {unsaid}"
    if there < need:
        least = "" if need == gang.size else "at least "
        return (
            GangPhase.WAITING_FOR_MEMBERS,
            f"{there} of {least}{counted(need, 'member')} {'is' if there == 1 else 'are'} there",
        )
    if gang.present_members < need or not gang.ready:
        return GangPhase.WAITING, f"{part(len(gang.held), there, 'is', 'are')} held by {', '.join(gang.gates)}"
    beside = len(gang.placed) + len(gang.succeeded)
    return GangPhase.QUEUED, f"{counted(len(gang.ready), 'member')} to be placed{f' beside {beside}' if beside else ''}"
