"""The Kubernetes Events for a change of the published topology, and for own keys that were restored. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agent.daemon.gpu_name import stable_name
from agent.publish import NodeEvent, RestoredField
from gputopo.model import NodeTopology

LOST, DEGRADED, RECOVERED = "GpuLost", "GpuTopologyDegraded", "GpuTopologyRecovered"
RESTORED = "GpuTopologyRestored"
REASONS = (LOST, DEGRADED, RECOVERED, RESTORED)  # the admission policy lists them


def events_between(before: NodeTopology | None, after: NodeTopology) -> tuple[NodeEvent, ...]:
    """Return the Events for lost GPUs, new degradations and recoveries: at most one Event of each kind.

    ``before`` is None where nothing was published yet. GPUs are named by UUID, because indices change. A lost GPU is
    not reported as degraded as well.
    """
    lost = _lost_gpu_names(after) - (_lost_gpu_names(before) if before else set())
    were = _reasons_by_name(before) if before else {}
    are = _reasons_by_name(after)
    worse = {what: why for what, why in are.items() if what not in were and what not in lost}
    better = [what for what in were if what not in are]
    reports = (
        (LOST, [f"{name} is lost: {are.get(name, 'the driver does not answer for it')}" for name in lost]),
        (DEGRADED, [f"{what}: {why}" for what, why in worse.items()]),
        (RECOVERED, [f"{what} has recovered" for what in better]),
    )
    return tuple(NodeEvent(kind, "; ".join(sorted(each)), kind != RECOVERED) for kind, each in reports if each)


def restored_event(kind: str, fields: Iterable[RestoredField]) -> NodeEvent:
    """Return the Event for fields that another client had changed. ``kind``: of the object ("Node", "NodeGpus")."""
    names = ", ".join(f"{each.name} (by {' and '.join(each.managers) or 'an unknown client'})" for each in fields)
    return NodeEvent(RESTORED, f"other clients changed keys of the {kind} that only the agent may set: {names}", True)


def _lost_gpu_names(topology: NodeTopology) -> set[str]:
    return {stable_name(gpu) for gpu in topology.gpus if not gpu.usable}


def _reasons_by_name(topology: NodeTopology) -> dict[str, str]:
    """The reasons of each degradation, by a name that does not depend on indices."""
    reasons: dict[str, list[str]] = {}
    names = {f"gpu{gpu.index}": stable_name(gpu) for gpu in topology.gpus}
    for each in topology.degraded:
        reasons.setdefault(_with_stable_names(each.what, names), []).append(each.why)
    return {what: ", ".join(each) for what, each in reasons.items()}


def _with_stable_names(what: str, names: dict[str, str]) -> str:
    """``gpu3.nvlink`` -> ``GPU-….nvlink``; ``gpu0-gpu3`` -> ``GPU-… - GPU-…``."""
    return (
        " - ".join(".".join(_name_parts(end, names)) for end in what.split("-gpu")) if what.startswith("gpu") else what
    )


def _name_parts(end: str, names: dict[str, str]) -> Iterator[str]:
    index, _, rest = end.removeprefix("gpu").partition(".")
    yield names.get(f"gpu{index}", f"gpu{index}")
    if rest:
        yield rest
