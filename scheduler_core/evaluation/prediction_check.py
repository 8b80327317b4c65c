"""What became of predictions: the kubelet's word on a node, held against what was known before it. Pure.

Only then is known which pods were there to be admitted, so only then is predicted: from the record just before, over
every order in which the kubelet may have admitted what was open.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple

import msgspec

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import PredictionResult, check_prediction, predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, exact_sets, union
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.occupancy import KubeletReport, Occupant, follow_admissions
from scheduler_core.cache.cluster_cache import ReportedNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import are_all_allocatable, kubelet_report_of, whole_gpu_shape
from scheduler_core.evaluation.shape_rules import first_violation


class PredictionCheck(NamedTuple):
    """The GPUs of a pod that the kubelet has named."""

    pod: Occupant
    node: str
    predicted: Sets | None  # None: the kubelet had not been asked before, so nothing was known
    actual: int
    check: PredictionResult | None  # of the prediction
    violated: Reason | None  # the first required wish that these GPUs do not keep


def check_reports(reports: Iterable[ReportedNode], known: Container[str]) -> Iterator[PredictionCheck]:
    """Yield the pods whose GPUs these reports name first, of those whose UID is known."""
    for report in reports:
        yield from (found for found in check_predictions(*report) if found.pod.uid in known)


def check_predictions(before: NodeRecord, after: NodeRecord) -> tuple[PredictionCheck, ...]:
    """The pods whose GPUs the kubelet names first in ``after``. ``before``: the node as it was known until then."""
    shape, word = whole_gpu_shape(after), kubelet_report_of(after)
    if shape is None or word is None:
        return ()
    then = kubelet_report_of(before) if whole_gpu_shape(before) is shape else None
    news = [pod for pod in after.pods if _is_named(pod, word) and (then is None or not _is_named(pod, then))]
    if then is None or not news:
        return tuple(_compare_prediction(None, word.allocated[pod.uid], pod, after.name, shape) for pod in news)
    known = _record_at_admission(before, then, word)
    predicted = _forecast(known, shape)
    return tuple(_compare_prediction(predicted(pod), word.allocated[pod.uid], pod, after.name, shape) for pod in news)


def _is_named(pod: Occupant, word: KubeletReport) -> bool:
    """Whether all of its GPUs are; while its containers start some may be missing."""
    return 0 < pod.profile.gpus <= word.allocated.get(pod.uid, 0).bit_count()


def _compare_prediction(
    predicted: Sets | None, actual: int, pod: Occupant, node: str, shape: MachineShape
) -> PredictionCheck:
    reason = (
        first_violation(pod.profile.constraints, shape, ExactSets((actual,))) if pod.profile.requires_shape else None
    )
    known = None if reason is Reason.UNKNOWN_TOPOLOGY else reason
    return PredictionCheck(
        pod, node, predicted, actual, None if predicted is None else check_prediction(predicted, actual), known
    )


def _record_at_admission(before: NodeRecord, then: KubeletReport, word: KubeletReport) -> NodeRecord:
    """Pods that the kubelet names no more have ended for it, though the watch may still show them."""
    over = tuple(pod for pod in before.pods if pod.uid in then.allocated and pod.uid not in word.allocated)
    kept = tuple(pod for pod in before.pods if pod not in over)
    return msgspec.structs.replace(before, pods=kept, departed=before.departed + over)


def _forecast(before: NodeRecord, shape: MachineShape) -> Callable[[Occupant], Sets]:
    """What the GPUs of each pod on it may turn out to be."""
    word = kubelet_report_of(before)
    assert word is not None  # it was read a moment ago
    unsettled, single_numa = word.open_admissions, before.machine.single_numa
    course = (
        follow_admissions(shape, unsettled, single_numa=single_numa) if are_all_allocatable(before, shape) else None
    )

    def predicted(pod: Occupant) -> Sets:
        if word.allocated.get(pod.uid):  # partly named: the rest may be any
            return SomeSet(shape.whole, pod.profile.gpus)
        if course is None:
            return SomeSet(unsettled.start | union(unsettled.releases), pod.profile.gpus)
        free = {mask for mask, admitted in course.admissions if admitted == pod.profile}
        return predict_sets(
            shape, exact_sets(free), pod.profile.device_request.whole_gpu_steps, single_numa=single_numa
        ).sets

    return predicted
