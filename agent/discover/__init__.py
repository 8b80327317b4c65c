"""Discovery: snapshot in, NodeTopology out. Pure and deterministic, for live machines, recordings and pasted text.

``parsed`` parses each source, ``inventory`` lists the GPUs, ``gpus``, ``links`` and ``locality`` take each fact from
the first source that has it (``precedence`` records contradictions), ``nvlink`` joins the ports of both ends, and
``health`` finds degradations.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent.discover.boards import expect_board_lanes
from agent.discover.early_warning import find_early_warnings
from agent.discover.gaps import unknown_facts
from agent.discover.gpus import build_gpu, nodes_with_cpus
from agent.discover.health import add_expected_lanes, find_degradations
from agent.discover.inventory import InventoryEntry, build_inventory, hidden_cards, unpermitted_gpus
from agent.discover.links import collect_nvlinks, compare_with_topo
from agent.discover.locality import build_pcie_matrix, find_nics, find_numa_nodes
from agent.discover.nvlink import build_nvlink_graph
from agent.discover.parsed import ParsedSources, parse_sources
from agent.discover.precedence import SourcePrecedence
from agent.discover.query_faults import find_query_faults, find_undescribed_gpus, queried_at_p0
from agent.discover.uncertainty import may_hide_links, uncertain_facts
from agent.snapshot import Host, Snapshot
from gputopo.model import Degradation, FactGroup, NodeTopology, ProblemKind

__all__ = ["discover"]


def discover(snapshot: Snapshot, before: NodeTopology | None = None) -> NodeTopology:
    """Return the topology that the sources describe together.

    ``before`` is the last topology of the same machine, if any: a link that it had and that is missing now is degraded.
    Raises ``ModelError`` where the facts cannot describe a machine: more GPUs than the maximum, a negative size.
    """
    precedence = SourcePrecedence()
    sources = parse_sources(snapshot, precedence)
    all_boards = build_inventory(sources)
    inventory = tuple(each for each in all_boards if not each.drives_display)
    nodes = find_numa_nodes(sources)
    gpus = tuple(build_gpu(each, nodes_with_cpus(nodes), precedence) for each in inventory)
    ports, peers, unknown_pairs = collect_nvlinks(sources, inventory, gpus, precedence)
    known_gpus = tuple(each for each in gpus if each.index in ports)
    nvlink = build_nvlink_graph(ports, peers, unknown_pairs) if ports or not gpus else None
    if nvlink is not None:
        nvlink = expect_board_lanes(add_expected_lanes(nvlink, known_gpus, before), known_gpus, ports)
        compare_with_topo(sources, nvlink, precedence)
    uncertain = uncertain_facts(sources, gpus, ports, precedence)
    if nvlink is not None and not (nvlink.links or nvlink.uplinks) and may_hide_links(sources, gpus):
        nvlink = None  # no link is shown, and none may be assumed
    certain_links = None if {FactGroup.NVLINK, FactGroup.PRODUCTS}.intersection(uncertain) else nvlink
    host = snapshot.host
    gpus_at_p0 = sources.nvml.gpus_at_p0 if sources.nvml else queried_at_p0(inventory)
    return NodeTopology(
        gpus=gpus,
        nvlink=nvlink,
        pcie=build_pcie_matrix(sources, inventory, precedence),
        nics=find_nics(sources, inventory),
        numa_nodes=nodes,
        machine=sources.sysfs.machine,
        driver_version=_driver_version(sources),
        cuda_version=_cuda_version(sources),
        boot_id=None if host is None else host.boot_id,
        partial=_is_partial(
            sources, all_boards, ports_hidden=any(each.hidden for each in ports.values()), precedence=precedence
        ),
        degraded=tuple(
            sorted(
                [
                    *find_degradations(
                        gpus, certain_links, ports, gpus_at_p0=gpus_at_p0, bare_metal=_is_bare_metal(host)
                    ),
                    *_early_warnings(sources),
                    *find_query_faults(inventory),
                    *(find_undescribed_gpus(sources.query) if sources.query and not sources.listing else ()),
                ]
            )
        ),
        problems=(
            *precedence.problems,
            *(sources.topo.problems if sources.topo else ()),
            *(sources.nccl.problems if sources.nccl else ()),
            *unknown_facts(sources, gpus, nvlink),
        ),
        uncertain=uncertain,
    )


def _early_warnings(sources: ParsedSources) -> Iterable[Degradation]:
    return find_early_warnings(sources.nvml) if sources.nvml else ()


def _is_bare_metal(host: Host | None) -> bool:
    """Return whether the machine was examined and is not virtual."""
    return host is not None and host.kernel is not None and host.virtualization is None


def _driver_version(sources: ParsedSources) -> str | None:
    nvml = sources.nvml.driver_version if sources.nvml else None
    return nvml or (sources.query.driver_version if sources.query else None)


def _cuda_version(sources: ParsedSources) -> str | None:
    """NVML writes 13.0 as 13000."""
    if sources.nvml is not None and sources.nvml.cuda_version is not None:
        major, rest = divmod(sources.nvml.cuda_version, 1000)
        return f"{major}.{rest // 10}"
    return sources.query.cuda_version if sources.query else None


def _is_partial(
    sources: ParsedSources, all_boards: tuple[InventoryEntry, ...], ports_hidden: bool, precedence: SourcePrecedence
) -> bool:
    """Return whether some GPUs of the machine are not visible here, and record why."""
    cards = hidden_cards(sources, all_boards) if all_boards else ()
    gaps = [each.index for each in all_boards] != list(range(len(all_boards)))
    if cards:
        why = f"{len(cards)} cards on the bus are not visible to the driver here ({', '.join(cards)})"
        precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
    others = unpermitted_gpus(sources)
    if others:
        why = f"GPU {', '.join(map(str, others))} may not be opened by this process (NO_PERMISSION)"
        precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
    if ports_hidden:
        precedence.add_problem("gpus", ProblemKind.INCOMPLETE, "NVLinks lead to GPUs that are not visible here")
    return bool(cards or gaps or others or ports_hidden)
