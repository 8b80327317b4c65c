"""Which GPUs of a node are free, as far as anybody can know. Pure.

The agent publishes what the kubelet handed out. Pods bound since then have GPUs too, or will have, and nobody has said
which. The kubelet may have admitted them in any order, among each other and with the end of others: so all orders are
followed, with all choices of the device plugin in each. What cannot be followed to the end is said as ``AnyOf``.

As the kubelet counts: a pod that is being deleted holds its GPUs until it is gone; one that failed or succeeded holds
none; static pods hold theirs like others (through their mirror pods).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from gputopo.crd.nodegpus import Allocation
from scheduler_core.allocation.device_plugin import predict_exact
from scheduler_core.allocation.gpu_sets import MAX_SETS, Sets, SomeSet, count_subsets, exact_sets, subsets, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.request.device_request import ContainerSteps
from scheduler_core.request.pod_request import PodProfile

_MAX_PENDING = 8  # pods that wait for the kubelet's word at once
_MAX_BRANCHES = 4096  # from world to world: 3 ms at most for one event of a node; four pods of one GPU take 0.4 ms


class Occupant(NamedTuple):
    """A pod on a node, as far as it matters for the node's GPUs."""

    uid: str
    namespace: str
    name: str
    profile: PodProfile
    admitted: bool = False  # the kubelet took note of it, so its GPUs have been chosen
    owner: str | None = None  # UID of what made it


class PendingAdmission(NamedTuple):
    """A pod that got, or will get, GPUs nobody has named yet."""

    profile: PodProfile
    admitted: bool = False
    ended: bool = False  # it has gone again; but others may have had to choose while it was there


class OpenAdmissions(NamedTuple):
    """What happened, or will, since the kubelet was last asked, in an order that nobody knows."""

    start: int  # free then
    pending: tuple[PendingAdmission, ...]
    releases: tuple[int, ...] = ()  # what pods held then that have ended since


class KubeletReport(NamedTuple):
    """What the kubelet said, and what that leaves open."""

    allocated: Mapping[str, int]  # pod UID -> GPUs
    open_admissions: OpenAdmissions


class Occupancy(NamedTuple):
    """A node's free GPUs."""

    free: Sets  # what may be free when the next pod is admitted
    open_admissions: OpenAdmissions | None = (
        None  # how that was found; None: nothing was open, or it was too much to follow
    )


class AdmissionOutcomes(NamedTuple):
    """Everything that may happen."""

    free: frozenset[int]  # what may be free when the next pod is admitted
    admissions: frozenset[tuple[int, PodProfile]]  # what may be free when a pod of that profile is


def occupancy(
    shape: MachineShape,
    healthy: int,
    living: Sequence[Occupant],
    word: KubeletReport | None,
    *,
    single_numa: bool = False,
) -> Occupancy:
    """The free GPUs of a node of which the device plugin offers ``healthy`` whole GPUs (allocatable)."""
    sick = max(0, shape.whole.bit_count() - healthy)
    settled = {} if word is None else word.allocated
    missing = sum(max(0, each.profile.gpus - settled.get(each.uid, 0).bit_count()) for each in living)
    if word is None:
        return Occupancy(_unknown(shape.whole, missing + sick) if missing else _without_sick(shape.whole, shape, sick))
    unsettled = word.open_admissions
    base = unsettled.start | union(unsettled.releases)
    if not missing:
        return Occupancy(_without_sick(base, shape, sick))
    partly = any(0 < settled.get(each.uid, 0).bit_count() < each.profile.gpus for each in living)
    course = None if partly or sick else follow_admissions(shape, unsettled, single_numa=single_numa)
    if course is None or not course.free:
        return Occupancy(_unknown(base, missing + sick))
    return Occupancy(exact_sets(course.free), unsettled)


def unallocated_profiles(living: Iterable[Occupant], word: KubeletReport | None) -> frozenset[PodProfile]:
    """Of pods with a required shape whose GPUs nobody has chosen yet: others may still be chosen before."""
    settled = {} if word is None else word.allocated
    return frozenset(
        each.profile
        for each in living
        if not each.admitted and each.profile.shape_required and each.profile.gpus and each.uid not in settled
    )


