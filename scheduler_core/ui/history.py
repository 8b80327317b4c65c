"""The last hour of a cluster: samples of its totals, and the changes that people look for. Pure, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gputopo.render.wording import counted_noun
from scheduler_core.planner.report.listing import FAILED_PHASES
from scheduler_core.planner.report.tables import phase_word
from scheduler_core.ui.model import GpuState, NodeRow, Overview, PodOnNode

KEPT_S = 3600.0
SAMPLE_S = 20.0
MAX_CHANGES = 500
_MAX_AT_ONCE = 50  # changes of one moment; more are counted


class Sample(NamedTuple):
    """The cluster at one moment."""

    at: float  # seconds since 1970
    free: int  # GPUs
    reserved: int
    used: int
    other: int  # draining, tainted, unavailable or unknown
    waiting: int  # gangs that wait for GPUs


class Change(NamedTuple):
    """One change. ``namespace``: of the pod or gang that it names; None: it names none."""

    at: float
    words: str
    namespace: str | None = None
    without_name: str = ""  # for viewers who may not see the namespace


class History:
    """The samples and changes of the last hour."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()
        self.changes: deque[Change] = deque(maxlen=MAX_CHANGES)  # newest last
        self._last: Overview | None = None
        self._rows: Mapping[str, NodeRow] = {}

    def add(self, found: Overview, rows: Iterable[NodeRow]) -> None:
        """Record the overview and what has changed since the last one."""
        now = {row.name: row for row in rows}
        if self._last is not None:
            changes = [*_node_changes(self._rows, now, found.at), *_gang_changes(self._last, found)]
            self.changes.extend(changes[:_MAX_AT_ONCE])
            if len(changes) > _MAX_AT_ONCE:
                self.changes.append(Change(found.at, f"{len(changes) - _MAX_AT_ONCE} more changes"))
        self._last, self._rows = found, now
        if not self.samples or found.at >= self.samples[-1].at + SAMPLE_S:
            self.samples.append(_sample(found))
        while self.samples and self.samples[0].at < found.at - KEPT_S:
            self.samples.popleft()
        while self.changes and self.changes[0].at < found.at - KEPT_S:
            self.changes.popleft()


def _sample(found: Overview) -> Sample:
    totals = found.totals
    return Sample(
        at=found.at,
        free=totals.count(GpuState.FREE),
        reserved=totals.count(GpuState.RESERVED, GpuState.MAY_BE_RESERVED),
        used=totals.count(GpuState.USED, GpuState.PENDING, GpuState.SHARED),
        other=totals.count(GpuState.DRAINING, GpuState.TAINTED, GpuState.UNAVAILABLE, GpuState.UNKNOWN),
        waiting=sum(gang.waiting_seconds is not None for gang in found.gangs),
    )


def _node_changes(before: Mapping[str, NodeRow], after: Mapping[str, NodeRow], at: float) -> Iterator[Change]:
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is new:
            continue
        if old is None or new is None:
            yield Change(at, f"node {name} {'added' if old is None else 'removed'}")
            continue
        for fault in sorted(set(new.faults) - set(old.faults)):
            yield Change(at, f"node {name} degraded: {fault}")
        if old.faults and not new.faults:
            yield Change(at, f"node {name} is no longer degraded")
        for note in new.notes:
            if note.split(" for ")[0] not in {each.split(" for ")[0] for each in old.notes}:
                yield Change(at, f"node {name}: {note}")
        yield from _pod_changes(name, old, new, at)


def _pod_changes(node: str, old: NodeRow, new: NodeRow, at: float) -> Iterator[Change]:
    before, after = _bound(old), _bound(new)
    for title in sorted(after.keys() - before.keys()):
        yield _pod_change(at, after[title], f"bound to {node}")
    for title in sorted(before.keys() - after.keys()):
        yield _pod_change(at, before[title], f"left {node}")


def _pod_change(at: float, pod: PodOnNode, does: str) -> Change:
    gpus = f"({counted_noun(pod.gpus, 'GPU')})"
    return Change(at, f"pod {pod.title} {does} {gpus}", pod.namespace, f"a pod {does} {gpus}")


def _bound(row: NodeRow) -> dict[str, PodOnNode]:
    return {pod.title: pod for pod in row.pods if not pod.reserved and pod.name}


def _gang_changes(before: Overview, after: Overview) -> Iterator[Change]:
    old = {(gang.namespace, gang.name): gang.phase for gang in before.gangs}
    for gang in after.gangs:
        known = old.get((gang.namespace, gang.name))
        if known != gang.phase:
            reason = f": {gang.reason}" if gang.phase in FAILED_PHASES else ""
            phase = phase_word(gang.phase)
            words = f"gang {gang.namespace}/{gang.name}: {phase}{reason}"
            yield Change(after.at, words, gang.namespace, f"a gang: {phase}")
