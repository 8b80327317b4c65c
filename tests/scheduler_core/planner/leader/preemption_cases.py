"""Clusters with running pods and an urgent gang, and planners that preempt."""

from __future__ import annotations

from typing import Any

from gputopo.crd.reservations import EntryPhase
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.policy.preemption import (
    PreemptionMatch,
    PreemptionMode,
    PreemptionPolicy,
    PreemptionRule,
)
from scheduler_core.policy.profiles import BUILT_IN
from tests.scheduler_core.planner.commit.apiserver import ApiServer
from tests.scheduler_core.planner.leader.fake_planner import FakePlanner

RULE = PreemptionRule("lower-preemptible", PreemptionMatch(), min_runtime_s=0.0)
POLICY = PreemptionPolicy(PreemptionMode.EVICT, (RULE,), wait_s=0.0, min_runtime_s=0.0)
TERMS = CommitTerms(gated=True)
RUNNING = {"status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}}


def full(*, ends: bool = True, **gpus: int) -> tuple[ApiServer, dict[str, str]]:
    """Return nodes of two GPUs, each with a running pod of so many GPUs; and these pods by node.

    ``ends``: false: the pods have a finalizer, and do not end.
    """
    server = ApiServer(dict.fromkeys(gpus, 2))
    running = {"status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}}
    kept = {} if ends else {"metadata": {"finalizers": ["example.com/keep"]}}
    pods = {node: server.create_pod(f"on-{node}", number, more={**running, **kept}) for node, number in gpus.items()}
    for node, uid in pods.items():
        server.bind(uid, node)
    return server, pods


def urgent(server: ApiServer, name: str = "urgent", size: int = 1, gpus: int = 2) -> list[str]:
    return [server.create_pod(name, gpus, name, size, priority=100) for _ in range(size)]


def planner(server: ApiServer, name: str = "one", **changed: Any) -> FakePlanner:
    made = FakePlanner(server, name, terms=TERMS)
    made.policies = BUILT_IN._replace(preemption=POLICY._replace(**changed))
    return made


def run(of: FakePlanner, seconds: int = 40) -> None:
    """Run for a time: evictions wait until extenders have read the hold."""
    for _ in range(seconds // 2):
        of.now += 2.0
        of.server.now += 2.0
        of.run()


def evicted(of: FakePlanner) -> list[str]:
    return [each.eviction.uid for each in of.writes if isinstance(each, EvictPod)]


def committed(server: ApiServer) -> set[str]:
    """Return the gangs that the ledger has listed as committed at any time: here no scheduler binds them."""
    shown = [each.object for each in server.events if each.kind is ReservationUpdate and each.object is not None]
    gangs = {each.key: each.spec.gang for each in shown}
    ledgers = (each.object for each in server.events if each.kind is LedgerUpdate and each.object is not None)
    return {gangs[entry.uid] for of in ledgers for entry in of.spec.entries if entry.phase is EntryPhase.COMMITTED}


def bind_all(of: FakePlanner) -> None:
    """Bind the ungated pods of the committed reservations, as kube-scheduler does, and let the planner see it."""
    for seat in (seat for each in of.server.reservations.values() for seat in each.spec.seats):
        spec = of.server.pods[seat.uid]["spec"]
        if seat.node is not None and not spec["schedulingGates"] and not spec.get("nodeName"):
            of.server.bind(seat.uid, seat.node)
    of.run()


def gang_of_two(server: ApiServer, nodes: tuple[str, str], *, ends: bool = True) -> list[str]:
    """Run a gang of two pods, a unit, on these nodes."""
    kept: dict[str, Any] = {} if ends else {"finalizers": ["example.com/keep"]}
    running = {"status": {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}, "metadata": kept}
    pods = [server.create_pod("pair", 2, "pair", 2, running | {"spec": {"nodeName": each}}) for each in nodes]
    for each in pods:
        server.pods[each]["spec"]["schedulingGates"] = []
    return pods


def intents(server: ApiServer) -> list[ReservationUpdate]:
    return [each for each in server.reservations.values() if each.spec.preemption is not None]


def annotate(server: ApiServer, uid: str, key: str, value: str) -> None:
    pod = server.pods[uid]
    annotations = {**pod["metadata"].get("annotations", {}), key: value}
    server._put_pod({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})


def running(server: ApiServer) -> list[str]:
    """Return the running pods without those of the gang that waits."""
    return [uid for uid, pod in server.pods.items() if pod["spec"].get("nodeName")]
