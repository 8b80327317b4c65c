"""Health that does not flap: worse at once, better only after it stayed better for a while. Pure; time is an argument.

Published is the worst of what was seen within the last ``hold_s`` seconds: the fewest lanes of each NVLink, a GPU that
was lost or gone, everything that was degraded. Seconds and not passes, because events make extra passes just when
something flaps. Everything else (what the GPUs are, where they hang) is as seen last. So a link that comes and goes is
published as down, once, for as long as it does so.

Also remembered are GPUs that were here and are gone (of the same boot), and PCIe links that were found slow: an idle
GPU lowers its link by itself, so that only the next look at it under load can say that it is well again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from gputopo.model import Degradation, Gpu, Health, Link, NodeTopology, Nvlink, PcieDistance, Uplink

_GPU_NAME = re.compile(r"gpu(\d+)")  # "gpu3.nvlink", "gpu2-gpu3": how Degradation.what names GPUs
_GONE = "gone: it was here since this machine booted and is on no list any more"
_BACK = "gone for a while, and back too short a time to be relied on"

Edge = TypeVar("Edge", Link, Uplink)
_Row = tuple[PcieDistance | None, ...]


class _Seen(NamedTuple):
    """A distinct observation."""

    topology: NodeTopology
    missing: Mapping[str, Gpu]  # GPUs that were here before, by name
    last: float  # when it was seen last


class Held(NamedTuple):
    """What is remembered between passes; ``Held()`` at the start."""

    seen: tuple[_Seen, ...] = ()  # newest last
    known: Mapping[str, Gpu] = {}  # every GPU that ever worked here, by name

    @property
    def newest(self) -> NodeTopology | None:
        """The last observation, with what is remembered of lost GPUs; the ``before`` of the next discovery."""
        return self.seen[-1].topology if self.seen else None


def recalled(topology: NodeTopology) -> Held:
    """The memory of an agent that ran before in this boot, out of what it published."""
    return Held((), _working(topology))


def update(held: Held, topology: NodeTopology, now: float, hold_s: float, awake: frozenset[int]) -> Held:
    """Remember an observation. ``awake`` are the indices of GPUs whose PCIe link could be judged."""
    topology = _identified(topology, held.known)
    if held.newest is not None:
        topology = _with_distances(_with_unjudged(topology, held.newest, awake), held.newest)
    here = {_name(gpu) for gpu in topology.gpus}
    missing = {name: gpu for name, gpu in held.known.items() if name not in here}
    kept = [each for each in held.seen if now - each.last < hold_s and each.topology != topology]
    return Held((*kept, _Seen(topology, missing, now)), {**held.known, **_working(topology)})


def published(held: Held) -> NodeTopology:
    """The worst of what is remembered, over the newest. Raises IndexError before the first observation."""
    newest, missing, _ = held.seen[-1]
    gpus = tuple(_worst_gpu(gpu, held.seen) for gpu in newest.gpus)
    views = [(each.topology, _renaming(each.topology, newest)) for each in held.seen]
    return msgspec.structs.replace(
        newest,
        gpus=gpus,
        nvlink=None if newest.nvlink is None else _between_usable(_worst_nvlink(newest.nvlink, views), gpus),
        degraded=tuple(sorted({*_worst_degradations(views), *_back(gpus, held.seen), *_gone(missing)})),
    )


def _name(gpu: Gpu) -> str:
    """Who a GPU is. The index is the last resort: it moves when another card is lost."""
    return gpu.uuid or gpu.bus_id or f"gpu{gpu.index}"


def _working(topology: NodeTopology) -> dict[str, Gpu]:
    return {_name(gpu): gpu for gpu in topology.usable}


def _identified(topology: NodeTopology, known: Mapping[str, Gpu]) -> NodeTopology:
    """Lost GPUs with what is known of them: NVML does not even tell which one it cannot talk to."""
    here = {_name(gpu) for gpu in topology.gpus if gpu.usable}
    absent = [gpu for name, gpu in known.items() if name not in here]

    def identified(gpu: Gpu) -> Gpu:
        if gpu.usable:
            return gpu
        at_its_place = (was for was in absent if gpu.bus_id is not None and was.bus_id == gpu.bus_id)
        of_its_index = (was for was in absent if gpu.bus_id is None and was.index == gpu.index)
        was = next(at_its_place, None) or next(of_its_index, None)
        return gpu if was is None else msgspec.structs.replace(was, index=gpu.index, health=Health.LOST)

    return msgspec.structs.replace(topology, gpus=tuple(identified(gpu) for gpu in topology.gpus))


def _with_unjudged(topology: NodeTopology, before: NodeTopology, awake: frozenset[int]) -> NodeTopology:
    """With the slow PCIe links of before whose GPUs are asleep now."""
    asleep = {f"gpu{gpu.index}.pcie" for gpu in topology.gpus if gpu.index not in awake}
    were = _renamed(before.degraded, _renaming(before, topology))
    carried = [each for each in were if each.what in asleep]
    return msgspec.structs.replace(topology, degraded=tuple(sorted({*topology.degraded, *carried})))


def _with_distances(topology: NodeTopology, before: NodeTopology) -> NodeTopology:
    """With the PCIe distances that a lost GPU cannot be asked for: it has not moved."""
    was = {_name(gpu): place for place, gpu in enumerate(before.gpus)}
    places = [was.get(_name(gpu)) for gpu in topology.gpus]

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


def _renaming(old: NodeTopology, new: NodeTopology) -> dict[int, int]:
    """Index in an older observation -> index of the same GPU in a newer one."""
    index = {_name(gpu): gpu.index for gpu in new.gpus}
    return {gpu.index: index[_name(gpu)] for gpu in old.gpus if _name(gpu) in index}


def _renamed(degraded: Iterable[Degradation], to: Mapping[int, int]) -> list[Degradation]:
    """Degradations by the newer indices; those of GPUs that are no more are left out."""
    return [
        Degradation(_GPU_NAME.sub(lambda name: f"gpu{to[int(name[1])]}", each.what), each.why)
        for each in degraded
        if all(int(index) in to for index in _GPU_NAME.findall(each.what))
    ]


def _worst_gpu(gpu: Gpu, seen: Iterable[_Seen]) -> Gpu:
    """Lost if it was lost, or away, in any observation that is remembered."""
    name = _name(gpu)
    was_lost = any(
        name in each.missing or any(_name(was) == name and not was.usable for was in each.topology.gpus)
        for each in seen
    )
    return msgspec.structs.replace(gpu, health=Health.LOST) if was_lost else gpu


def _back(gpus: Iterable[Gpu], seen: Iterable[_Seen]) -> list[Degradation]:
    were_gone = {name for each in seen for name in each.missing}
    return [Degradation(f"gpu{gpu.index}", _BACK) for gpu in gpus if _name(gpu) in were_gone]


def _gone(missing: Mapping[str, Gpu]) -> list[Degradation]:
    return [Degradation(name, _GONE) for name in missing]


def _between_usable(nvlink: Nvlink, gpus: Iterable[Gpu]) -> Nvlink:
    """Without the edges of lost GPUs: such a GPU tells none, so that one on probation must not show any either."""
    usable = {gpu.index for gpu in gpus if gpu.usable}
    links = (link for link in nvlink.links if link.a in usable and link.b in usable)
    unknown = (pair for pair in nvlink.unknown if usable.issuperset(pair))
    return Nvlink(tuple(links), tuple(up for up in nvlink.uplinks if up.gpu in usable), tuple(unknown))


def _worst_nvlink(newest: Nvlink, views: list[tuple[NodeTopology, dict[int, int]]]) -> Nvlink:
    links = {(link.a, link.b): link for link in newest.links}
    uplinks = {up.gpu: up for up in newest.uplinks}
    for topology, to in views:
        seen = topology.nvlink or Nvlink()
        for link in seen.links:
            if link.a in to and link.b in to and (now := links.get(_pair(to[link.a], to[link.b]))):
                links[now.a, now.b] = _worse(now, link)
        for up in seen.uplinks:
            if up.gpu in to and (there := uplinks.get(to[up.gpu])):
                uplinks[there.gpu] = _worse(there, up)
    return Nvlink(tuple(links.values()), tuple(uplinks.values()), newest.unknown)


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _worse(edge: Edge, other: Edge) -> Edge:
    """The edge with the lanes of whichever has fewer, and with what the better one shows that it should have."""
    if other.lanes >= edge.lanes:
        return edge
    expected = max(edge.lanes, edge.expected_lanes or 0, other.expected_lanes or 0)
    return msgspec.structs.replace(edge, lanes=other.lanes, gbps=other.gbps, expected_lanes=expected)


def _worst_degradations(views: list[tuple[NodeTopology, dict[int, int]]]) -> Iterable[Degradation]:
    """Of everything that was degraded the worst wording: "10 of 12 NVLinks active" rather than "11 of 12"."""
    worst: dict[tuple[str, str], Degradation] = {}
    for topology, to in views:
        for each in _renamed(topology.degraded, to):
            kind = (each.what, re.sub(r"\d+", "#", each.why))
            worst[kind] = min(
                worst.get(kind, each), each, key=lambda one: [int(n) for n in re.findall(r"\d+", one.why)]
            )
    return worst.values()
