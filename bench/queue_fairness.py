"""Waits of gangs that fit behind gangs that do not fit, as ratios to the waits with no such gang.

A term of leadership with the real planner code and a minimal API server in one process, as in ``planner_loop.py``. All
nodes are in use except the nodes for the gangs that fit and for one gang before them, which is not measured: the first
plan looks at all nodes. The gangs that do not fit have a higher priority, so the queue begins with them. The gangs that
fit arrive together 10 s later, when the others have been tried. All the time, pods with one GPU end and start on nodes
that no waiting gang can use. The clock advances by the CPU time of the planner; where nothing is due, it skips to the
next event. So a wait does not depend on the load of the machine.

    --different     each gang that does not fit has a request of its own; otherwise there are four requests
    --together      these gangs arrive together with those that fit, so none of them was tried before
    --usable        the pods that end free GPUs that one member of a gang that does not fit could use
    --singles       instead of each gang that does not fit a planned single pod: no node of its pool is free
    --anti-affinity the first of them may not share a host with pods like itself
    --holds         they have ten priorities, and for each priority GPUs of pods that run are held; the gangs that fit
                    arrive after 400 s

    mean, max   wait from the arrival until the first member is ungated, in seconds of that clock
    ratio       mean wait by the mean wait without gangs that do not fit
    CPU %       CPU of the planner once all gangs that fit are placed, in % of a core, with the events
Run: make bench
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle
from typing import Any, NamedTuple

import msgspec
from planner_loop import RATE, Spent, Stage, node_name, planned

from gputopo.labels import keys
from scheduler_core.cache.events import NodeUpdate
from scheduler_core.planner.commit.actions import Action, UngateAndPin
from scheduler_core.planner.leader.hold_search import HoldTask, search_hold
from scheduler_core.planner.leader.plan_task import run_plan
from scheduler_core.planner.leader.preemption_search import PreemptionSearch, run_preemption_search
from tests.api_objects import Object

NODES, UNFIT, FIT = (5_000, 15_000), (0, 10, 100, 1_000), 20
MEMBERS = 2  # of a gang that fits, with 8 GPUs each
EVENT_S, SWAPPED = 0.02, 50  # seconds from one replaced pod to the next; nodes with such pods
ARRIVE_AT_S = 10.0  # when the gangs that fit arrive
HOLDS_AT_S, PRIORITIES = 400.0, 10  # with holds: a gang gets one after 300 s
IDLE_S, LIMIT_S = 20.0, 120.0


def main() -> None:
    """Print a row per number of gangs that do not fit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, nargs="+", default=NODES)
    options.add_argument("--unfit", type=int, nargs="+", default=UNFIT)
    for option in Case._fields:
        options.add_argument(f"--{option.replace('_', '-')}", action="store_true")
    asked = options.parse_args()
    case = Case(**{option: getattr(asked, option) for option in Case._fields})
    print(f"{FIT} gangs that fit, {MEMBERS} x 8 GPUs each; every {1000 * EVENT_S:.0f} ms a GPU pod is replaced")
    print(f"{'nodes':>7} {'do not fit':>11} {'started':>8} {'mean s':>8} {'max s':>8} {'ratio':>7} {'CPU %':>8}")
    for nodes in asked.nodes:
        base: float | None = None
        for unfit in asked.unfit:
            stage = Fairness(nodes, unfit, case)
            waits = stage.measure_waits()
            mean = sum(waits) / len(waits) if waits else float("nan")
            base = mean if base is None else base
            idle = stage.measure_idle()
            print(
                f"{nodes:7,} {unfit:11,} {len(waits):5}/{FIT} {mean:8.2f} {max(waits, default=float('nan')):8.2f} "
                f"{mean / base:7.2f} {100 * idle:7.1f}%",
                flush=True,
            )


class Case(NamedTuple):
    """The options of the program."""

    different: bool = False
    together: bool = False
    usable: bool = False
    singles: bool = False
    anti_affinity: bool = False
    holds: bool = False


