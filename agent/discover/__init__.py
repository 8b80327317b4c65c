"""Snapshot -> NodeTopology: pure, deterministic, and the same for a live machine, a recording and a paste.

``heard`` parses each source, ``sightings`` says which GPUs there are, ``gpus``, ``links`` and ``locality`` believe the
sources in a stated order (``witnesses`` records what they disagree about), ``nvlink`` joins the ports of both ends and
``health`` judges.
"""

from __future__ import annotations

from agent.discover.gaps import unknown
from agent.discover.gpus import cpu_nodes, gpu
from agent.discover.health import degradations, with_expectations
from agent.discover.inventory import Sighting, forbidden, hidden, sightings
from agent.discover.links import compare, told
from agent.discover.locality import nics, numa_nodes, pcie_matrix
from agent.discover.nvlink import graph
from agent.discover.parsed import Heard, hear
from agent.discover.precedence import Witnesses
from agent.snapshot import Snapshot
from gputopo.model import NodeTopology, ProblemKind

__all__ = ["discover"]


def discover(snapshot: Snapshot, before: NodeTopology | None = None) -> NodeTopology:
    """What the sources together say of the machine.

    ``before`` is the last topology of the same machine, where there is one: a link that it had and that is gone now is
    degraded rather than never there. Raises ``ModelError`` where what they say can be no machine: more GPUs than one
    holds, a negative size.
    """
    witnesses = Witnesses()
    heard = hear(snapshot, witnesses)
    boards = sightings(heard)
    seen = tuple(each for each in boards if not each.display)
    nodes = numa_nodes(heard)
    gpus = tuple(gpu(each, cpu_nodes(nodes), witnesses) for each in seen)
    ports, peers, unread = told(heard, seen, gpus, witnesses)
    known = tuple(each for each in gpus if each.index in ports)
    nvlink = with_expectations(graph(ports, peers, unread), known, before) if ports or not gpus else None
    if nvlink is not None:
        compare(heard, nvlink, witnesses)
    host = snapshot.host
    return NodeTopology(
        gpus=gpus,
        nvlink=nvlink,
        pcie=pcie_matrix(heard, seen, witnesses),
        nics=nics(heard, seen),
        numa_nodes=nodes,
        machine=heard.bus.machine,
        driver_version=_driver(heard),
        cuda_version=_cuda(heard),
        boot_id=None if host is None else host.boot_id,
        partial=_partial(heard, boards, ports_hidden=any(each.hidden for each in ports.values()), witnesses=witnesses),
        degraded=tuple(degradations(gpus, nvlink, ports, awake=heard.nvml.awake if heard.nvml else frozenset())),
        problems=(*witnesses.problems, *(heard.topo.problems if heard.topo else ()), *unknown(heard, gpus)),
    )


def _driver(heard: Heard) -> str | None:
    nvml = heard.nvml.driver_version if heard.nvml else None
    return nvml or (heard.query.driver_version if heard.query else None)


def _cuda(heard: Heard) -> str | None:
    """NVML writes 13.0 as 13000."""
    if heard.nvml is not None and heard.nvml.cuda_version is not None:
        major, rest = divmod(heard.nvml.cuda_version, 1000)
        return f"{major}.{rest // 10}"
    return heard.query.cuda_version if heard.query else None


def _partial(heard: Heard, boards: tuple[Sighting, ...], ports_hidden: bool, witnesses: Witnesses) -> bool:
    """Whether some GPUs of the machine are not visible here."""
    cards = hidden(heard, boards) if boards else ()
    gaps = [each.index for each in boards] != list(range(len(boards)))
    if cards:
        why = f"{len(cards)} cards on the bus are not visible to the driver here ({', '.join(cards)})"
        witnesses.note("gpus", ProblemKind.INCOMPLETE, why)
    others = forbidden(heard)
    if others:
        why = f"GPU {', '.join(map(str, others))} may not be opened by this process (NO_PERMISSION)"
        witnesses.note("gpus", ProblemKind.INCOMPLETE, why)
    if ports_hidden:
        witnesses.note("gpus", ProblemKind.INCOMPLETE, "NVLinks lead to GPUs that are not visible here")
    return bool(cards or gaps or others or ports_hidden)
