"""Choices of GPUs by a device plugin."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulated_node.kubelet import Device


def alternating(available: Sequence[Device], _: Sequence[Device], size: int) -> Sequence[Device]:
    """A device plugin that takes GPUs from the two halves of a machine in turn."""
    return sorted(available, key=lambda device: (device.gpu % 4, device.gpu))[:size]
