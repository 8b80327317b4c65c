"""Sentences about preemptions that concern a pod: it is evicted, or other pods are evicted for it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from gputopo.crd.reservations import Preemption, gang_title
from gputopo.render.report import listed
from gputopo.render.wording import counted_noun
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.planner.commit.actions import reserved_gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import planner_pod
from scheduler_core.planner.report.planner_page import DryRunState, PlannerGangState
from scheduler_core.request.full_pod import FullPod


def pod_preemption_notes(
    pod: FullPod, holds: Iterable[ReservationUpdate], states: Iterable[PlannerGangState] = ()
) -> Iterator[str]:
    """Yield the notes of a pod. ``holds``: reservations in effect; ``states``: from the planner, with its dry runs."""
    gang = _gang_of(pod)
    for hold in holds:
        intent = hold.spec.preemption
        if intent is None:
            continue
        if reserved_gang(hold) == gang:
            yield intent_note(intent) + _present_state(hold)
        yield from _victim_notes(pod, hold, intent)
    title = f"{pod.metadata.namespace}/{pod.metadata.name}"
    units = {title} if gang is None else {title, f"{gang.namespace}/{gang.name}"}
    for each in states:
        if each.no_eviction is not None and GangName(each.namespace, each.name) == gang:
            yield no_eviction_note(each.no_eviction)
        if (dry := each.dry_run) is None:
            continue
        if GangName(each.namespace, each.name) == gang:
            yield from dry_run_notes(dry, " for it")
        if units & set(dry.units):
            beneficiary = f"{'gang' if each.pod is None else 'pod'} {each.namespace}/{each.pod or each.name}"
            # Of an elastic gang, perhaps only some pods: the page does not name them.
            victim = "it" if title in dry.units else "its gang, or some of its pods,"
            yield f"dry run: {victim} would be evicted for {beneficiary} ({_lost_with(dry, units)})"


def dry_run_notes(dry: DryRunState, beneficiary: str = "") -> Iterator[str]:
    """Yield the notes of a gang for which a dry run finds pods to evict: of all units, then of each of several."""
    if len(dry.units) != 1 or not dry.unit_costs:
        yield (
            f"dry run: would evict {listed(dry.units)}{beneficiary} ({lost_work(dry.gpu_hours, dry.cost)}; "
            f"rule: {dry.rule})"
        )
        beneficiary = ""
    for each in dry.unit_costs:
        work = lost_work(each.gpu_hours, each.cost)
        pods = f"{counted_noun(each.pods, 'pod')} of {each.name}"
        yield f"dry run: would evict {pods}{beneficiary} ({work}; rule: {each.rule}; {each.reason})"


def _lost_with(dry: DryRunState, units: Container[str]) -> str:
    """Return the work that is lost with one of these units, and with all; the former is known of some planners only."""
    of_all = f"{lost_work(dry.gpu_hours, dry.cost)}, of all pods that would be evicted"
    own = next((each for each in dry.unit_costs if each.name in units), None)
    if own is not None and len(dry.units) == 1:
        return f"{lost_work(own.gpu_hours, own.cost)}; rule: {own.rule}; {own.reason}"
    if own is None:
        return f"{of_all}; rule: {dry.rule}"
    return f"{lost_work(own.gpu_hours, own.cost)}; {of_all}; rule: {own.rule}; {own.reason}"


def intent_note(intent: Preemption) -> str:
    """Return the note of a gang, or of its pods, for which other pods are evicted."""
    units = listed(tuple(dict.fromkeys(each.unit for each in intent.evictions)))
    return f"pods are evicted for it: {units} ({lost_work(intent.gpu_hours, intent.cost)}; rule: {intent.rule})"


def no_eviction_note(reason: str) -> str:
    """Return the note of a gang, or of its pods, for which the planner evicts no pods."""
    return f"no pod is evicted for it (preemption): {reason}"


def lost_work(gpu_hours: float, cost: float | None) -> str:
    """Return the work that is lost."""
    return f"lost work: {gpu_hours:.1f} GPU-hours" + ("" if cost is None else f", cost {cost:.2f}")


def _victim_notes(pod: FullPod, hold: ReservationUpdate, intent: Preemption) -> Iterator[str]:
    found = next((each for each in intent.evictions if each.uid == pod.metadata.uid), None)
    if found is None:
        return
    title = gang_title(hold.namespace, hold.spec)
    beneficiary = f"a single pod of {hold.namespace}" if title is None else f"gang {title}"
    state, more = ("is being evicted" if found.unit in hold.status.evicting else "is to be evicted"), ""
    if found.unit in hold.status.evicting and pod.metadata.deletion_timestamp is not None:
        state, more = "was evicted", "; it has not ended yet"
    yield (
        f"it {state} for {beneficiary} of priority {hold.spec.priority}, with its unit {found.unit} "
        f"(rule: {intent.rule}; reservation {hold.namespace}/{hold.name}){more}{_present_state(hold)}"
    )


def _present_state(hold: ReservationUpdate) -> str:
    """Return what the planner does now: units may be spared, and pods may not end."""
    return "" if not hold.status.reason else f"; now: {hold.status.reason}"


def gang_of_gated_pod(pod: FullPod) -> tuple[str, str] | None:
    """Return namespace and name of the gang that a gated pod waits with; None: it has none, or is not gated."""
    gang = _gang_of(pod) if pod.spec.scheduling_gates else None
    return None if gang is None else (gang.namespace, gang.name)


def _gang_of(pod: FullPod) -> GangName | None:
    found = planner_pod(pod.metadata.uid, pod)
    member = None if found is None else found.member
    return None if member is None else member.gang_request.gang
