"""Prediction of the GPUs that the kubelet gives the containers of a pod at admission, one after the other. Pure.

For each container, the kubelet takes GPUs of finished init containers of the pod first, then GPUs on the NUMA nodes
that its Topology Manager chose (``numa_alignment``), then any. Where it has a choice, it asks the device plugin
(``device_plugin``). All possible outcomes are followed; if there are too many, the prediction is ``SomeSet``.

Source: ``devicesToAllocate`` of ``pkg/kubelet/cm/devicemanager`` of Kubernetes 1.37.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import NamedTuple

from scheduler_core.allocation.device_plugin import (
    Prediction,
    crashes_on_links,
    most_work,
    preferred_sets,
    search_work,
)
from scheduler_core.allocation.gpu_sets import (
    MAX_SETS,
    ExactSets,
    Sets,
    SomeSet,
    count_subsets,
    exact_sets,
    some_set,
    subsets,
)
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.numa_alignment import (
    MOST_NUMA_NODES,
    NO_ALIGNMENT,
    NO_TOPOLOGY_MANAGER,
    AlignmentRequest,
    KubeletModel,
    NumaAlignment,
    NumaCapacity,
    NumaPolicy,
    aligned_gpus,
    numa_ids,
    pod_steps,
)
from scheduler_core.request.device_request import ContainerStep, ContainerSteps, DeviceRequest, total_devices

MAX_FREE_SETS = 600  # possible sets of free GPUs that are followed; 560: three of 16 GPUs are in use
FEW_GPUS = 8  # with so few, several containers are always followed; with more, fewer branches (``occupancy``)
# Of the containers of a pod, followed on more GPUs: outcomes, equal ones included, 1 us each; a state costs more.
_MAX_OUTCOMES, _OUTCOMES_OF_A_STATE = 8 * MAX_SETS, 24


class _State(NamedTuple):
    """The GPUs while the containers of a pod are admitted."""

    free: int
    reusable: int  # of finished init containers
    held: int
    numa_nodes: tuple[NumaCapacity, ...] | None  # their free CPUs and memory; None: unknown


def whole_gpu_steps(request: DeviceRequest, kubelet: KubeletModel) -> ContainerSteps:
    """Return the containers of a pod with the resources that take part in the kubelet's choice of its GPUs."""
    return kubelet.steps_of(request.whole_gpu_steps, request.aligned_steps)


class _TooManyError(Exception):
    """There are too many outcomes to follow."""


def predict_sets(
    shape: MachineShape, free: Sets, steps: ContainerSteps, kubelet: KubeletModel = NO_TOPOLOGY_MANAGER
) -> Prediction:
    """Return the sets of GPUs that a pod may hold after all containers started. ``free``: at admission."""
    steps_left = predict_in_steps(shape, free, steps, kubelet)
    while True:
        try:
            next(steps_left)
        except StopIteration as end:
            found: Prediction = end.value
            return found


def predict_in_steps(
    shape: MachineShape, free: Sets, steps: ContainerSteps, kubelet: KubeletModel
) -> Generator[None, None, Prediction]:
    """Return the sets as ``predict_sets`` does, with a step for each set of free GPUs. Their results are cached."""
    devices = total_devices(steps)
    if isinstance(free, SomeSet):
        return _some_gpus(shape, free.among, steps)
    if len(free.masks) > 1 and _exceeds_limits(shape, free.masks, steps):
        return _some_gpus(shape, free.among, steps)
    outcomes, may_crash = set[int](), False
    for mask in free.masks:
        found = predict_exact(shape, mask, steps, kubelet)
        may_crash |= found.may_crash
        if isinstance(found.sets, SomeSet) or len(outcomes) > MAX_SETS:
            return Prediction(SomeSet(free.among, devices), may_crash)
        outcomes.update(found.sets.masks)
        yield
    return Prediction(exact_sets(outcomes), may_crash)


