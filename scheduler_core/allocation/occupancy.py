"""The GPUs of a node that may be free. Pure.

The agent publishes the allocations that the kubelet reports. Pods bound since the report have GPUs too, or will get
them, and no source says which GPUs. The kubelet may admit these pods and end other pods in any order: so all orders are
followed, with all choices of the device plugin in each. If there are too many, the result is ``SomeSet``.

As the kubelet counts: a terminating pod holds its GPUs until it is gone; a failed or succeeded pod holds none; static
pods hold theirs like other pods (through their mirror pods).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gputopo.crd.nodegpus import DeviceAllocation
from gputopo.recent_results import recent_results
from scheduler_core.allocation.admission import FEW_GPUS, MAX_FREE_SETS, SearchBudget, predict_exact, whole_gpu_steps
from scheduler_core.allocation.gpu_sets import MAX_SETS, Sets, SomeSet, count_subsets, exact_sets, subsets, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.numa_alignment import NO_TOPOLOGY_MANAGER, KubeletModel
from scheduler_core.allocation.symmetry import Symmetry
from scheduler_core.request.device_request import ContainerSteps
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod_request import PodProfile

_MAX_PENDING = 8  # pods that wait for a report at once
# Outcomes that are remembered. Each takes 1 to 10 kB. Those of nodes with exchanged GPUs are derived from others.
_FOLLOWED, _ON_NODES = 1 << 11, 1 << 9
# Steps between branches: 2 us each, longer on many GPUs, where each has many sets. Four pods of one GPU take 0.2 ms.
_MAX_BRANCHES, _MAX_BRANCHES_ON_MANY_GPUS = 4096, 2048


class Occupant(NamedTuple):
    """A pod on a node, as far as it matters for the GPUs of the node."""

    uid: str
    namespace: str
    name: str
    profile: PodProfile
    admitted: bool = False  # by the kubelet, so its GPUs are chosen
    owner: str | None = None  # UID of its controller
    job: str | None = None  # that it names by label or annotation (``request.job_key``)
    load: NodeLoad = NO_LOAD  # only the planner sets it


class PendingAdmission(NamedTuple):
    """A pod that got, or will get, GPUs that the kubelet has not reported yet."""

    profile: PodProfile
    admitted: bool = False
    ended: bool = False  # it has ended; but it may have held GPUs while other pods were admitted


class OpenAdmissions(NamedTuple):
    """The admissions and releases since the last report of the kubelet, past and future, in unknown order."""

    start: int  # GPUs that were free at the report
    pending: tuple[PendingAdmission, ...]
    releases: tuple[int, ...] = ()  # GPUs of pods that have ended since

    @property
    def among(self) -> int:
        """The GPUs that no pod surely holds."""
        return self.start | union(self.releases)


class KubeletReport(NamedTuple):
    """The report of the kubelet, and the admissions that it leaves open."""

    allocated: Mapping[str, int]  # pod UID -> GPUs
    open_admissions: OpenAdmissions
    withdrawn: int = 0  # GPUs that the device plugin does not offer, where these are known


class Occupancy(NamedTuple):
    """The free GPUs of a node."""

    free: Sets  # GPUs that may be free when the next pod is admitted
    open_admissions: OpenAdmissions | None = (
        None  # how ``free`` was computed; None: nothing was open, or too much to follow
    )


class AdmissionOutcomes(NamedTuple):
    """All possible outcomes of the open admissions."""

    free: frozenset[int]  # GPUs that may be free when the next pod is admitted
    admissions: frozenset[tuple[int, PodProfile]]  # GPUs that may be free when a pod of this profile is admitted


def occupancy(
    shape: MachineShape,
    healthy: int,
    pods: Sequence[Occupant],
    report: KubeletReport | None,
    kubelet: KubeletModel = NO_TOPOLOGY_MANAGER,
) -> Occupancy:
    """Return the free GPUs of a node. ``healthy``: number of whole GPUs that the device plugin offers (allocatable)."""
    unhealthy = max(0, shape.whole.bit_count() - healthy - (0 if report is None else report.withdrawn.bit_count()))
    allocated = {} if report is None else report.allocated
    missing = 0
    for each in pods:
        gpus, held = each.profile.gpus, allocated.get(each.uid, 0).bit_count()
        missing += gpus - held if gpus > held else 0
    if report is None:
        return Occupancy(
            _unknown(shape.whole, missing + unhealthy) if missing else _without_unhealthy(shape.whole, shape, unhealthy)
        )
    open_admissions = report.open_admissions
    base = open_admissions.among
    if not missing:
        return Occupancy(_without_unhealthy(base, shape, unhealthy))
    partly = any(0 < allocated.get(each.uid, 0).bit_count() < each.profile.gpus for each in pods)
    outcomes = None if partly or unhealthy else follow_admissions(shape, open_admissions, kubelet)
    if outcomes is None or not outcomes.free:
        return Occupancy(_unknown(base, missing + unhealthy))
    return Occupancy(exact_sets(outcomes.free), open_admissions)


def unallocated_profiles(pods: Iterable[Occupant], report: KubeletReport | None) -> frozenset[PodProfile]:
    """Return the profiles of pods with a required shape that are not admitted yet: other pods may be admitted first."""
    allocated = {} if report is None else report.allocated
    return frozenset(
        each.profile
        for each in pods
        if each.uid not in allocated and not each.admitted and each.profile.requires_shape and each.profile.gpus
    )


@recent_results(_ON_NODES)
def follow_admissions(
    shape: MachineShape, open_admissions: OpenAdmissions, kubelet: KubeletModel = NO_TOPOLOGY_MANAGER
) -> AdmissionOutcomes | None:
    """Follow every order of the open admissions, with every choice in each; None if there are too many.

    Nodes whose GPUs can be exchanged such that the admissions are equal share the work.
    """
    start, pending, releases = open_admissions
    if len(pending) + len(releases) > _MAX_PENDING:
        return None
    by_kind: dict[_AdmissionKind, set[PodProfile]] = {}
    kinds = Counter[_AdmissionKind]()
    for each in pending:
        kind = _AdmissionKind(whole_gpu_steps(each.profile.device_request, kubelet), each.admitted, each.ended)
        by_kind.setdefault(kind, set()).add(each.profile)
        kinds[kind] += 1
    symmetry = _symmetry_for(shape, kubelet)
    exchange = symmetry.permutation(start, *releases)
    moved = tuple(sorted(map(exchange.apply, releases)))
    found = _follow(shape, _OpenKinds(exchange.apply(start), moved, tuple(sorted(kinds.items()))), kubelet)
    if found is None:
        return None
    back = exchange.inverse.apply_all
    admissions = {
        (mask, profile) for kind, masks in found.admissions for mask in back(masks) for profile in by_kind[kind]
    }
    return AdmissionOutcomes(frozenset(back(found.free)), frozenset(admissions))


def _symmetry_for(shape: MachineShape, kubelet: KubeletModel) -> Symmetry:
    """Return the exchanges that the kubelet does not notice: of equal NUMA nodes it prefers the lowest id."""
    return shape.symmetry_on_numa_nodes if kubelet.aligns else shape.symmetry


class _AdmissionKind(NamedTuple):
    """Pending admissions of one kind are interchangeable: their order makes no difference."""

    program: ContainerSteps
    admitted: bool
    ended: bool


class _OpenKinds(NamedTuple):
    """Open admissions without the profiles of the pods: nodes that differ in these share the outcomes."""

    free: int
    releases: tuple[int, ...]
    kinds: tuple[tuple[_AdmissionKind, int], ...]  # ascending, and how many are pending


class _KindOutcomes(NamedTuple):
    free: frozenset[int]
    admissions: tuple[tuple[_AdmissionKind, frozenset[int]], ...]


# Free GPUs, number of waiting admissions of each kind, future releases.
_Branch = tuple[int, tuple[int, ...], tuple[int, ...]]


@recent_results(_FOLLOWED)
def _follow(shape: MachineShape, start: _OpenKinds, kubelet: KubeletModel) -> _KindOutcomes | None:
    """Follow one of all branches that are equal up to exchanges of GPUs, and return what all of them lead to."""
    symmetry, fixed = _symmetry_for(shape, kubelet), (start.free, *start.releases)
    kinds = [kind for kind, _ in start.kinds]
    known = [at for at, kind in enumerate(kinds) if kind.admitted or kind.ended]

    def form(branch: _Branch) -> Hashable:
        mask, waiting, releases = branch
        return branch if symmetry.is_trivial else (symmetry.form(*fixed, mask, *releases), waiting)

    branches: list[_Branch] = [(start.free, tuple(count for _, count in start.kinds), start.releases)]
    known_branches, known_forms = set(branches), set(map(form, branches))
    free, admissions = set[int](), [set[int]() for _ in kinds]
    steps, searches = 0, SearchBudget(shape)
    max_steps = _MAX_BRANCHES if len(shape.gpus) <= FEW_GPUS else _MAX_BRANCHES_ON_MANY_GPUS
    for branch in branches:  # grows during the iteration
        mask, waiting, releases = branch
        if not releases and not any(waiting[at] for at in known):
            free.add(mask)
        following = list(_released(branch))
        steps += len(following)
        for at, kind in enumerate(kinds):
            if not waiting[at]:
                continue
            if not searches.covers(mask, kind.program):
                return None
            sets, may_crash = predict_exact(shape, mask, kind.program, kubelet)
            if isinstance(sets, SomeSet):
                return None
            admissions[at].add(mask)
            steps += len(sets.masks)
            if steps > max_steps:
                return None
            left = (*waiting[:at], waiting[at] - 1, *waiting[at + 1 :])
            following += [
                (mask & ~chosen, left, tuple(sorted((*releases, chosen))) if kind.ended else releases)
                for chosen in symmetry.distinct((*fixed, mask, *releases), sets.masks)
            ]
            if kind.ended and (may_crash or not sets.masks):  # the device plugin crashed; the pod ended without GPUs
                following.append((mask, left, releases))
                steps += 1
        if steps > max_steps:
            return None
        for each in following:
            if each in known_branches:  # another order of the same choices: a third
                continue
            known_branches.add(each)
            if (new := form(each)) not in known_forms:
                known_forms.add(new)
                branches.append(each)
    return _all_outcomes(symmetry, fixed, free, list(zip(kinds, admissions, strict=True)))


def _all_outcomes(
    symmetry: Symmetry, fixed: tuple[int, ...], free: set[int], admissions: Iterable[tuple[_AdmissionKind, set[int]]]
) -> _KindOutcomes | None:
    """Return the outcomes of all branches that are equal to the followed ones; None: too many."""
    found = []
    for kind, masks in admissions:
        equal = symmetry.equals(fixed, masks, MAX_SETS)
        if equal is None:
            return None
        found.append((kind, frozenset(equal)))
    everywhere = symmetry.equals(fixed, free, MAX_FREE_SETS)
    return None if everywhere is None else _KindOutcomes(frozenset(everywhere), tuple(found))


def _released(branch: _Branch) -> Iterator[_Branch]:
    mask, waiting, releases = branch
    for released in set(releases):
        left = list(releases)
        left.remove(released)
        yield mask | released, waiting, tuple(left)


def _unknown(among: int, taken: int) -> SomeSet:
    return SomeSet(among, max(0, among.bit_count() - taken))


def _without_unhealthy(free: int, shape: MachineShape, unhealthy: int) -> Sets:
    """Remove the GPUs that the device plugin does not offer. It does not report which; pods may hold some of them."""
    if not unhealthy:
        return exact_sets({free})
    held = (shape.whole & ~free).bit_count()
    fewest, most = max(0, unhealthy - held), min(unhealthy, free.bit_count())
    if sum(count_subsets(free, gone) for gone in range(fewest, most + 1)) > MAX_SETS:
        return _unknown(free, most)
    return exact_sets({free & ~gone for count in range(fewest, most + 1) for gone in subsets(free, count)})


def reconcile_report(
    shape: MachineShape,
    place_of: Mapping[str, int],
    allocations: Iterable[DeviceAllocation],
    pods: Sequence[Occupant],
    departed: Sequence[Occupant],
    *,
    withdrawn: int = 0,
) -> KubeletReport | None:
    """Return the report of the kubelet, pod by pod, and the admissions that it leaves open. None if a GPU is unknown.

    ``departed``: pods that have gone since the report. An allocation of an unknown pod counts as theirs: its GPUs are
    free now.
    """
    held: dict[object, int] = {}
    for each in allocations:
        if each.mig_device is not None:
            continue
        place, pod = place_of.get(each.gpu), each.pod
        if place is None or each.replica is not None:
            return None
        holder = pod.uid or (pod.namespace, pod.name)
        held[holder] = held.get(holder, 0) | 1 << place
    gone = [_pop(held, each) for each in departed]
    allocated = {each.uid: mask for each in pods if (mask := _pop(held, each))}
    offered = shape.whole & ~withdrawn
    start = offered & ~union(allocated.values())
    pending = [PendingAdmission(each.profile, each.admitted) for each in pods if each.uid not in allocated]
    if not gone and not held:  # most nodes
        return KubeletReport(allocated, OpenAdmissions(start, _of_whole_gpus(pending)), withdrawn)
    freed = [mask & offered for mask in (*gone, *held.values()) if mask]
    ended = [PendingAdmission(each.profile, ended=True) for each, mask in zip(departed, gone, strict=True) if not mask]
    releases = tuple(sorted(mask for mask in freed if mask))
    admissions = OpenAdmissions(start & ~union(freed), _of_whole_gpus([*pending, *ended]), releases)
    return KubeletReport(allocated, admissions, withdrawn)


def _of_whole_gpus(pending: Iterable[PendingAdmission]) -> tuple[PendingAdmission, ...]:
    return tuple([each for each in pending if each.profile.gpus])


def _pop(held: dict[object, int], pod: Occupant) -> int:
    return held.pop(pod.uid, 0) | held.pop((pod.namespace, pod.name), 0)
