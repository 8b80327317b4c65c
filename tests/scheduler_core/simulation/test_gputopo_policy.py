"""The simulator decides as the extender does: the same replay, with the extender called over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import yaml

from gputopo.labels.keys import GPUS
from scheduler_core.extender.extender import Extender, ExtenderCalls
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from scheduler_core.simulation.engine import replay_jobs
from scheduler_core.simulation.gputopo_policy import CPU_WEIGHT, FEW_GPUS, GputopoScheduler
from scheduler_core.simulation.hosts import Placement, SimulatedCluster, SimulatedNode
from scheduler_core.simulation.workload import SimulatedJob, draw_jobs
from tests.scheduler_core.runtime.served import Running, app_of, serving
from tests.scheduler_core.simulation.clusters import MIXED, MIXED_JOBS, QUADS, jobs


class OverHttp:
    """Calls the extender as kube-scheduler does."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.asked = 0

    def filter(self, pod: Pod, names: AbstractSet[str], *, final: bool = True) -> FilterResult:  # noqa: ARG002
        found = self._ask("/filter", pod, names)
        return FilterResult(tuple(found.get("NodeNames") or ()), found.get("FailedNodes") or {})

    def prioritize(self, pod: Pod, names: AbstractSet[str]) -> Iterable[tuple[str, int]]:
        return [(each["Host"], each["Score"]) for each in self._ask("/prioritize", pod, names)]

    def _ask(self, path: str, pod: Pod, names: AbstractSet[str]) -> Any:
        self.asked += 1
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": sorted(names)})
        status, answer = self._running.ask("POST", path, body)
        assert status == 200, answer
        return json.loads(answer)


def _placements(specs: list[SimulatedNode], asked: list[SimulatedJob], *, http: bool) -> list[tuple[str, Placement]]:
    hosts = SimulatedCluster(specs)
    with ExitStack() as stack:

        def through(extender: Extender) -> ExtenderCalls:
            return OverHttp(stack.enter_context(serving(app_of(extender)))) if http else extender

        ours = GputopoScheduler(hosts, Policy(), Random(5), through)
        return [(each.job.name, each.placement) for each in replay_jobs(asked, hosts, ours).started]


def test_placements_equal_those_over_http() -> None:
    asked = jobs(4, 60)

    assert _placements(QUADS, asked, http=True) == _placements(QUADS, asked, http=False)


def test_placements_of_shared_gpus_equal_those_over_http() -> None:
    asked = draw_jobs(MIXED_JOBS, 30_000, 1.3, Random(1))

    assert _placements(MIXED, asked, http=True) == _placements(MIXED, asked, http=False)


def test_placements_of_a_seed_do_not_change() -> None:
    """Faster code must not change decisions. Intended changes of decisions change this test."""
    asked = draw_jobs(MIXED_JOBS, 30_000, 1.3, Random(1))

    placed = _placements(MIXED, asked, http=False)

    assert " ".join(f"{name}:{host}:{gpus:b}" for name, (host, gpus) in placed) == (
        "pair-0:3:11 little-1:5:1 whole-2:5:10 none-3:4:0 half-4:5:1 all-5:0:11111111 half-6:4:1 half-7:4:1 none-8:3:0 "
        "half-9:4:10 pair-10:1:110000 whole-11:1:1000000 half-12:4:10 whole-13:1:1 half-14:1:10000000 "
        "half-15:1:10000000 little-16:5:1 whole-17:1:1000 none-18:5:0 half-19:1:10 all-20:2:11111111 none-21:3:0 "
        "little-23:1:10 whole-24:1:100"
    )


def test_pods_without_gpus_use_the_shipped_profile() -> None:
    file = Path(__file__).parents[3] / "daemonset/scheduler/examples/cpu-beside-gpus-profile.yaml"
    (profile,) = yaml.safe_load(file.read_text(encoding="utf-8"))["profiles"]
    arguments = {each["name"]: each["args"] for each in profile["pluginConfig"]}
    first, *few = arguments["NodeAffinity"]["addedAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]

    assert first["preference"]["matchExpressions"] == [{"key": GPUS.key, "operator": "DoesNotExist"}]
    assert [(each["weight"], each["preference"]["matchExpressions"]) for each in few] == [
        (100 / len(FEW_GPUS), [{"key": GPUS.key, "operator": "Lt", "values": [str(count + 1)]}]) for count in FEW_GPUS
    ]
    assert profile["plugins"]["score"]["enabled"] == [{"name": "NodeAffinity", "weight": CPU_WEIGHT}]
    assert arguments["NodeResourcesFit"]["scoringStrategy"]["type"] == "LeastAllocated"