@lru_cache(maxsize=1 << 14)
def predict_exact(shape: MachineShape, free: int, steps: ContainerSteps, kubelet: KubeletModel) -> Prediction:
    """Predict for a known set of free GPUs, container by container."""
    if kubelet.aligns and shape.has_partial_numa:  # what the device plugin reports of the others is unknown
        return _some_gpus(shape, free, steps)
    held, may_crash = set[int](), False
    try:
        for alignment in _relevant_alignments(shape, kubelet, steps):
            if len(steps) == 1:  # most pods
                found, crashed = _follow_container(shape, alignment, free, kubelet.numa_nodes, steps[0])
            else:
                states, crashed = _follow_containers(shape, alignment, _State(free, 0, 0, kubelet.numa_nodes), steps)
                found = {state.held for state in states}
            held |= found
            may_crash |= crashed
    except _TooManyError:
        crashes = any(crashes_on_links(shape, free, step.devices) for step in steps)
        return Prediction(SomeSet(free, total_devices(steps)), may_crash or crashes)
    return Prediction(exact_sets(held), may_crash)


def _some_gpus(shape: MachineShape, among: int, steps: ContainerSteps) -> Prediction:
    """Return the prediction that any of these GPUs may be allocated."""
    devices = total_devices(steps)
    if devices > among.bit_count():
        return Prediction(ExactSets(()))
    crashes = any(crashes_on_links(shape, among, step.devices) for step in steps)
    return Prediction(some_set(among, devices), crashes)


def _relevant_alignments(
    shape: MachineShape, kubelet: KubeletModel, steps: ContainerSteps
) -> tuple[NumaAlignment, ...]:
    """Return the possible configurations that differ in their outcomes. On one NUMA node, GPUs are always aligned."""
    if not kubelet.aligns:
        return NO_ALIGNMENT
    if len(numa_ids(shape, kubelet.numa_nodes)) < 2 and not any(step.cpus or step.memory for step in steps):
        return NO_ALIGNMENT
    if len(steps) == 1:  # the scopes are equal
        if steps[0].devices == 1 and NO_ALIGNMENT[0] in kubelet.alignments:
            return NO_ALIGNMENT  # any free GPU, whatever else is possible
        by_socket = steps[0].cpus > 0
        return tuple(
            dict.fromkeys(
                each._replace(pod_scope=False, by_socket=each.by_socket and by_socket) for each in kubelet.alignments
            )
        )
    return kubelet.alignments


def _follow_container(
    shape: MachineShape,
    alignment: NumaAlignment,
    free: int,
    numa_nodes: tuple[NumaCapacity, ...] | None,
    step: ContainerStep,
) -> tuple[set[int], bool]:
    """Return the possible sets of a pod's only container, and whether the device plugin may crash."""
    found, may_crash = set[int](), False
    for aligned in {gpus & free for gpus, _ in _choices(shape, alignment, _State(free, 0, 0, numa_nodes), step)}:
        if step.devices <= free.bit_count():
            sets, crashed = _fresh_gpus(shape, free, aligned, 0, step.devices)
            found.update(sets)
            may_crash |= crashed
    return found, may_crash


def _follow_containers(
    shape: MachineShape, alignment: NumaAlignment, start: _State, steps: ContainerSteps
) -> tuple[set[_State], bool]:
    """Return the possible states after all containers, and whether the device plugin may crash."""
    states, may_crash, outcomes = {start}, False, 0
    is_large, searches = len(shape.gpus) > FEW_GPUS, SearchBudget(shape)
    of_pod = _choices(shape, alignment, start, pod_steps(steps)) if alignment.pod_scope else None
    for step in steps:
        following = set[_State]()
        for state in states:
            for aligned, numa_nodes in _choices(shape, alignment, state, step) if of_pod is None else of_pod:
                if is_large and not searches.covers_search(_searched_gpus(state, aligned, step), step.devices):
                    raise _TooManyError
                chosen = state._replace(numa_nodes=numa_nodes)
                crashed, found = _allocate(shape, chosen, step, aligned, following)
                may_crash, outcomes = may_crash or crashed, outcomes + found + _OUTCOMES_OF_A_STATE
                if len(following) > MAX_SETS or (is_large and outcomes > _MAX_OUTCOMES):
                    raise _TooManyError
        states = following
    return states, may_crash


def _searched_gpus(state: _State, aligned: int, step: ContainerStep) -> int:
    """Return all GPUs among which the device plugin may choose those of a container."""
    preferred = state.free & aligned
    return state.reusable | (preferred if step.devices < preferred.bit_count() else state.free)


