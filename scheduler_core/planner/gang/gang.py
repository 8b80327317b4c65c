"""A gang's state, from its members: how many are present, what they agree on, what they wait for. Pure.

A gang can be planned once enough members are present: members that only our gate holds, and members that are placed.
Terminating and failed pods are not present. A succeeded pod is present while its controller has other pods at work: so
the replacement of a failed pod of an almost finished job does not wait for siblings that will never be created again.
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
from gputopo.render.wording import counted_noun, first_of, part_of
from scheduler_core.planner.gang.conventions import RANK_STRIDE, is_single_pod_gang
from scheduler_core.planner.gang.disruption import OwnerDisruption
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.request.pod_request import InvalidRequest

DEFAULT_BIND_TIMEOUT_S = 30.0  # from ungated to all bound, where a gang sets no timeout
_MAX_GATES = 8
_DIGITS = re.compile(r"(\d+)", re.ASCII)
Values = tuple[Any, ...]  # a member's values on which all members must agree; None: not declared


class GangPhase(Enum):
    """State of a gang by its members alone. ``commit/progress.py`` adds the state of its reservations."""

    REFUSED = "refused"  # a member's annotations or request are invalid, or members disagree
    WAITING_FOR_MEMBERS = "waiting for members"  # members are missing
    WAITING = "waiting"  # enough members are present, but other gates hold them
    QUEUED = "queued"  # ``ready`` members are to be planned, in addition to ``placed``
    UNGATED = "ungated"  # some members are ungated and have no node yet
    BOUND = "bound"  # all have nodes
    RUNNING = "running"  # kubelets have admitted all members
    FINISHED = "ended"  # no member is running or waiting
    ELSEWHERE = "elsewhere"  # no member has our gate or a reservation: another scheduler places it


class DeclaredSize(NamedTuple):
    """The size of one gang, as an object declares it."""

    gang: GangName
    size: int | None = None  # final number of members; None: not declared
    minimum: int | None = None  # that it can start with; None: its size
    is_elastic: bool = True  # False: the other members start later, and the gang needs them


class DeclaredSizes(NamedTuple):
    """An object that declares sizes of gangs: a JobSet of each group, other kinds of one gang. Its key is its UID."""

    key: str
    sizes: tuple[DeclaredSize, ...]
    deadline: float | None = None  # when activeDeadlineSeconds ends its pods, in seconds since 1970
    disruption: OwnerDisruption | None = None  # the cost of an eviction of its pods, as it declares it


class Gang(NamedTuple):
    """A gang as observed. Members are sorted by rank, then by name."""

    name: GangName
    phase: GangPhase
    reason: str  # for people: "3 of 16 members are there"
    ready: tuple[Member, ...] = ()  # held by our gate alone: to be planned
    held: tuple[Member, ...] = ()  # held by our gate and by other gates
    placed: tuple[Member, ...] = ()  # without our gate, not finished or terminating: ungated, bound or running
    succeeded: tuple[Member, ...] = ()  # succeeded, while siblings of the same controller are at work
    surplus: tuple[Member, ...] = ()  # more than its size: gated until another member is gone
    size: int | None = None  # final number of members; None: unknown
    minimum: int | None = None  # that it can start with; None: its size
    is_elastic: bool = True  # it can also run with its minimum; False: it needs the members that start later, too
    timeout_s: float | None = None
    required: str | None = None
    preferred: str | None = None
    convention: str = ""  # the convention that its members follow
    priority: int = 0  # the lowest of its members that ask for GPUs; of all members where none asks for GPUs
    priorities: tuple[int, ...] = ()  # priorities of these members, lowest first, where they differ
    created: float = 0.0  # its first member's creation, seconds since 1970
    unplanned: tuple[str, ...] = ()  # rules of ``ready`` members that only kube-scheduler can follow
    newest: float = 0.0  # its last member's creation: the gang was incomplete before

    @property
    def required_members(self) -> int | None:
        """Members that must be placed before any is ungated; None: unknown."""
        return self.size if self.minimum is None else self.minimum

    @property
    def present_members(self) -> int:
        """Members that are placed, can be planned, or have succeeded."""
        return len(self.ready) + len(self.placed) + len(self.succeeded)

    @property
    def is_complete(self) -> bool:
        """True if all members are present, as far as the size is known."""
        return self.size is None or self.present_members >= self.size

    @property
    def asks(self) -> Counter[str]:
        """Devices of each resource that ``ready`` members ask for."""
        return devices_of(self.ready)

    @property
    def may_be_handed_over(self) -> bool:
        """Return whether the gang may be handed over to kube-scheduler; False: it is certainly planned."""
        return bool(self.unplanned) or any(each.anti_affinity or each.claims for each in self.ready)

    @property
    def gates(self) -> list[str]:
        """Gates of other programs that hold members, the first ones: users may invent any number."""
        return sorted({gate for each in self.held for gate in other_gates(each.gates)})[:_MAX_GATES]

    @property
    def bind_timeout_s(self) -> float:
        """The time from ungated to all bound."""
        return DEFAULT_BIND_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def min_ready(self) -> int:
        """The number of ``ready`` members that must be placed at once for the gang to reach its minimum."""
        return max(1, (self.required_members or 1) - len(self.placed) - len(self.succeeded))


def gang_of(name: GangName, members: Sequence[Member], declared: DeclaredSize | None = None) -> Gang:
    """Return the gang of members that are sorted ``by_rank``. ``declared``: its size as an object declares it."""
    latest = max(map(_attempt, members), default=0)
    current = [each for each in members if each.gang_request.attempt == latest and not each.is_terminating]
    live = [each for each in current if each.phase not in FINISHED_PHASES]
    if not live:
        created = min(map(_created, members), default=0.0)
        return Gang(name, GangPhase.FINISHED, "no member is running or waiting", created=created)
    placed = [each for each in live if GATE not in each.gates]
    gated = [each for each in live if GATE in each.gates]
    values = set(map(declared_by, live))
    gang = _described(Gang(name, GangPhase.ELSEWHERE, "no member has gputopo's gate"), live, values, declared)
    if not gated and not any(each.reservation for each in placed):
        return gang._replace(placed=tuple(placed))
    succeeded = () if len(live) == len(current) else _succeeded(current, live)
    left = None if gang.size is None else max(0, gang.size - len(placed) - len(succeeded))
    surplus = _surplus(gated, placed, left) if gated else frozenset()
    chosen = [each for each in gated if each.uid not in surplus] if surplus else gated
    gang = gang._replace(
        unplanned=tuple(sorted({rule for each in chosen for rule in each.unplanned})),
        placed=tuple(placed),
        succeeded=succeeded,
        ready=tuple(each for each in chosen if each.gates == _OURS),
        held=tuple(each for each in chosen if each.gates != _OURS),
        surplus=tuple(each for each in gated if each.uid in surplus),
    )
    phase, reason = _refusal(gated, live, values) or _phase_when_ungated(gang) or _phase_when_gated(gang)
    gang = gang._replace(phase=phase, reason=reason)
    return gang if phase is GangPhase.WAITING_FOR_MEMBERS else _with_consecutive_ranks(gang)


def _with_consecutive_ranks(gang: Gang) -> Gang:
    """Return the gang with ranks from 0, where the ranks of its members only order them: by Job, then by index."""
    parts = gang.ready, gang.held, gang.placed, gang.succeeded
    ranks = [each.gang_request.rank for part in parts for each in part if each.gang_request.rank is not None]
    if max(ranks, default=0) < RANK_STRIDE or len(set(ranks)) < sum(map(len, parts)):
        return gang
    place = {rank: at for at, rank in enumerate(sorted(ranks))}

    def ranked(members: tuple[Member, ...]) -> tuple[Member, ...]:
        requests = (each.gang_request for each in members)
        new = (each._replace(rank=None if each.rank is None else place[each.rank]) for each in requests)
        return tuple(each._replace(gang_request=request) for each, request in zip(members, new, strict=True))

    ready, held, placed, succeeded = map(ranked, parts)
    return gang._replace(ready=ready, held=held, placed=placed, succeeded=succeeded)


def devices_of(members: Iterable[Member]) -> Counter[str]:
    """Return the devices of each resource that members ask for together."""
    found = Counter[str]()
    for each in members:
        for resource, number in each.devices:
            found[resource] += number
    return found


def single_pod_of(gang: Gang) -> str | None:
    """Return the pod's name if the gang is a single pod; None: it is not, or the pod is gone."""
    live = (*gang.ready, *gang.held, *gang.placed)
    return live[0].name if live and is_single_pod_gang(gang.name) else None


