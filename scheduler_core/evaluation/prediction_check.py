"""Compare the GPUs in a PodResources report with the prediction from the record before it. Pure.

The prediction is made after the report has arrived, since only then the admitted pods are known: from the record just
before the report, over every order in which the kubelet may have admitted the pending pods.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

import msgspec

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.admission import predict_sets, whole_gpu_steps
from scheduler_core.allocation.device_plugin import PredictionResult, check_prediction
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet, exact_sets
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.allocation.occupancy import KubeletReport, Occupant, follow_admissions
from scheduler_core.cache.kubelet_model import kubelet_model
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import are_offers_known, kubelet_report_of, whole_gpu_shape
from scheduler_core.evaluation.shape_rules import first_violation


class PredictionCheck(NamedTuple):
    """The GPUs that the kubelet reported for a pod, with the prediction."""

    pod: Occupant
    node: str
    predicted: Sets | None  # None: there was no earlier report to predict from
    actual: int
    check: PredictionResult | None  # None: nothing was predicted
    violated: Reason | None  # the first hard constraint that these GPUs violate


def check_predictions(
    before: NodeRecord, after: NodeRecord, known: Container[str] | None = None
) -> tuple[PredictionCheck, ...]:
    """Return the checks of the pods that the report in ``after`` names first.

    ``before``: the record until then. ``known``: only pods with these UIDs are checked; None: all.
    """
    shape, report = whole_gpu_shape(after), kubelet_report_of(after)
    if shape is None or report is None:
        return ()
    earlier = kubelet_report_of(before) if whole_gpu_shape(before) is shape else None
    named = [
        pod
        for pod in after.pods
        if _is_named(pod, report)
        and (earlier is None or not _is_named(pod, earlier))
        and (known is None or pod.uid in known)
    ]
    if earlier is None or not named:
        return tuple(_compare_prediction(None, report.allocated[pod.uid], pod, after.name, shape) for pod in named)
    predicted = _forecast(_record_at_admission(before, earlier, report), shape)
    return tuple(
        _compare_prediction(predicted(pod), report.allocated[pod.uid], pod, after.name, shape) for pod in named
    )


def _is_named(pod: Occupant, report: KubeletReport) -> bool:
    """Return whether the report names all GPUs of the pod; while its containers start, some may be missing."""
    return 0 < pod.profile.gpus <= report.allocated.get(pod.uid, 0).bit_count()


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


def _record_at_admission(before: NodeRecord, earlier: KubeletReport, report: KubeletReport) -> NodeRecord:
    """Return the record with the pods that the kubelet no longer reports as departed: the watch may be late."""
    ended = tuple(pod for pod in before.pods if pod.uid in earlier.allocated and pod.uid not in report.allocated)
    remaining = tuple(pod for pod in before.pods if pod not in ended)
    return msgspec.structs.replace(before, pods=remaining, departed=before.departed + ended)


def _forecast(before: NodeRecord, shape: MachineShape) -> Callable[[Occupant], Sets]:
    """Return a function that predicts the GPUs of each pod on the node."""
    report = kubelet_report_of(before)
    assert report is not None  # ``before`` has a report
    pending, kubelet = report.open_admissions, kubelet_model(before, report)
    outcomes = None
    if are_offers_known(before, shape, report):
        outcomes = follow_admissions(shape, pending, kubelet)

    def predicted(pod: Occupant) -> Sets:
        if report.allocated.get(pod.uid):  # partly reported: the other GPUs may be any
            return SomeSet(shape.whole, pod.profile.gpus)
        if outcomes is None:
            return SomeSet(pending.among, pod.profile.gpus)
        free = {mask for mask, admitted in outcomes.admissions if admitted == pod.profile}
        steps = whole_gpu_steps(pod.profile.device_request, kubelet)
        return predict_sets(shape, exact_sets(free), steps, kubelet).sets

    return predicted