def _choices(
    shape: MachineShape, alignment: NumaAlignment, state: _State, step: ContainerStep
) -> tuple[tuple[int, tuple[NumaCapacity, ...] | None], ...]:
    """Return the possible choices of the Topology Manager: GPUs on the chosen NUMA nodes, and what is left of these."""
    if alignment.policy is NumaPolicy.NONE:
        return ((0, state.numa_nodes),)
    if len(numa_ids(shape, state.numa_nodes)) > MOST_NUMA_NODES:
        raise _TooManyError
    return aligned_gpus(shape, alignment, AlignmentRequest(step, state.free, state.reusable, state.numa_nodes))


def _allocate(
    shape: MachineShape, state: _State, step: ContainerStep, aligned: int, following: set[_State]
) -> tuple[bool, int]:
    """Add the possible states after a container got its GPUs.

    Return whether the device plugin may crash, and the number of outcomes, equal ones included.
    """
    free, reusable = state.free, state.reusable
    aligned &= free
    may_crash, outcomes = False, 0
    reused = min(step.devices, reusable.bit_count())
    fresh = step.devices - reused
    if fresh > free.bit_count():
        return False, 0
    if count_subsets(reusable, reused) * max(1, count_subsets(free, fresh) if reused else 1) > MAX_SETS:
        raise _TooManyError
    for kept in subsets(reusable, reused):
        new, crashed = _fresh_gpus(shape, free, aligned, kept, step.devices)
        may_crash, outcomes = may_crash or crashed, outcomes + len(new)
        for taken in new:
            left = reusable & ~kept if step.holds_until_end else reusable | taken
            following.add(_State(free & ~taken, left, state.held | taken, state.numa_nodes))
    return may_crash, outcomes


def _fresh_gpus(shape: MachineShape, free: int, aligned: int, kept: int, size: int) -> tuple[tuple[int, ...], bool]:
    """Return the possible sets of free GPUs that complete the reused GPUs, and whether the device plugin may crash."""
    fresh = size - kept.bit_count()
    if fresh <= 0:
        return (0,), False
    if fresh == aligned.bit_count():
        # Alignment to all NUMA nodes may be none (``single-numa-node``): then the kubelet asks the device plugin.
        return (aligned,), aligned == free and crashes_on_links(shape, free | kept, size)
    if fresh < aligned.bit_count():
        sets, may_crash = preferred_sets(shape, aligned | kept, size, kept)
    else:  # all aligned GPUs, and others
        sets, may_crash = preferred_sets(shape, free | kept, size, kept | aligned)
    if isinstance(sets, SomeSet):
        raise _TooManyError
    return tuple(mask & ~kept for mask in sets.masks), may_crash


class SearchBudget:
    """Counts the work of predictions for several sets of free GPUs. Equal sets are searched once."""

    def __init__(self, shape: MachineShape) -> None:
        self._shape = shape
        self._left = most_work(shape)
        self._searches: set[tuple[int, int]] = set()
        self._followed: set[tuple[int, ContainerSteps]] = set()

    def covers(self, mask: int, steps: ContainerSteps) -> bool:
        """Count a prediction; False if it is too much work.

        To follow several containers on many GPUs counts as half of the budget, for each set of free GPUs.
        """
        if len(steps) == 1 or len(self._shape.gpus) <= FEW_GPUS:
            return all(self.covers_search(mask, size) for size in {step.devices for step in steps})
        if (mask, steps) not in self._followed:
            self._followed.add((mask, steps))
            self._left -= most_work(self._shape) // 2
        return self._left >= 0

    def covers_search(self, mask: int, size: int) -> bool:
        """Count the search for a container with so many GPUs; False if it is too much work."""
        same = self._shape.symmetry.canonical(mask), size
        if same not in self._searches:
            self._searches.add(same)
            self._left -= search_work(self._shape, *same)
        return self._left >= 0


def _exceeds_limits(shape: MachineShape, free: tuple[int, ...], steps: ContainerSteps) -> bool:
    """Return whether the searches for all containers would visit too many sets. Equal sets are searched once."""
    if len(free) > MAX_FREE_SETS:
        return True
    searches = SearchBudget(shape)
    return not all(searches.covers(mask, steps) for mask in free)
