"""Facts of GPUs that no source has: one problem for each, with the source that would have it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from agent.discover.failed_calls import failed_nvml_calls
from agent.discover.parsed import ParsedSources
from agent.discover.products import is_superchip
from gputopo.model import FabricState, Gpu, Problem, ProblemKind
from gputopo.nvlink import Nvlink

# Field of Gpu -> its name in the public JSON, and the source that has it.
_FACTS = {
    "product": ("product", "`nvidia-smi -L` shows it"),
    "memory_mib": ("memoryMiB", "`nvidia-smi -q` shows it"),
    "numa_node": ("numaNode", "/sys/bus/pci/devices/*/numa_node shows it, except in most virtual machines"),
}


def unknown_facts(sources: ParsedSources, gpus: tuple[Gpu, ...], nvlink: Nvlink | None) -> Iterator[Problem]:
    """Yield a problem for each fact that is missing for some GPU."""
    source_names = ", ".join(_source_names(sources))
    for field, (name, hint) in _FACTS.items():
        without = [str(gpu.index) for gpu in gpus if gpu.usable and getattr(gpu, field) is None]
        which = "" if len(without) == len(gpus) else f" for GPU {', '.join(without)}"
        if without:
            if hint in {f"`nvidia-smi {command}` shows it" for command in sources.snapshot.smi or {}}:
                hint = "its output may be cut: print all of it"  # noqa: PLW2901  the command was given
            yield Problem(f"gpus.{name}", ProblemKind.UNKNOWN, f"not shown by {source_names}{which}; {hint}")
    edges = () if nvlink is None else (*nvlink.links, *nvlink.uplinks)
    if any(each.lanes and each.gbps is None for each in edges) and "nvlink -s" not in (sources.snapshot.smi or {}):
        why = f"the bandwidth is not shown by {source_names}; `nvidia-smi nvlink -s` shows it"
        yield Problem("nvlink", ProblemKind.UNKNOWN, why)
    without = [str(gpu.index) for gpu in gpus if gpu.usable and gpu.c2c is None and is_superchip(gpu.product)]
    if without:
        which = "" if len(without) == len(gpus) else f" for GPU {', '.join(without)}"
        nvml = "NVML (`gputopo record`) or " if sources.nvml is None else ""
        hint = f"{nvml}an NCCL topology XML file may show them"
        why = f"the NVLink-C2C links to the CPU are not shown by {source_names}{which}; {hint}"
        yield Problem("gpus.c2c", ProblemKind.UNKNOWN, why)
    if sources.nvml is not None:
        for call, errors in failed_nvml_calls(sources.nvml).items():
            yield Problem("nvml", ProblemKind.UNKNOWN, f"{call} fails: {errors}")
    yield from _fabric_conflicts(gpus)
    yield from _open_registrations(gpus)


def _open_registrations(gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    """Yield a problem for each state of a registration with Fabric Manager that is not complete, as at boot."""
    for state in (FabricState.NOT_STARTED, FabricState.IN_PROGRESS):
        fabrics = ((gpu.index, gpu.fabric) for gpu in gpus if gpu.usable)
        waiting = [str(index) for index, fabric in fabrics if fabric is not None and fabric.state is state]
        if waiting:
            which = f"the registration of GPU {', '.join(waiting)} is {state.value}"
            why = f"{which}: CUDA cannot use NVLink until it completes; if this lasts, check nvidia-fabricmanager"
            yield Problem("fabric", ProblemKind.UNKNOWN, why)


def _fabric_conflicts(gpus: tuple[Gpu, ...]) -> Iterator[Problem]:
    """Yield a problem if only some usable GPUs are registered in a multi-node NVLink domain, or in different ones."""
    domains = {gpu.index: None if gpu.fabric is None else gpu.fabric.domain for gpu in gpus if gpu.usable}
    if len(set(domains.values())) > 1:
        known = next(domain for domain in domains.values() if domain is not None)
        others = ", ".join(str(index) for index, domain in domains.items() if domain != known)
        why = f"GPU {others} is not in the domain {known[0]}.{known[1]} of the other GPUs; no domain is published"
        yield Problem("fabric", ProblemKind.CONFLICT, why)


def _source_names(sources: ParsedSources) -> Iterator[str]:
    if sources.nvml is not None:
        yield "NVML"
    for command in sources.snapshot.smi or {}:
        yield f"nvidia-smi {command}"
    if sources.snapshot.sysfs is not None:
        yield "sysfs"
    if sources.snapshot.nccl is not None:
        yield "the NCCL topology"
    if sources.snapshot.lstopo is not None:
        yield "hwloc"
