"""The planner's CPU time per planned pod, by part, in one process and on one thread.

A minimal API server and kube-scheduler in the same process answer at once, with objects of realistic size, so that
every run does the same. 5,000 nodes; 600 single pods, ``--rate`` of which are ungated and bound each second.

    decode    decode the watch events of pods
    apply     apply them to the cluster cache
    round     determine the next writes
    plan      plan the next pods
    answers   process the answers to writes

Calls to the API server are not included. ``--profile`` prints a profile; ``--running``: number of running members of
gangs. Run: make bench
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from gputopo.crd.nodegpus import content_hash
from gputopo.crd.reservations import POOL, Preemption
from gputopo.kube.objects import ObjectMeta
from gputopo.kube.projection import Delta, Projection
from gputopo.kube.watch_stream import WatchStream
from gputopo.labels import encode_topology, keys
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, ReservationUpdate
from scheduler_core.cache.watch import RESERVATION_SOURCES
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_sources
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.freshness import Freshness
from scheduler_core.planner.leader.hold_search import HoldTask
from scheduler_core.planner.leader.plan_task import PlanMemory, PlanTask, run_plan
from scheduler_core.planner.leader.preemption_search import PreemptionSearch
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.leader.writer import WriteAnswer, WriteOutcome
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.preemption.model import PreemptionPlan
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.event_writer import EventDraft
from scheduler_core.runtime.garbage import LongLivedObjects
from tests.api_objects import Object, gpu_node
from tests.e2e.gangs import members
from tests.e2e.scheduler.running import gpu_pod
from tests.simulated_node.shapes import SHAPES, on_node

NODES, PODS, RATE, GANG = 5_000, 600, 400.0, 4
TURN_S, START = 0.01, 1_795_300_000.0  # START is 2026-11-21T22:26:40Z
WORKLOADS = {"1 GPU each": (1,), "1, 2, 1 and 4 GPUs in turn": (1, 2, 1, 4)}
_encode = msgspec.json.encode


def main() -> None:
    """Print a table per workload."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--pods", type=int, default=PODS)
    options.add_argument("--rate", type=float, default=RATE)
    options.add_argument("--running", type=int, default=0)
    options.add_argument("--profile", choices=("decode", "apply", "round", "plan", "answers"), nargs="+", default=())
    asked = options.parse_args()
    for title, sizes in WORKLOADS.items():
        spent = Spent(asked.profile)
        stage = Stage(spent, asked.nodes, asked.rate)
        stage.begin(asked.running // GANG, [planned(at, sizes[at % len(sizes)]) for at in range(asked.pods)])
        stage.run()
        print(f"\n{asked.nodes:,} nodes, {title}: ms of CPU for each pod")
        for part, seconds in spent.seconds.items():
            print(f"  {part:<7} {1000 * seconds / asked.pods:6.3f}")
        print(f"  {'all':<7} {1000 * sum(spent.seconds.values()) / asked.pods:6.3f}   in {stage.rounds} rounds")
        print(f"  all node states computed once: {stage.first_s:.2f} s", flush=True)
        spent.show()


class Spent:
    """The CPU time of each part."""

    def __init__(self, profiled: tuple[str, ...]) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._profiles = {part: cProfile.Profile(time.thread_time) for part in profiled}

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Add the CPU time of the block to a part."""
        profile = self._profiles.get(part)
        if profile is not None:
            profile.enable()
        began = time.thread_time()
        yield
        self.seconds[part] += time.thread_time() - began
        if profile is not None:
            profile.disable()

    def show(self) -> None:
        """Print the profiles."""
        for profile in self._profiles.values():
            pstats.Stats(profile).sort_stats("cumulative").print_stats(45)


class AlwaysFresh(Freshness):
    """The watches of this API server show no reservations and ledgers: own writes are known from their answers."""

    def update(self, *_: object) -> None:
        """Do nothing."""


class Stage:
    """A term of leadership, an API server and a kube-scheduler that run in turns."""

    def __init__(self, spent: Spent, nodes: int, rate: float) -> None:
        self.rounds = 0
        self.first_s = 0.0  # to compute all node states once
        self._now = self._due = self._next_tick = 0.0
        self._spent, self._count, self._rate = spent, nodes, rate
        self._sources = {**planner_sources(MemoizedParser(lambda: BUILT_IN)), **RESERVATION_SOURCES}
        self._reductions = {kind: Projection(source) for kind, source in self._sources.items()}
        self._pods: dict[str, Object] = {}
        self._version = 1000
        self._writes: deque[Action] = deque()
        self._lines: list[bytes] = []
        self._tasks: deque[PlanTask] = deque()
        self._memory = PlanMemory()
        self._to_bind: deque[str] = deque()
        settled = PlannerConfig(POOL, "default", CommitTerms(gated=True), QueueTiming(), LEVELS)
        clock = TermClock(lambda: self._now, lambda: START + self._now)
        self._term = LeaderTerm(settled, lambda: BUILT_IN, "bench", self, clock, AlwaysFresh())

    def begin(self, gangs: int, pods: list[Object]) -> None:
        """Deliver the lists; ``gangs`` are running."""
        self._term.apply_ledger(None)
        self._term.run_round()
        (create,) = self._writes
        self._writes.clear()
        self._term.apply_answer(WriteAnswer(create, WriteOutcome.DONE, self._written(POOL)))
        for kind in self._sources:
            if kind is PlannerPod:
                self._pods = {each["metadata"]["uid"]: each for each in pods}
                found = [*pods, *(member(gang, at, self._count) for gang in range(gangs) for at in range(GANG))]
            else:
                many = gangs if kind is ReservationUpdate else self._count
                found = [self._object(kind, at) for at in range(many if kind in MAKERS else 0)]
            self._take(kind, self._reductions[kind].apply_list(msgspec.Raw(_encode(each)) for each in found))
        began = time.thread_time()
        self._term.view.cache.snapshot  # noqa: B018  computes all node states once, which is not a cost per pod
        self.first_s = time.thread_time() - began
        LongLivedObjects().tick(0.0, loaded=True)
        self._spent.seconds.clear()

    def _object(self, kind: type[Any], at: int) -> Object:
        return MAKERS[kind](at, self._count)

    def run(self) -> None:
        """Wait until all pods are bound."""
        at_once = max(1, round(self._rate * TURN_S))
        while any("nodeName" not in each["spec"] for each in self._pods.values()) or self._writes:
            self._now += TURN_S
            for _ in range(min(at_once, len(self._to_bind))):
                self._bind(self._to_bind.popleft())
            self._answer(at_once)
            self._show()
            if self._tasks:
                with self._spent.on("plan"):
                    found = run_plan(self._tasks.popleft(), self._memory)
                with self._spent.on("round"):
                    self._term.apply_plan(found)
            if self._now >= self._due:
                self.rounds, self._due = self.rounds + 1, self._now + 1.0
                with self._spent.on("round"):
                    if self._now >= self._next_tick:
                        self._next_tick = self._now + 1.0
                        self._term.tick()
                    self._term.run_round()

    def _answer(self, most: int) -> None:
        now: list[Action] = []
        kept: deque[Action] = deque()
        for what in self._writes:
            now_too = not isinstance(what, UngateAndPin) or most > 0
            most -= isinstance(what, UngateAndPin)
            (now if now_too else kept).append(what)
        self._writes = kept
        answers = [WriteAnswer(what, WriteOutcome.DONE, self._carried_out(what)) for what in now]
        with self._spent.on("answers"):
            for answer in answers:
                self._term.apply_answer(answer)

    def _show(self) -> None:
        """Deliver the events of the pods' watch, each in its own chunk."""
        lines, self._lines = self._lines, []
        with self._spent.on("decode"):
            deltas = [
                delta
                for line in lines
                for events in WatchStream("watch", Chunks([line]))  # type: ignore[arg-type]
                for delta in self._reductions[PlannerPod].apply_events(events)
            ]
        with self._spent.on("apply"):
            for delta in deltas:
                self._take(PlannerPod, delta)

    def _carried_out(self, what: Action) -> ObjectMeta | None:
        if isinstance(what, UngateAndPin):
            pod = self._pods[what.member.uid]
            patch = pod_patches.ungate_and_pin_patch(what.member, what.seat, what.reservation)
            pod["metadata"]["annotations"] |= patch["metadata"]["annotations"]
            pod["spec"] |= {"affinity": patch["spec"].get("affinity")}
            del pod["spec"]["schedulingGates"]
            pod["status"] = pod["status"] | {"conditions": []}
            self._to_bind.append(what.member.uid)
            self._happen(pod)
            return ObjectMeta(name=what.member.name, uid=what.member.uid, resource_version=str(self._version))
        if isinstance(what, CreateReservation):
            return self._written(what.name)
        if isinstance(what, CreateLedger | WriteLedger | WriteStatus):
            return self._written(what.key[1])
        return None

    def _written(self, name: str) -> ObjectMeta:
        self._version += 1
        return ObjectMeta(name=name, uid=f"uid-{name}", resource_version=str(self._version), generation=self._version)

    def _bind(self, uid: str) -> None:
        pod = self._pods[uid]
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (pod["spec"]["nodeName"],) = terms["nodeSelectorTerms"][0]["matchFields"][0]["values"]
        condition = {"type": "PodScheduled", "status": "True", "lastProbeTime": None}
        pod["status"]["conditions"] = [condition | {"lastTransitionTime": "2026-11-21T10:00:03Z"}]
        self._happen(pod)

    def _happen(self, pod: Object) -> None:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self._lines.append(_encode({"type": "MODIFIED", "object": pod}) + b"\n")

    def _take(self, kind: type[Any], delta: Delta[Any]) -> None:
        if delta.updates or delta.removed or delta.is_full_list:
            self._term.apply_batch(Batch(kind, *delta))

    def execute_action(self, what: Action) -> None:
        """Execute it."""
        self._writes.append(what)

    def start_plan(self, task: PlanTask) -> None:
        """Compute it."""
        self._tasks.append(task)

    def start_hold_search(self, task: HoldTask) -> None:
        """Do nothing."""

    def start_preemption_search(self, search: PreemptionSearch) -> None:
        """Do nothing."""

    def report_preemption(self, outcome: str, plan: PreemptionPlan) -> None:
        """Do nothing."""

    def count_dry_run(self, gpu_hours: float, cost: float | None) -> None:
        """Do nothing."""

    def report_no_preemption(self, gang: GangName, reason: str) -> None:
        """Do nothing."""

    def count_preemption(self, outcome: str, preemption: Preemption) -> None:
        """Do nothing."""

    def count_won_capacity(self, gpu_hours: float, cost: float | None) -> None:
        """Do nothing."""

    def count_eviction(self, *, again: bool) -> None:
        """Count an evicted pod."""

    def schedule_round(self, seconds: float) -> None:
        """Request a round after that time, or sooner."""
        self._due = min(self._due, self._now + seconds)

    def lease_renewed_at(self) -> float:
        """Return that the Lease was never renewed."""
        return float("-inf")

    def count_answer(self, answer: WriteAnswer) -> None:
        """Do nothing."""

    def write_event(self, what: EventDraft) -> None:
        """Do nothing."""

    def count_wait(self, outcome: str, gang: Gang, seconds: float) -> None:
        """Do nothing."""


class Chunks:
    """A connection that returns prepared chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._left = iter(chunks)

    def read1(self, _: int) -> bytes:
        """Return the next chunk."""
        return next(self._left, b"")

    def close(self) -> None:
        """Close the connection."""


def node(at: int, _: int) -> Object:
    """Return a Node with published topology, of the simulated shapes in turn."""
    name = node_name(at)
    facts = encode_topology(on_node(_shape(at), name))
    found = gpu_node(name, 8, {**facts.labels, **facts.mirrors})
    found["metadata"]["annotations"] = dict(facts.annotations)
    return found


def word(at: int, _: int) -> Object:
    """Return a NodeGpus without allocations."""
    text = encode_topology(on_node(_shape(at), node_name(at))).annotations[keys.TOPOLOGY.key]
    return {
        "metadata": {"name": node_name(at)},
        "observedAt": "2026-11-21T22:30:00Z",
        "contentHash": content_hash(text),
        "agentVersion": "0.1.0",
        "allocations": [],
    }


def node_name(at: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{at:05}-pool-a1b2c3"


def _shape(at: int) -> Any:
    return list(SHAPES.values())[at % len(SHAPES)]()


def planned(at: int, gpus: int) -> Object:
    """Return a pod as the API server stores it, with defaults."""
    pod = gpu_pod(f"train-{at}", gpus, {keys.POD_PLANNED.key: "true"}, schedulingGates=list(members.GATES))
    pod["metadata"] |= {
        "namespace": "default",
        "uid": f"5a1f29bd-5b0c-4c0f-9a53-{at:012}",
        "resourceVersion": str(at),
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "managedFields": [_MANAGED],
    }
    pod["spec"] |= {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "securityContext": {},
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "tolerations": [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for what in ("not-ready", "unreachable")
        ],
    }
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastProbeTime": None}
    pod["status"] = {"phase": "Pending", "conditions": [gated], "qosClass": "BestEffort"}
    return pod


def member(gang: int, at: int, nodes: int) -> Object:
    """Return a running member of a gang: two gangs per node."""
    pod = planned(PODS * 10 + gang * GANG + at, 1)
    annotations = {keys.POD_GANG.key: f"gang-{gang}", keys.POD_GANG_SIZE.key: str(GANG)}
    pod["metadata"]["annotations"] = annotations | {keys.POD_RESERVATION.key: f"gang-{gang}-a1b2c3"}
    del pod["spec"]["schedulingGates"]
    pod["spec"]["nodeName"] = node_name(gang // 2 % nodes)
    pod["status"] = {"phase": "Running", "startTime": "2026-11-21T11:00:00Z"}
    return pod


def reservation(gang: int, nodes: int) -> Object:
    """Return the reservation of such a gang."""
    pods = [member(gang, at, nodes) for at in range(GANG)]
    seats = [
        {"uid": each["metadata"]["uid"], "name": each["metadata"]["name"], "node": each["spec"]["nodeName"]}
        for each in pods
    ]
    return {
        "metadata": {"name": f"gang-{gang}-a1b2c3", "namespace": "default", "uid": f"r-{gang}", "resourceVersion": "1"},
        "spec": {"gang": f"gang-{gang}", "seats": [each | {"gpus": [["nvidia.com/gpu", 1]]} for each in seats]},
        "status": {"state": "Bound", "bound": GANG, "members": GANG},
    }


MAKERS: dict[type[Any], Callable[[int, int], Object]] = {
    NodeUpdate: node,
    NodeGpusUpdate: word,
    ReservationUpdate: reservation,
}
_FIELDS = (
    "containers", "dnsPolicy", "enableServiceLinks", "restartPolicy", "schedulerName", "schedulingGates",
    "securityContext", "terminationGracePeriodSeconds", "annotations", "image", "imagePullPolicy", "name", "resources",
)  # fmt: skip
_MANAGED = {
    "manager": "python-urllib3",
    "operation": "Update",
    "apiVersion": "v1",
    "time": "2026-11-21T10:00:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:spec": {f"f:{name}": {} for name in _FIELDS}, "f:metadata": {"f:annotations": {".": {}}}},
}


if __name__ == "__main__":
    main()
