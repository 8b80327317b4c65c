"""The real state of simulated nodes, and the choices of their device plugins: by running them, not by prediction."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from gputopo.model import NodeTopology
from tests.api_objects import Object
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.preferred import PluginCrashError, best_effort, pair_scores

TRIES = 40  # orders in which the free GPUs are offered; choices that differ differ often
Gpus = frozenset[int]


def needs_an_island(pod: Object) -> bool:
    """Return whether a pod requires that NVLink connects its GPUs."""
    return bool({"required", "nvlink"} & set(pod["metadata"].get("annotations", {}).values()))


def held(fleet: Fleet, pods: Iterable[Object]) -> dict[str, dict[str, Gpus]]:
    """Return the GPUs of all running pods, by node and pod name. Fails if two pods have the same GPU."""
    found: dict[str, dict[str, Gpus]] = {name: {} for name in fleet.names}
    for pod in pods:
        if pod["status"]["phase"] == "Running":
            found[pod["spec"]["nodeName"]][pod["metadata"]["name"]] = frozenset(fleet.gpus_of(pod))
    for node, by_pod in found.items():
        given = [gpu for gpus in by_pod.values() for gpu in gpus]
        assert len(given) == len(set(given)), f"{node}: {by_pod}"
    return found


def free(topology: NodeTopology, by_pod: dict[str, Gpus]) -> Gpus:
    """The usable GPUs that no pod holds."""
    return frozenset(gpu.index for gpu in topology.usable) - {gpu for gpus in by_pod.values() for gpu in gpus}


def in_one_island(topology: NodeTopology, gpus: Gpus) -> bool:
    """Return whether NVLink connects all of the GPUs."""
    return any(gpus <= set(island.gpus) for island in topology.islands or ())


def all_in_one_island(fleet: Fleet, gpus_by_pod: dict[str, dict[str, Gpus]]) -> bool:
    """Return whether NVLink connects the GPUs of each pod. ``gpus_by_pod``: by node."""
    return all(
        in_one_island(fleet[node].topology, gpus) for node, by_pod in gpus_by_pod.items() for gpus in by_pod.values()
    )


def choices(topology: NodeTopology, available: Gpus, size: int) -> set[Gpus]:
    """Return the device plugin's choices for these GPUs, offered in many orders; a crash is the empty set."""
    random, scores, found = Random(0), pair_scores(topology), set[Gpus]()
    offered = sorted(available)
    for _ in range(TRIES):
        random.shuffle(offered)
        try:
            found.add(frozenset(best_effort(offered, (), size, scores)))
        except PluginCrashError:
            found.add(frozenset())
    return found


def surely_in_one_island(topology: NodeTopology, available: Gpus, size: int) -> bool:
    """Return whether every choice of ``size`` of these GPUs is in one island."""
    if len(available) < size:
        return False
    return all(gpus and in_one_island(topology, gpus) for gpus in choices(topology, available, size))