def by_rank(member: Member) -> tuple[Any, ...]:
    """Return a sort key: members with a rank first, by rank; then by name, "w-9" before "w-10"."""
    rank = member.gang_request.rank
    return rank is None, rank or 0, natural_key(member.name), member.uid


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a natural sort key: worker-2 before worker-10."""
    parts = (part for part in _DIGITS.split(text) if part)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)


_OURS = (GATE,)
FINISHED_PHASES = ("Succeeded", "Failed")
_AGREED = ("sizes", "minimums", "timeouts", "required topologies", "preferred topologies")
# These read every member at every event: attrgetter takes a third of the time.
declared_by = attrgetter(
    "gang_request.size",
    "gang_request.minimum",
    "gang_request.timeout_s",
    "gang_request.required",
    "gang_request.preferred",
)
_slot = attrgetter("gang_request.creator_uid", "gang_request.rank")  # unique to a member, if it has a rank
_attempt, _created, _priority = attrgetter("gang_request.attempt"), attrgetter("created"), attrgetter("priority")


def _described(gang: Gang, live: Sequence[Member], values: Collection[Values], declared: DeclaredSize | None) -> Gang:
    """Return the gang with the values that its members declare; ``_refusal`` reports disagreement."""
    if len(values) == 1:
        ((size, minimum, timeout_s, required, preferred),) = values
    else:
        size, minimum, timeout_s, required, preferred = (
            min((each[at] for each in values if each[at] is not None), default=None) for at in range(len(_AGREED))
        )
    is_elastic = True
    if declared is not None and size is None and minimum is None:
        size, minimum, is_elastic = declared.size, declared.minimum, declared.is_elastic
    created, priorities = list(map(_created, live)), _priorities(live)
    return gang._replace(
        size=size,
        minimum=minimum,
        is_elastic=is_elastic,
        timeout_s=timeout_s,
        required=required,
        preferred=preferred,
        convention=live[0].gang_request.convention,
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
    makers = {each.gang_request.creator_uid for each in live} - {None}
    taken_over = set(_slots(live))
    return tuple(
        each
        for each in current
        if each.phase == "Succeeded" and each.gang_request.creator_uid in makers and _slot(each) not in taken_over
    )


def _slots(members: Iterable[Member]) -> list[tuple[str | None, int]]:
    return [slot for slot in map(_slot, members) if slot[1] is not None]


def _surplus(gated: Sequence[Member], placed: Sequence[Member], left: int | None) -> frozenset[str]:
    """Return UIDs of members in excess of the gang's size, and of all but the oldest with one rank."""
    occupied, wanted = set(_slots(placed)), _slots(gated)
    unique = len(set(wanted)) == len(wanted) and occupied.isdisjoint(wanted)
    if unique and (left is None or len(gated) <= left):
        return frozenset()
    taken: set[tuple[str | None, int | None]] = set(occupied)
    chosen: list[str] = []
    for each in sorted(gated, key=lambda each: (each.gates != _OURS, each.created, *by_rank(each))):
        slot = _slot(each)
        if slot not in taken:
            chosen.append(each.uid)
        if each.gang_request.rank is not None:
            taken.add(slot)
    return frozenset(each.uid for each in gated) - frozenset(chosen[:left])


