"""Reads what determines the kubelet's choices: its configuration files, and what it may allocate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from agent.allocation.client import PodResourcesClient, PodResourcesError
from agent.allocation.kubelet_config import KubeletConfig, KubeletConfigError, read_kubelet_config
from agent.allocation.wire import AllocatableResources, PinnedResources
from agent.sources.kernel_list import parse_numbers

if TYPE_CHECKING:
    from agent.allocation.node_resource_topology import NodeResourceTopologyReader

MAX_CPUS_PER_CORE = 64


class KubeletReading(NamedTuple):
    """One reading of the kubelet. None: unknown."""

    config: KubeletConfig | None = None
    config_error: str | None = None
    allocatable: AllocatableResources | None = None
    held: PinnedResources | None = None  # exclusively, by containers
    cpus_per_core: int | None = None


def read_kubelet(
    client: PodResourcesClient,
    paths: Sequence[Path],
    sysfs: Path = Path("/sys"),
    published: NodeResourceTopologyReader | None = None,
) -> KubeletReading:
    """Read the configuration files and call the kubelet. A failure of one does not affect the other.

    ``published``: read where the files are not known.
    """
    config, error, allocatable, held = None, None, None, None
    try:
        config = read_kubelet_config(paths) if paths else None
    except KubeletConfigError as failed:
        error = str(failed)
    if config is None and published is not None:
        config, unpublished = published.read_policy()
        error = "; ".join(each for each in (error, unpublished) if each) or None
    try:
        allocatable = client.read_allocatable()
        held = client.list_pinned() if allocatable.pinned != PinnedResources() else PinnedResources()
    except PodResourcesError:  # before Kubernetes 1.23; a kubelet that is away is reported by the list of pods
        allocatable = held = None
    return KubeletReading(config, error, allocatable, held, _cpus_per_core(sysfs))


def _cpus_per_core(sysfs: Path) -> int | None:
    """Return the hardware threads of CPU 0's core: the kubelet, too, expects equal cores."""
    try:
        siblings = (sysfs / "devices/system/cpu/cpu0/topology/thread_siblings_list").read_text("ascii")
    except (OSError, ValueError):
        return None
    return min(len(parse_numbers(siblings.strip())), MAX_CPUS_PER_CORE) or None
