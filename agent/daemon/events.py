"""What is worth a Kubernetes Event: the differences between two published topologies. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.publish import Event
from gputopo.model import Gpu, NodeTopology

LOST, DEGRADED, RECOVERED = "GpuLost", "GpuTopologyDegraded", "GpuTopologyRecovered"


def news(before: NodeTopology | None, after: NodeTopology) -> tuple[Event, ...]:
    """What was lost, what got worse, what got better: at most one Event each, however much it is.

    ``before`` None: nothing was published yet. GPUs are named by UUID, since an index moves; lost ones are told once,
    not also as degraded.
    """
    lost = _unusable(after) - (_unusable(before) if before else set())
    were = _degradations(before) if before else {}
    are = _degradations(after)
    worse = {what: why for what, why in are.items() if what not in were and what not in lost}
    better = [what for what in were if what not in are]
    told = (
        (LOST, [f"{name} is lost: {are.get(name, 'it does not answer')}" for name in lost]),
        (DEGRADED, [f"{what}: {why}" for what, why in worse.items()]),
        (RECOVERED, [f"{what} is well again" for what in better]),
    )
    return tuple(Event(kind, "; ".join(sorted(each)), kind != RECOVERED) for kind, each in told if each)


def _unusable(topology: NodeTopology) -> set[str]:
    return {_name(gpu) for gpu in topology.gpus if not gpu.usable}


def _degradations(topology: NodeTopology) -> dict[str, str]:
    """What is degraded, by names that stay, with every reason."""
    whys: dict[str, list[str]] = {}
    names = {f"gpu{gpu.index}": _name(gpu) for gpu in topology.gpus}
    for each in topology.degraded:
        whys.setdefault(_renamed(each.what, names), []).append(each.why)
    return {what: ", ".join(each) for what, each in whys.items()}


def _renamed(what: str, names: dict[str, str]) -> str:
    """``gpu3.nvlink`` -> ``GPU-….nvlink``; ``gpu0-gpu3`` -> ``GPU-… - GPU-…``."""
    return " - ".join(".".join(_parts(end, names)) for end in what.split("-gpu")) if what.startswith("gpu") else what


def _parts(end: str, names: dict[str, str]) -> Iterator[str]:
    index, _, rest = end.removeprefix("gpu").partition(".")
    yield names.get(f"gpu{index}", f"gpu{index}")
    if rest:
        yield rest


def _name(gpu: Gpu) -> str:
    return gpu.uuid or gpu.bus_id or f"gpu{gpu.index}"
