"""Which GPUs a node hands out: one of all outcomes that NVIDIA's device plugin may come to, by lot.

``prediction`` knows the outcomes; which of them comes depends on the random order in which the kubelet offers the GPUs.
"""

from __future__ import annotations

from random import Random

from scheduler_core.allocation.device_plugin import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, single_bits
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.request.device_request import ContainerStep


def draw_gpus(shape: MachineShape, free: int, size: int, random: Random) -> int:
    """A set of so many of the free GPUs. There are enough."""
    found = predict_sets(shape, ExactSets((free,)), (ContainerStep(size),)).sets
    if isinstance(found, SomeSet):
        return sum(random.sample(single_bits(found.among), size))
    # Where only a padded set can win the plugin crashes; its pod gets what is there once it runs again.
    return random.choice(found.masks) if found.masks else sum(random.sample(single_bits(free), size))
