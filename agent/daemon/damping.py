"""Damping of health changes: worse is published at once, better only after the recovery hold-down. Pure.

The published state is the worst observation of the last ``hold_s`` seconds: the fewest lanes of each NVLink, every GPU
that was lost or missing, every degradation. The window is in seconds, not in passes, because driver events cause extra
passes exactly while a link flaps. All other facts (products, PCIe places) are those of the newest observation. A
flapping link is therefore published as down once, for as long as it flaps.

The history also keeps GPUs that worked in this boot and are missing now, and PCIe links that were slow: an idle GPU
lowers its link speed by itself, so only a pass while the GPU is under load can clear that degradation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from agent.daemon.gpu_name import stable_name
from gputopo.model import Degradation, Gpu, Health, Link, NodeTopology, Nvlink, PcieDistance, Uplink

_GPU_NAME = re.compile(r"gpu(\d+)")  # the GPUs in a Degradation.what: "gpu3.nvlink", "gpu2-gpu3"
_MISSING_REASON = "missing: it worked earlier in this boot, and the driver does not list it any more"
_RETURNED_REASON = "was missing, and returned more recently than the recovery hold-down"

NvlinkEdge = TypeVar("NvlinkEdge", Link, Uplink)
_Row = tuple[PcieDistance | None, ...]


class _TimedTopology(NamedTuple):
    """A distinct observation."""

    topology: NodeTopology
    missing: Mapping[str, Gpu]  # GPUs that worked earlier and are not listed, by key
    last_seen: float


class DampingHistory(NamedTuple):
    """The state between passes; ``DampingHistory()`` at the start."""

    observations: tuple[_TimedTopology, ...] = ()  # newest last
    known_gpus: Mapping[str, Gpu] = {}  # every GPU that worked in this boot, by key

    @property
    def newest(self) -> NodeTopology | None:
        """The last observation, with the facts of lost GPUs filled in; the ``before`` of the next discovery."""
        return self.observations[-1].topology if self.observations else None


def history_from_published(topology: NodeTopology) -> DampingHistory:
    """Return the history for an agent that restarts: the GPUs that the previous agent published in this boot."""
    return DampingHistory((), _usable_gpus(topology))


def record_observation(
    history: DampingHistory, topology: NodeTopology, now: float, hold_s: float, gpus_at_p0: frozenset[int]
) -> DampingHistory:
    """Add an observation. ``gpus_at_p0`` are the indices of GPUs whose PCIe link speed can be judged."""
    topology = _identify_lost_gpus(topology, history.known_gpus)
    if history.newest is not None:
        topology = _keep_distances(_keep_unjudged_pcie(topology, history.newest, gpus_at_p0), history.newest)
        topology = _keep_numa_memory(topology, history.newest)
    known = {
        name: gpu for name, gpu in history.known_gpus.items() if not _has_better_name(gpu, topology.usable)
    } | _usable_gpus(topology)
    here = {stable_name(gpu) for gpu in topology.gpus}
    missing = {name: gpu for name, gpu in known.items() if name not in here}
    kept = [each for each in history.observations if now - each.last_seen < hold_s and each.topology != topology]
    return DampingHistory((*kept, _TimedTopology(topology, missing, now)), known)


def damped_topology(history: DampingHistory) -> NodeTopology:
    """Return the newest observation with the worst health of the history. Raises IndexError without an observation."""
    newest, missing, _ = history.observations[-1]
    gpus = tuple(_with_worst_health(gpu, history.observations) for gpu in newest.gpus)
    views = [(each.topology, _index_map(each.topology, newest)) for each in history.observations]
    return msgspec.structs.replace(
        newest,
        gpus=gpus,
        nvlink=None if newest.nvlink is None else _without_lost_gpus(_worst_nvlink(newest.nvlink, views), gpus),
        degraded=tuple(
            sorted({*_worst_degradations(views), *_returned_gpus(gpus, history.observations), *_missing_gpus(missing)})
        ),
    )


def _usable_gpus(topology: NodeTopology) -> dict[str, Gpu]:
    return {stable_name(gpu): gpu for gpu in topology.usable}


def _has_better_name(known: Gpu, gpus: Iterable[Gpu]) -> bool:
    """Return whether a known GPU without UUID is one of these, which have one: it was read badly before."""
    if known.uuid is not None:
        return False
    same_place = (gpu.bus_id == known.bus_id if known.bus_id else gpu.index == known.index for gpu in gpus)
    return any(same and gpu.uuid is not None for same, gpu in zip(same_place, gpus, strict=True))


def _identify_lost_gpus(topology: NodeTopology, known_gpus: Mapping[str, Gpu]) -> NodeTopology:
    """Complete lost GPUs from the history: NVML does not report the UUID of a GPU that it cannot reach."""
    here = {stable_name(gpu) for gpu in topology.gpus if gpu.usable}
    absent = [gpu for name, gpu in known_gpus.items() if name not in here]

    def identified(gpu: Gpu) -> Gpu:
        if gpu.usable:
            return gpu
        at_its_place = (was for was in absent if gpu.bus_id is not None and was.bus_id == gpu.bus_id)
        of_its_index = (was for was in absent if gpu.bus_id is None and was.index == gpu.index)
        previous = next(at_its_place, None) or next(of_its_index, None)
        return gpu if previous is None else msgspec.structs.replace(previous, index=gpu.index, health=Health.LOST)

    return msgspec.structs.replace(topology, gpus=tuple(identified(gpu) for gpu in topology.gpus))


def _keep_unjudged_pcie(topology: NodeTopology, before: NodeTopology, gpus_at_p0: frozenset[int]) -> NodeTopology:
    """Carry over the slow PCIe links of GPUs that are idle now."""
    asleep = {f"gpu{gpu.index}.pcie" for gpu in topology.gpus if gpu.index not in gpus_at_p0}
    were = _reindex(before.degraded, _index_map(before, topology))
    carried = [each for each in were if each.what in asleep]
    return msgspec.structs.replace(topology, degraded=tuple(sorted({*topology.degraded, *carried})))


def _keep_distances(topology: NodeTopology, before: NodeTopology) -> NodeTopology:
    """Carry over the PCIe distances of lost GPUs, which NVML cannot report: the card has not moved."""
    previous = {stable_name(gpu): place for place, gpu in enumerate(before.gpus)}
    places = [previous.get(stable_name(gpu)) for gpu in topology.gpus]

    def completed(row: _Row, old: _Row | None) -> _Row:
        if not old:
            return row
        pairs = zip(row, places, strict=True)
        return tuple(now if now is not None or place is None else old[place] for now, place in pairs)

    rows = [before.pcie[place] if before.pcie and place is not None else None for place in places]
    nics = {nic.name: nic.distances for nic in before.nics}
    return msgspec.structs.replace(
        topology,
        pcie=tuple(completed(row, old) for row, old in zip(topology.pcie, rows, strict=False)),
        nics=tuple(
            msgspec.structs.replace(nic, distances=completed(nic.distances, nics.get(nic.name)))
            for nic in topology.nics
        ),
    )


def _keep_numa_memory(topology: NodeTopology, before: NodeTopology) -> NodeTopology:
    """Keep the memory of NUMA nodes as the first pass saw it.

    A virtual machine may get memory as it uses it. Each new value would be a change of the Node, after which schedulers
    try all waiting pods again.
    """
    known = {each.id: each.memory_mib for each in before.numa_nodes if each.memory_mib is not None}
    nodes = (msgspec.structs.replace(n, memory_mib=known.get(n.id, n.memory_mib)) for n in topology.numa_nodes)
    return msgspec.structs.replace(topology, numa_nodes=tuple(nodes))


def _index_map(old: NodeTopology, new: NodeTopology) -> dict[int, int]:
    """Map an index of the older observation to the index of the same GPU in the newer one."""
    index = {stable_name(gpu): gpu.index for gpu in new.gpus}
    return {gpu.index: index[stable_name(gpu)] for gpu in old.gpus if stable_name(gpu) in index}


def _reindex(degraded: Iterable[Degradation], to: Mapping[int, int]) -> list[Degradation]:
    """Degradations with the newer indices, without those of GPUs that are not listed any more."""
    return [
        Degradation(_GPU_NAME.sub(lambda name: f"gpu{to[int(name[1])]}", each.what), each.why)
        for each in degraded
        if all(int(index) in to for index in _GPU_NAME.findall(each.what))
    ]


def _with_worst_health(gpu: Gpu, observations: Iterable[_TimedTopology]) -> Gpu:
    """Mark a GPU as lost if it was lost or missing in any observation of the history."""
    name = stable_name(gpu)
    was_lost = any(
        name in each.missing or any(stable_name(was) == name and not was.usable for was in each.topology.gpus)
        for each in observations
    )
    return msgspec.structs.replace(gpu, health=Health.LOST) if was_lost else gpu


def _returned_gpus(gpus: Iterable[Gpu], observations: Iterable[_TimedTopology]) -> list[Degradation]:
    were_gone = {name for each in observations for name in each.missing}
    return [Degradation(f"gpu{gpu.index}", _RETURNED_REASON) for gpu in gpus if stable_name(gpu) in were_gone]


def _missing_gpus(missing: Mapping[str, Gpu]) -> list[Degradation]:
    return [Degradation(name, _MISSING_REASON) for name in missing]


def _without_lost_gpus(nvlink: Nvlink, gpus: Iterable[Gpu]) -> Nvlink:
    """Drop the edges of lost GPUs: NVML reports none for them, so a GPU in hold-down has none either."""
    usable = {gpu.index for gpu in gpus if gpu.usable}
    links = (link for link in nvlink.links if link.a in usable and link.b in usable)
    unknown = (pair for pair in nvlink.unknown if usable.issuperset(pair))
    return Nvlink(tuple(links), tuple(up for up in nvlink.uplinks if up.gpu in usable), tuple(unknown))


def _worst_nvlink(newest: Nvlink, views: list[tuple[NodeTopology, dict[int, int]]]) -> Nvlink:
    links = {(link.a, link.b): link for link in newest.links}
    uplinks = {up.gpu: up for up in newest.uplinks}
    for topology, to in views:
        older = topology.nvlink or Nvlink()
        for link in older.links:
            if link.a in to and link.b in to and (now := links.get(_ordered_pair(to[link.a], to[link.b]))):
                links[now.a, now.b] = _worst_link(now, link)
        for up in older.uplinks:
            if up.gpu in to and (there := uplinks.get(to[up.gpu])):
                uplinks[there.gpu] = _fewer_lanes(there, up)
    return Nvlink(tuple(links.values()), tuple(uplinks.values()), newest.unknown)


def _ordered_pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _worst_link(link: Link, other: Link) -> Link:
    """Return the link with the fewer lanes; one-sided if it was in one of the observations."""
    worst = _fewer_lanes(link, other)
    return msgspec.structs.replace(worst, one_sided=True) if other.one_sided else worst


def _fewer_lanes(edge: NvlinkEdge, other: NvlinkEdge) -> NvlinkEdge:
    """The edge with the fewer lanes, expecting the lanes of the better observation."""
    if other.lanes >= edge.lanes:
        return edge
    expected = max(edge.lanes, edge.expected_lanes or 0, other.expected_lanes or 0)
    return msgspec.structs.replace(edge, lanes=other.lanes, gbps=other.gbps, expected_lanes=expected)


def _worst_degradations(views: list[tuple[NodeTopology, dict[int, int]]]) -> Iterable[Degradation]:
    """The worst text of each degradation: "10 of 12 NVLinks active" rather than "11 of 12"."""
    worst: dict[tuple[str, str], Degradation] = {}
    for topology, to in views:
        for each in _reindex(topology.degraded, to):
            kind = (each.what, re.sub(r"\d+", "#", each.why))
            worst[kind] = min(
                worst.get(kind, each), each, key=lambda one: [int(n) for n in re.findall(r"\d+", one.why)]
            )
    return worst.values()