@lru_cache(maxsize=1 << 12)
def follow_admissions(
    shape: MachineShape, unsettled: OpenAdmissions, *, single_numa: bool = False
) -> AdmissionOutcomes | None:
    """Every order of what is open, with every choice in each; None where that is too much."""
    if len(unsettled.pending) + len(unsettled.releases) > _MAX_PENDING:
        return None
    kinds: dict[_Kind, list[PodProfile]] = {}
    for turn in unsettled.pending:
        kinds.setdefault(_Kind(turn.profile.device_request.whole_gpu_steps, turn.admitted, turn.ended), []).append(
            turn.profile
        )
    known = [at for at, kind in enumerate(kinds) if kind.admitted or kind.ended]
    worlds: list[_Branch] = [(unsettled.start, tuple(map(len, kinds.values())), unsettled.releases)]
    seen = set(worlds)
    free, admissions = set(), set()
    steps = 0
    for world in worlds:  # grows while it is walked
        mask, waiting, releases = world
        if not releases and not any(waiting[at] for at in known):
            free.add(mask)
        following = list(_released(world))
        for at, kind in enumerate(kinds):
            if not waiting[at]:
                continue
            sets = predict_exact(shape, mask, kind.program, single_numa).sets
            if isinstance(sets, SomeSet):
                return None
            admissions.add((mask, kind))
            left = (*waiting[:at], waiting[at] - 1, *waiting[at + 1 :])
            following += [
                (mask & ~chosen, left, tuple(sorted((*releases, chosen))) if kind.ended else releases)
                for chosen in sets.masks
            ]
            if kind.ended and not sets.masks:  # the device plugin crashes over it there: it has gone without any
                following.append((mask, left, releases))
        steps += len(following)
        if steps > _MAX_BRANCHES:
            return None
        fresh = set(following) - seen
        worlds += fresh
        seen |= fresh
    named = frozenset((mask, profile) for mask, kind in admissions for profile in kinds[kind])
    return AdmissionOutcomes(frozenset(free), named)


class _Kind(NamedTuple):
    """What turns have in common whose order among each other makes no difference."""

    program: ContainerSteps
    admitted: bool
    ended: bool


_Branch = tuple[int, tuple[int, ...], tuple[int, ...]]  # free, turns of each kind that wait, what will be released


def _released(world: _Branch) -> Iterator[_Branch]:
    mask, waiting, releases = world
    for released in set(releases):
        left = list(releases)
        left.remove(released)
        yield mask | released, waiting, tuple(left)


def _unknown(among: int, taken: int) -> SomeSet:
    return SomeSet(among, max(0, among.bit_count() - taken))


def _without_sick(free: int, shape: MachineShape, sick: int) -> Sets:
    """Without the GPUs that the device plugin does not offer. It does not tell which; pods may hold some of them."""
    held = (shape.whole & ~free).bit_count()
    fewest, most = max(0, sick - held), min(sick, free.bit_count())
    if sum(count_subsets(free, gone) for gone in range(fewest, most + 1)) > MAX_SETS:
        return _unknown(free, most)
    return exact_sets({free & ~gone for count in range(fewest, most + 1) for gone in subsets(free, count)})


def reconcile_report(
    shape: MachineShape,
    place_of: Mapping[str, int],
    allocations: Iterable[Allocation],
    living: Sequence[Occupant],
    departed: Sequence[Occupant],
) -> KubeletReport | None:
    """The kubelet's word, pod by pod, and what it leaves open. None where it speaks of GPUs that are not known here.

    ``departed`` are pods that have gone since the kubelet was asked. An allocation of a pod that nobody knows is such
    a one's: its GPUs are free now.
    """
    held: dict[object, int] = {}
    for each in allocations:
        if each.mig_device is not None:
            continue
        if each.gpu not in place_of or each.replica is not None:
            return None
        holder = each.pod.uid or (each.pod.namespace, each.pod.name)
        held[holder] = held.get(holder, 0) | 1 << place_of[each.gpu]
    gone = [_pop(held, each) for each in departed]
    settled = {each.uid: mask for each in living if (mask := _pop(held, each))}
    busy = union(settled.values())
    ghosts = [mask & shape.whole for mask in (*gone, *held.values()) if mask]
    passed = [PendingAdmission(each.profile, ended=True) for each, mask in zip(departed, gone, strict=True) if not mask]
    waiting = [
        PendingAdmission(each.profile, each.admitted)
        for each in living
        if each.profile.gpus and each.uid not in settled
    ]
    turns = tuple(turn for turn in (*waiting, *passed) if turn.profile.gpus)
    releases = tuple(sorted(mask for mask in ghosts if mask))
    return KubeletReport(settled, OpenAdmissions(shape.whole & ~busy & ~union(ghosts), turns, releases))


def _pop(held: dict[object, int], pod: Occupant) -> int:
    return held.pop(pod.uid, 0) | held.pop((pod.namespace, pod.name), 0)
