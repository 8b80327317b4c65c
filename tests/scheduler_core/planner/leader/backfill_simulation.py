"""A random cluster in discrete time: a leading planner, a scheduler that binds at once, and kubelets that end pods.

A large gang waits for nodes in use, and short gangs arrive. The same seed gives the same pods with and without
backfill.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.keys import POD_ESTIMATED_COMPLETION
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.planner.commit.actions import EvictPod
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy
from scheduler_core.policy.preemption import PreemptionMode, PreemptionPolicy
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import START, FakePlanner

STEP_S = 5.0
HORIZON_S = 2_400.0
GRACE_S = 20
# From the moment at which the holder would fit until evictions are sent: a search, the hold is listed, and 2 s later
# the first unit begins. Each is at most one step here.
PROTOCOL_S = 4 * STEP_S
GPUS = 4  # of a node
KEPT = "example.com/grace"  # a finalizer: the pod terminates, and is gone after its grace period


class ShortGang(NamedTuple):
    """A gang that arrives later."""

    at: float
    size: int
    gpus: int
    deadline_s: int | None
    run_s: float


class WorldResult(NamedTuple):
    """The result of a run. Times in seconds since the start; None: it did not happen until the end."""

    holder_started: float | None
    used_gpu_s: float  # until the end
    waits: tuple[float, ...]  # of short gangs until their start, or until the end
    backfilled: int  # gangs
    evicted: int  # pods
    late_s: float = 0.0  # of the holder, after the estimate of its hold


class World:
    """One run of a random cluster."""

    def __init__(self, seed: int, *, backfill: bool, early: bool, announced: bool = False, kills: bool = False) -> None:
        """``early``: pods in use may end before their deadlines; ``announced``: they say when.

        ``kills``: planners are killed between two writes.
        """
        self._announced = announced
        self._estimate: float | None = None  # of the hold, when the planner last wrote one
        random = Random(seed)
        self.nodes = random.randint(2, 4)
        self.server = ApiServer({f"n{at}": GPUS for at in range(self.nodes)})
        self._run_s: dict[str, float] = {}  # by UID
        self._ends: dict[str, float] = {}  # of running pods and of terminating pods
        self._started: dict[str, float] = {}
        self._gang_started: dict[str, float] = {}
        self._use = 0.0
        self._evicted = 0
        for at in range(self.nodes):
            self._use_node(f"n{at}", random, early=early)
        size = self.nodes if random.random() < 0.6 else 2
        self._pods = {"big": [self._create("big", size, GPUS, None, HORIZON_S) for _ in range(size)]}
        self._arrivals = sorted((_short_gang(random) for _ in range(random.randint(4, 10))), key=lambda each: each.at)
        self._arrived: dict[str, float] = {}
        # By step: after so many rounds of the step the planner is killed, and another one leads from the next step on.
        self._kills = {random.randint(1, 250): random.randint(0, 5) for _ in range(25)} if kills else {}
        self._mode = BackfillMode.DEADLINE if backfill else BackfillMode.OFF
        self._planners = 0
        self.planner = self._new_planner()

    def run(self) -> WorldResult:
        """Run to the end."""
        backfilled: set[str] = set()
        for step in range(int(HORIZON_S / STEP_S)):
            now = step * STEP_S
            self.server.now = START + now
            self.server.deletion_timestamp = format_timestamp(START + now + GRACE_S)
            self._end_pods(now)
            self._arrive(now)
            self._plan(now, self._kills.get(step))
            backfilled |= {uid for uid, each in self.server.reservations.items() if each.spec.backfill is not None}
            self._estimate = self._hold_estimate() or self._estimate
            self._bind(now)
            self._use += STEP_S * sum(_gpus(self.server.pods[uid]) for uid in self._started if uid in self.server.pods)
        waits = tuple(self._gang_started.get(name, HORIZON_S) - at for name, at in self._arrived.items())
        started = self._gang_started.get("big")
        late = 0.0 if started is None or self._estimate is None else max(0.0, started - self._estimate)
        return WorldResult(started, self._use, waits, len(backfilled), self._evicted, late)

    def _hold_estimate(self) -> float | None:
        """Return the estimate in the status of the hold, in seconds since the start."""
        assert self.server.ledger is not None
        listed = [self.server.reservations[each.uid] for each in self.server.ledger.spec.entries]
        found = [parse_timestamp(each.status.estimate) for each in listed if each.spec.held and each.status.estimate]
        return max((at - START for at in found if at is not None), default=None)

    def _new_planner(self) -> FakePlanner:
        self._planners += 1
        made = FakePlanner(self.server, f"planner-{self._planners}", terms=CommitTerms(gated=True))
        off = PreemptionPolicy(PreemptionMode.OFF)
        made.policies = BUILT_IN._replace(backfill=BackfillPolicy(self._mode), preemption=off)
        return made

    def _use_node(self, node: str, random: Random, *, early: bool) -> None:
        """Start pods on a node, which end by their deadlines."""
        left = random.choice((0, 2, 4, 4))
        while left > 0:
            gpus = random.choice((2, 4)) if left == GPUS else left
            deadline = random.randint(20, 150) * 10
            run_s = deadline * random.random() if early and random.random() < 0.5 else float(deadline)
            more: dict[str, Any] = {
                "spec": {"activeDeadlineSeconds": deadline},
                "status": {"phase": "Running", "startTime": format_timestamp(START)},
            }
            if self._announced:
                completion = {POD_ESTIMATED_COMPLETION.key: format_timestamp(START + run_s)}
                more["metadata"] = {"annotations": completion}
            uid = self.server.create_pod(f"user-{node}", gpus, more=more)
            self.server.bind(uid, node)
            self._started[uid], self._ends[uid] = 0.0, run_s
            left -= gpus

    def _create(self, name: str, size: int, gpus: int, deadline_s: int | None, run_s: float) -> str:
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE_S}
        if deadline_s is not None:
            spec["activeDeadlineSeconds"] = deadline_s
        more = {"metadata": {"finalizers": [KEPT]}, "spec": spec}
        uid = self.server.create_pod(name, gpus, name, size, more)
        self._run_s[uid] = run_s
        return uid

    def _arrive(self, now: float) -> None:
        while self._arrivals and self._arrivals[0].at <= now:
            each = self._arrivals.pop(0)
            name = f"short-{len(self._arrived)}"
            self._arrived[name] = each.at
            made = [self._create(name, each.size, each.gpus, each.deadline_s, each.run_s) for _ in range(each.size)]
            self._pods[name] = made

    def _end_pods(self, now: float) -> None:
        """Delete pods that have ended; set the end of pods that terminate."""
        for uid, pod in list(self.server.pods.items()):
            if "deletionTimestamp" in pod["metadata"] and uid in self._started:
                gone_by = parse_timestamp(pod["metadata"]["deletionTimestamp"])
                assert gone_by is not None
                self._ends[uid] = min(self._ends[uid], gone_by - START)
        for uid in [uid for uid, at in self._ends.items() if at <= now]:
            del self._ends[uid]
            self.server.delete_pod(uid)

    def _plan(self, now: float, killed_after: int | None) -> None:
        """Let the planner do all that is due now, or only some of it, and kill it then."""
        self.planner.now = START + now
        self.planner.term.tick(())
        before = len(self.planner.writes)
        for rounds in range(100):
            if rounds == killed_after or not self.planner.run_once():
                break
        else:
            raise AssertionError("the planner never becomes idle")
        self._evicted += sum(isinstance(each, EvictPod) for each in self.planner.writes[before:])
        if killed_after is not None:
            self.planner = self._new_planner()

    def _bind(self, now: float) -> None:
        """Bind and start the ungated pods of committed plans."""
        assert self.server.ledger is not None
        committed = [each.uid for each in self.server.ledger.spec.entries if each.phase is EntryPhase.COMMITTED]
        seats = [seat for uid in committed for seat in self.server.reservations[uid].spec.seats]
        for seat in seats:
            pod = self.server.pods.get(seat.uid)
            if pod is None or pod["spec"]["schedulingGates"] or pod["spec"].get("nodeName"):
                continue
            assert seat.node is not None
            self.server.bind(seat.uid, seat.node)
            version = self.server.pods[seat.uid]["metadata"]["resourceVersion"]
            status = {"phase": "Running", "startTime": format_timestamp(START + now)}
            self.server.patch_pod({"metadata": {"uid": seat.uid, "resourceVersion": version}, "status": status})
            self._started[seat.uid], self._ends[seat.uid] = now, now + self._run_s[seat.uid]
        self._check_capacity()
        for name, pods in self._pods.items():
            if all(uid in self._started for uid in pods):
                self._gang_started.setdefault(name, now)

    def _check_capacity(self) -> None:
        """No node has more pods than GPUs."""
        used = dict.fromkeys(self.server.nodes, 0)
        for uid in self._started:
            if uid in self.server.pods:
                used[self.server.pods[uid]["spec"]["nodeName"]] += _gpus(self.server.pods[uid])
        assert max(used.values()) <= GPUS, used


def _short_gang(random: Random) -> ShortGang:
    deadline = random.choice((60, 120, 300, 600, 900, None))
    run_s = 300.0 if deadline is None else deadline * random.choice((1.0, 1.0, 0.5))
    return ShortGang(random.randint(0, 200) * STEP_S, random.randint(1, 2), random.choice((1, 2, 4)), deadline, run_s)


def _gpus(pod: dict[str, Any]) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
