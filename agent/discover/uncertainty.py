"""Facts that damaged or contradictory inputs leave open. Pure.

NVML's list of GPUs is complete by itself. Of printed texts and files it must be shown that nothing is missing: indices
without gaps, as many GPUs as the driver says, and the same GPUs in every source.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.discover.inventory import InventoryEntry
from agent.discover.parsed import ParsedSources
from agent.discover.precedence import SourcePrecedence
from gputopo.model import FactGroup, ProblemKind


def uncertain_facts(
    sources: ParsedSources, inventory: tuple[InventoryEntry, ...], precedence: SourcePrecedence
) -> tuple[FactGroup, ...]:
    """Return the uncertain facts; add a problem for each reason that no parser has reported."""
    if sources.nvml is not None:
        missing = (sources.nvml.device_count or 0) - len(sources.nvml.gpus)
        if missing > 0:
            why = f"NVML counts {sources.nvml.device_count} GPUs, and the recording has {len(sources.nvml.gpus)}"
            precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
        return (FactGroup.GPUS,) if missing > 0 else ()
    found = set(sources.topo.uncertain if sources.topo else ())
    for why in _doubts_about_gpus(sources, inventory):
        precedence.add_problem("gpus", ProblemKind.INCOMPLETE, why)
        found.add(FactGroup.GPUS)
    if sources.nccl is not None and any(problem.what.startswith("lstopo") for problem in sources.nccl.problems):
        found.add(FactGroup.NUMA)
    return tuple(group for group in FactGroup if group in found)


def _doubts_about_gpus(sources: ParsedSources, inventory: tuple[InventoryEntry, ...]) -> Iterator[str]:
    indices = {entry.index for entry in inventory}
    skipped = sorted(set(range(max(indices, default=-1))) - indices)
    if skipped and sources.topo is None:  # the parser of the matrix reports them itself
        yield f"GPU {', '.join(map(str, skipped))} is not in the input, though higher indices are"
    if sources.query is not None and sources.query.attached not in (None, len(sources.query.gpus)):
        described = len(sources.query.gpus)
        yield f"the driver has {sources.query.attached} GPUs, and {described} are described (`nvidia-smi -i`?)"
    listed = {
        "topo -m": {gpu.index for gpu in sources.topo.gpus} if sources.topo else None,
        "-L": {gpu.index for gpu in sources.listing.gpus} if sources.listing else None,
        "nvlink -s": {each.gpu.index for each in sources.link_status} if sources.link_status else None,
    }
    for command, found in listed.items():
        if found is not None and found != indices:
            other = f"nvidia-smi {command} has GPU {', '.join(map(str, sorted(found)))}"
            yield f"{other}, the other sources have GPU {', '.join(map(str, sorted(indices)))}"
