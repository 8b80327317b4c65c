"""What became of predictions: the kubelet's word on a node, held against what was known before it. Pure.

Only then is known which pods were there to be admitted, so only then is predicted: from the record just before, over
every order in which the kubelet may have admitted what was open.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

import msgspec

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import Check, check, predict
from scheduler_core.allocation.gpu_sets import AnyOf, OneOf, Sets, one_of, union
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.allocation.occupancy import Occupant, Word, follow
from scheduler_core.cache.cluster_cache import NodeReport
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import offers_all, whole_gpus, word_of
from scheduler_core.evaluation.shape_rules import broken


class Settled(NamedTuple):
    """The GPUs of a pod that the kubelet has named."""

    pod: Occupant
    node: str
    predicted: Sets | None  # None: the kubelet had not been asked before, so nothing was known
    actual: int
    check: Check | None  # of the prediction
    broken: Reason | None  # the first required wish that these GPUs do not keep


def settled_pods(reports: Iterable[NodeReport], known: Container[str]) -> Iterator[Settled]:
    """Yield the pods whose GPUs these reports name first, of those whose UID is known."""
    for report in reports:
        yield from (found for found in settled(*report) if found.pod.uid in known)


def settled(before: NodeRecord, after: NodeRecord) -> tuple[Settled, ...]:
    """The pods whose GPUs the kubelet names first in ``after``. ``before``: the node as it was known until then."""
    shape, word = whole_gpus(after), word_of(after)
    if shape is None or word is None:
        return ()
    then = word_of(before) if whole_gpus(before) is shape else None
    news = [pod for pod in after.pods if _named(pod, word) and (then is None or not _named(pod, then))]
    if then is None or not news:
        return tuple(_held_against(None, word.settled[pod.uid], pod, after.name, shape) for pod in news)
    known = _as_the_kubelet_saw(before, then, word)
    predicted = _forecast(known, shape)
    return tuple(_held_against(predicted(pod), word.settled[pod.uid], pod, after.name, shape) for pod in news)


def _named(pod: Occupant, word: Word) -> bool:
    """Whether all of its GPUs are; while its containers start some may be missing."""
    return 0 < pod.profile.gpus <= word.settled.get(pod.uid, 0).bit_count()


def _held_against(predicted: Sets | None, actual: int, pod: Occupant, node: str, shape: Shape) -> Settled:
    reason = broken(pod.profile.wishes, shape, OneOf((actual,))) if pod.profile.shape_required else None
    known = None if reason is Reason.UNKNOWN_TOPOLOGY else reason
    return Settled(pod, node, predicted, actual, None if predicted is None else check(predicted, actual), known)


def _as_the_kubelet_saw(before: NodeRecord, then: Word, word: Word) -> NodeRecord:
    """Pods that the kubelet names no more have ended for it, though the watch may still show them."""
    over = tuple(pod for pod in before.pods if pod.uid in then.settled and pod.uid not in word.settled)
    kept = tuple(pod for pod in before.pods if pod not in over)
    return msgspec.structs.replace(before, pods=kept, departed=before.departed + over)


def _forecast(before: NodeRecord, shape: Shape) -> Callable[[Occupant], Sets]:
    """What the GPUs of each pod on it may turn out to be."""
    word = word_of(before)
    assert word is not None  # it was read a moment ago
    unsettled, single_numa = word.unsettled, before.machine.single_numa
    course = follow(shape, unsettled, single_numa=single_numa) if offers_all(before, shape) else None

    def predicted(pod: Occupant) -> Sets:
        if word.settled.get(pod.uid):  # partly named: the rest may be any
            return AnyOf(shape.whole, pod.profile.gpus)
        if course is None:
            return AnyOf(unsettled.start | union(unsettled.releases), pod.profile.gpus)
        free = {mask for mask, admitted in course.admissions if admitted == pod.profile}
        return predict(shape, one_of(free), pod.profile.ask.whole, single_numa=single_numa).sets

    return predicted