def _refusal(
    gated: Sequence[Member], live: Iterable[Member], values: Collection[Values]
) -> tuple[GangPhase, str] | None:
    """Return why the gang can never be planned as it is."""
    if not gated:
        return None
    for each in gated:
        if isinstance(each.request, InvalidRequest):
            return GangPhase.REFUSED, f"{each.name}: {each.request.reason}"
    for at, plural in enumerate(_AGREED if len(values) > 1 else ()):
        if len({each[at] for each in values} - {None}) > 1:
            return GangPhase.REFUSED, f"its members declare different {plural}: {_declaring_members(live, at)}"
    return None


def _declaring_members(live: Iterable[Member], at: int) -> str:
    """Return members by declared value: ``2 (w-0), 4 (w-1 and 2 more)``."""
    by_value: dict[Any, list[str]] = {}
    for each in live:
        by_value.setdefault(declared_by(each)[at], []).append(each.name)
    by_value.pop(None, None)
    return ", ".join(f"{_as_written(value)} ({first_of(names)})" for value, names in sorted(by_value.items()))


def _as_written(value: float | str) -> str:
    """Return a declared value as its annotation has it. Only durations are fractions."""
    return f"{value:g}s" if isinstance(value, float) else str(value)


def _phase_when_ungated(gang: Gang) -> tuple[GangPhase, str] | None:
    """Return the phase of a gang that is ungated; None: members are still to be placed."""
    bound = sum(each.node is not None for each in gang.placed)
    there = part_of(bound, len(gang.placed), "has its node", "have nodes")
    if any(each.node is None and each.reservation is not None for each in gang.placed):
        return GangPhase.UNGATED, there
    if gang.ready or gang.held:
        return None
    more = f"; {len(gang.surplus)} surplus, gated until another member is gone" if gang.surplus else ""
    if bound < len(gang.placed):
        return GangPhase.UNGATED, there + more
    if all(each.started for each in gang.placed):
        return GangPhase.RUNNING, f"{counted_noun(bound, 'member')} started{more}"
    return GangPhase.BOUND, f"{counted_noun(bound, 'member')} bound{more}"


def _phase_when_gated(gang: Gang) -> tuple[GangPhase, str]:
    need, there = gang.required_members, gang.present_members + len(gang.held)
    if need is None:
        unknown = f"the size of the gang is unknown: set {POD_GANG_SIZE.key}"
        return GangPhase.WAITING_FOR_MEMBERS, f"{counted_noun(there, 'member')} there; {unknown}"
    if there < need:
        at_least = "" if need == gang.size else "at least "
        return (
            GangPhase.WAITING_FOR_MEMBERS,
            f"{there} of {at_least}{counted_noun(need, 'member')} {'is' if there == 1 else 'are'} there",
        )
    if gang.present_members < need or not gang.ready:
        return GangPhase.WAITING, f"{part_of(len(gang.held), there, 'is', 'are')} held by {', '.join(gang.gates)}"
    beside = len(gang.placed) + len(gang.succeeded)
    return (
        GangPhase.QUEUED,
        f"{counted_noun(len(gang.ready), 'member')} to be placed{f' beside {beside}' if beside else ''}",
    )
