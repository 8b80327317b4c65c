"""Reads what determines the kubelet's choices: its configuration files, and what it may allocate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agent.allocation.client import PodResourcesClient, PodResourcesError
from agent.allocation.kubelet_config import KubeletConfig, KubeletConfigError, read_kubelet_config
from agent.allocation.wire import AllocatableResources, PinnedResources


class KubeletReading(NamedTuple):
    """One reading of the kubelet. None: unknown."""

    config: KubeletConfig | None = None
    config_error: str | None = None
    allocatable: AllocatableResources | None = None
    held: PinnedResources | None = None  # exclusively, by containers


def read_kubelet(client: PodResourcesClient, paths: Sequence[Path]) -> KubeletReading:
    """Read the configuration files and call the kubelet. A failure of one does not affect the other."""
    config, error, allocatable, held = None, None, None, None
    try:
        config = read_kubelet_config(paths) if paths else None
    except KubeletConfigError as failed:
        error = str(failed)
    try:
        allocatable = client.read_allocatable()
        held = client.list_pinned() if allocatable.pinned != PinnedResources() else PinnedResources()
    except PodResourcesError:  # before Kubernetes 1.23; a kubelet that is away is reported by the list of pods
        allocatable = held = None
    return KubeletReading(config, error, allocatable, held)