class Fairness(Stage):
    """Gangs that do not fit at the head of the queue, gangs that fit behind them, and pod events on other nodes."""

    def __init__(self, nodes: int, unfit: int, case: Case) -> None:
        self._at, self._plan_s, self._read_at = 0.0, 0.0, 0.0
        self._began: float | None = None
        self._found_beside: Callable[[], None] | None = None  # applies the result of a search beside the loop
        super().__init__(Spent(()), nodes, RATE)
        self._ungated: dict[str, float] = {}  # by gang: when its first member was ungated
        free = (FIT + 1) * MEMBERS  # with the gang "first"
        names = [node_name(at) for at in range(nodes)]
        swapped_full = 0 if case.usable else 7
        pods = [
            running(f"full-{at}", gpus, name)
            for at, name in enumerate(names[free:])
            if (gpus := 8 if at >= SWAPPED else swapped_full)
        ]
        swapped = [running(f"swap-{at}", 1, name) for at, name in enumerate(names[free : free + SWAPPED])]
        waiting = [
            gated(f"unfit-{gang}", 5 + gang % 4, at, priority=10, vram_mib=1 + gang if case.different else None)
            for gang in range(unfit)
            for at in range(1 if case.singles else MEMBERS)
        ]
        for each in waiting if case.singles else ():
            make_single(each)
        for each in waiting[:MEMBERS] if case.anti_affinity else ():
            refuse_own_kind(each)
        for at, each in enumerate(waiting if case.holds else ()):
            wait_for_running_pods(each, 10 + at // MEMBERS % PRIORITIES)
        first = [gated("first", 8, at) for at in range(MEMBERS)]
        self._arrive_at = HOLDS_AT_S if case.holds else ARRIVE_AT_S
        self._arriving = [gated(f"fit-{gang}", 8, at) for gang in range(FIT) for at in range(MEMBERS)]
        if case.together:
            self._arriving = [*waiting, *self._arriving]
            waiting = []
        self.begin(0, [*pods, *swapped, *waiting, *first])
        self._swaps = cycle(swapped)
        self._next_event, self._next_tick = EVENT_S, 0.0

    @property
    def _now(self) -> float:
        """Seconds of the clock. A plan that runs takes time; its CPU time, which is slow to read, is read each ms."""
        if self._began is not None and time.perf_counter() - self._read_at > 1e-3:
            self._plan_s, self._read_at = time.thread_time() - self._began, time.perf_counter()
        return self._at + self._plan_s

    @_now.setter
    def _now(self, at: float) -> None:
        self._at = at

    def measure_waits(self) -> list[float]:
        """Let the gangs that fit arrive, and run until all are ungated, or the time is over. Return their waits."""
        self._run_until(self._arrive_at)
        arrived = self._now
        for each in self._arriving:
            self._pods[each["metadata"]["uid"]] = each
            self._lines.append(msgspec.json.encode({"type": "ADDED", "object": each}) + b"\n")
        self._run_until(arrived + LIMIT_S, fits=True)
        return [at - arrived for gang, at in self._ungated.items() if gang.startswith("fit-")]

    def measure_idle(self) -> float:
        """Return the CPU time by the time of the clock while only gangs that do not fit wait."""
        self._run_until(self._now + 2.0)
        began, cpu = self._now, self._cpu()
        self._run_until(began + IDLE_S)
        return (self._cpu() - cpu) / (self._now - began)

    def _cpu(self) -> float:
        return sum(self._spent.seconds.values())

    def _run_until(self, end: float, *, fits: bool = False) -> None:
        while self._now < end and not (fits and len(self._ungated) == FIT + 1):
            before = self._cpu()
            while self._next_event <= self._now:
                self._swap_pod(next(self._swaps))
                self._next_event += EVENT_S
            while self._to_bind:
                self._bind(self._to_bind.popleft())
            self._answer(1 << 30)
            self._show()
            if self._tasks:
                self._began = time.thread_time()
                with self._spent.on("plan"):
                    found = run_plan(self._tasks.popleft(), self._memory)
                self._began, self._plan_s = None, 0.0
                with self._spent.on("round"):
                    self._term.apply_plan(found)
            if self._now >= self._next_tick:
                self._next_tick = self._now + 1.0
                self._term.tick()
            if self._now >= self._due:
                self._due = self._next_tick
                with self._spent.on("round"):
                    self._term.run_round()
            found_beside, self._found_beside = self._found_beside, None
            if found_beside is not None:
                with self._spent.on("round"):
                    found_beside()
            self._now += self._cpu() - before
            if not (self._tasks or self._writes or self._to_bind or self._lines):
                self._now = max(self._now, min(self._due, self._next_event, self._next_tick))

    def _swap_pod(self, pod: Object) -> None:
        """End a pod with one GPU, and start another one on its node."""
        uid = pod["metadata"]["uid"]
        self._lines.append(msgspec.json.encode({"type": "DELETED", "object": pod}) + b"\n")
        self._version += 1
        pod["metadata"] |= {"uid": f"{uid.partition('#')[0]}#{self._version}", "resourceVersion": str(self._version)}
        self._lines.append(msgspec.json.encode({"type": "ADDED", "object": pod}) + b"\n")

    def _object(self, kind: type[Any], at: int) -> Object:
        found = super()._object(kind, at)
        if kind is NodeUpdate:  # the gangs that do not fit wait for the nodes in use
            found["metadata"]["labels"]["pool"] = "used" if at >= (FIT + 1) * MEMBERS else "free"
        return found

    def start_hold_search(self, task: HoldTask) -> None:
        """Search at once. The CPU time does not count: a planner searches in a thread beside its loop."""
        began, found = time.thread_time(), search_hold(task)
        found = found._replace(cpu_s=self._time_beside(began))
        self._found_beside = lambda: self._term.apply_hold_result(found)

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Search at once, as for a hold."""
        began, found = time.thread_time(), run_preemption_search(search)
        found = found._replace(cpu_s=self._time_beside(began))
        self._found_beside = lambda: self._term.apply_preemption_result(found)

    def _time_beside(self, began: float) -> float:
        """Return the CPU time of a search that began then, and take it out of the round in progress."""
        spent = time.thread_time() - began
        self._spent.seconds["round"] -= spent
        return spent

    def execute_action(self, what: Action) -> None:
        """Execute it, and record when a gang is ungated."""
        if isinstance(what, UngateAndPin):
            self._ungated.setdefault(what.member.gang_request.gang.name, self._now)
        super().execute_action(what)


def running(name: str, gpus: int, node: str) -> Object:
    """Return a running pod of another scheduler."""
    pod = planned(0, gpus)
    pod["metadata"] |= {"name": name, "uid": f"uid-{name}", "annotations": {}}
    del pod["spec"]["schedulingGates"]
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Running", "startTime": "2026-11-21T11:00:00Z"}
    return pod


def gated(gang: str, gpus: int, rank: int, priority: int = 0, vram_mib: int | None = None) -> Object:
    """Return a gated member. Gangs with a priority are in another namespace, and require one host for all members.

    No host has so many GPUs.
    """
    pod = planned(0, gpus)
    annotations = {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: str(MEMBERS)}
    if vram_mib is not None:
        annotations[keys.POD_MIN_VRAM.key] = f"{vram_mib}Mi"
    if priority:
        annotations[keys.POD_GANG_REQUIRED.key] = "kubernetes.io/hostname"
        pod["metadata"]["namespace"] = "other"  # the limit of queued gangs is for each namespace
    pod["metadata"] |= {"name": f"{gang}-{rank}", "uid": f"uid-{gang}-{rank}", "annotations": annotations}
    pod["spec"]["priority"] = priority
    return pod


def make_single(pod: Object) -> None:
    """Make a member a planned single pod for a pool that has no nodes."""
    del pod["metadata"]["annotations"][keys.POD_GANG.key], pod["metadata"]["annotations"][keys.POD_GANG_SIZE.key]
    del pod["metadata"]["annotations"][keys.POD_GANG_REQUIRED.key]
    pod["metadata"]["annotations"][keys.POD_PLANNED.key] = "true"
    pod["spec"]["nodeSelector"] = {"pool": "other"}


def wait_for_running_pods(pod: Object, priority: int) -> None:
    """Make a member fit as soon as pods end."""
    del pod["metadata"]["annotations"][keys.POD_GANG_REQUIRED.key]
    pod["spec"] |= {"priority": priority, "nodeSelector": {"pool": "used"}}


def refuse_own_kind(pod: Object) -> None:
    """Give a pod a required anti-affinity by host to pods with its label."""
    pod["metadata"]["labels"] = {"app": "apart"}
    term = {"labelSelector": {"matchLabels": pod["metadata"]["labels"]}, "topologyKey": "kubernetes.io/hostname"}
    pod["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


if __name__ == "__main__":
    main()
