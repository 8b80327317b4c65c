"""Random Nodes, agents' reports and pods, with several odd values in each object. No program may stop at them.

``attacks`` tries each value in each field alone; here values meet each other. Run: ``make campaign``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from gputopo.crd.nodegpus import content_hash
from gputopo.labels import encode_topology, keys
from gputopo.process.decoding import convert
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.extender.extender import Extender
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from scheduler_core.ui.main import sources as page_sources
from scheduler_core.ui.overview_page import overview_page
from scheduler_core.ui.service import UiService
from tests.campaign.programs import (
    EXTENDER,
    NODES,
    REPORTS,
    Json,
    hostile_batches,
    node,
    node_gpus,
    placed_gangs,
    pod,
)
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW

_HEALTHY = {"nodes": NODES[:2], "nodegpus": REPORTS[:2]}
_TOPOLOGIES = [encode_topology(machine()) for machine in MACHINES.values()]
_RESOURCES = (
    "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/mig-3g.20gb", "nvidia.com/gpu.shared", "cpu", "memory",
)  # fmt: skip
_QUANTITIES = (
    "0", "1", "-1", "1n", "1u", "1m", "7m", "8m", "0.001", "0.5", "2", "3", "7", "8", "9", "16", "64", "1k", "1Mi",
    "100Gi", "1Ti", "1Pi", "1e3", "9223372036854775807", "", "x",
)  # fmt: skip
_TEXTS = (
    "0", "1", "-1", "2", "4", "8", "0.0", "0.001", "1e-9", "1e9", "NaN", "inf", "50%", "true", "required", "preferred",
    "none", "best-effort", "restricted", "single-numa-node", "distributed", "packed", "H100", "1Mi", "0Gi", "100Gi",
    "training", "inference", "rack", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0s", "1h", "99999h", "x",
)  # fmt: skip
_LEAVES = (0, 1, -1, 2, 0.5, 1e-9, -200, 900, 1e308, 8, 64, 65, 1_000_000, None, True, "x")
_NODE_KEYS = [key.key for key in (*keys.NODE_LABELS, *keys.MIRRORS, *keys.NODE_KEYS_READ)]
_POD_KEYS = [key.key for key in keys.POD_KEYS]


class RandomObjects(NamedTuple):
    """Objects of a tenant, of its nodes and of their agents, as JSON."""

    nodes: list[Json]
    reports: list[Json]
    pods: list[Json]

    def texts(self, pod_kind: type[Any]) -> Mapping[type[Any], list[bytes]]:
        """Return the objects by the kind of update, as a watch brings them."""
        kinds = {NodeUpdate: self.nodes, NodeGpusUpdate: self.reports, pod_kind: self.pods}
        return {kind: [json.dumps(each).encode() for each in found] for kind, found in kinds.items()}


def random_objects(random: Random) -> RandomObjects:
    """Return two nodes with their reports, and pods of which three are bound."""
    nodes = [_node(random, f"foe-{number}") for number in range(2)]
    pods = [_pod(random, number, is_bound=number < 3) for number in range(6)]
    return RandomObjects(nodes, [_report(random, each) for each in nodes], pods)


def stopped_programs(random: Random) -> dict[str, Exception]:
    """Return the programs that an exception ends at random objects."""
    found = random_objects(random)
    programs: dict[str, Callable[[], object]] = {
        "extender": lambda: _evaluate(found, random),
        "planner": lambda: placed_gangs(dict(found.texts(PlannerPod))),
        "pages": lambda: _render(found),
    }
    stopped = {}
    for name, program in programs.items():
        try:
            program()
        except Exception as error:  # noqa: BLE001  what no object may cause
            stopped[name] = error
    return stopped


def _evaluate(found: RandomObjects, random: Random) -> None:
    cache = ClusterCache(Policy(), reservations=True)
    for batch in hostile_batches(EXTENDER, _HEALTHY, dict(found.texts(PodUpdate))):
        cache.apply_batch(batch, NOW)
    extender, names = Extender(cache, Policy(), lambda: NOW, lambda _: None), {"a", "b", "foe-0", "foe-1"}
    for body in (pod("asked", "team", 4), _pod(random, 8, is_bound=False), _pod(random, 9, is_bound=False)):
        asked = convert(body, Pod)
        extender.filter(asked, names)
        list(extender.prioritize(asked, names))


def _render(found: RandomObjects) -> None:
    service = UiService(clock=lambda: NOW)
    for batch in hostile_batches(page_sources(), _HEALTHY, dict(found.texts(PlannerPod))):
        service.apply_batch(batch)
    service.tick()
    overview_page(service.overview, service.history)


def _node(random: Random, name: str) -> Json:
    made, topology = node(name, {"pool": "foe"}), random.choice(_TOPOLOGIES)
    labels = {random.choice(_NODE_KEYS): random.choice(_TEXTS) for _ in range(random.randrange(4))}
    made["metadata"]["labels"] |= {**topology.labels, **labels}
    share = random.choice((0.0, 0.0, 0.02, 0.1))
    made["metadata"]["annotations"] = {
        key: json.dumps(_changed(random, json.loads(value), share)) if value.startswith("{") else value
        for key, value in topology.annotations.items()
    }
    allocatable = {each: random.choice(_QUANTITIES) for each in _RESOURCES if random.random() < 0.5}
    made["status"] = {"allocatable": allocatable | ({"nvidia.com/gpu": "8"} if random.random() < 0.5 else {})}
    return made


def _report(random: Random, of: Json) -> Json:
    text = of["metadata"]["annotations"].get(keys.TOPOLOGY.key, "")
    gpus = json.loads(text).get("gpus", []) if text.startswith("{") else []
    uuids = [gpu["uuid"] for gpu in gpus if isinstance(gpu, dict) and isinstance(gpu.get("uuid"), str)] or ["GPU-x"]
    held = [
        {"gpu": random.choice(uuids), "pod": {"namespace": "foe", "name": name, "container": "c", "uid": f"foe-{name}"}}
        for name in (f"b{random.randrange(4)}" for _ in range(random.randrange(9)))
    ]
    made = {**node_gpus(of["metadata"]["name"]), "contentHash": content_hash(text), "allocations": held}
    return dict(_changed(random, made, random.choice((0.0, 0.05))))


def _pod(random: Random, number: int, *, is_bound: bool) -> Json:
    gang = random.choice((None, None, "g"))
    made = pod(f"b{number}", "foe", 1, gang, **({"nodeName": "foe-0"} if is_bound else {}))
    made["spec"]["containers"][0]["resources"] = {
        part: {random.choice(_RESOURCES): random.choice(_QUANTITIES) for _ in range(random.randrange(4))}
        for part in ("limits", "requests")
    }
    for part, most in (("annotations", 5), ("labels", 2)):
        texts = {random.choice(_POD_KEYS): random.choice(_TEXTS) for _ in range(random.randrange(most))}
        made["metadata"][part] = made["metadata"].get(part, {}) | texts
    made["status"] = {"phase": random.choice(("Running", "Pending", "Failed")) if is_bound else "Pending"}
    return made


def _changed(random: Random, value: Any, share: float) -> Any:
    """Return JSON with this share of its numbers replaced, and fewer of its fields and elements left out."""
    if isinstance(value, dict):
        return {key: _changed(random, each, share) for key, each in value.items() if random.random() >= share / 8}
    if isinstance(value, list):
        found = [_changed(random, each, share) for each in value]
        return found[: random.randrange(len(found) + 1)] if found and random.random() < share / 3 else found
    return random.choice(_LEAVES) if isinstance(value, int | float) and random.random() < share else value
