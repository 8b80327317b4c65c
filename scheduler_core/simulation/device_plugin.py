"""Which GPUs a node hands out: one of all outcomes that NVIDIA's device plugin may come to, by lot.

``prediction`` knows the outcomes; which of them comes depends on the random order in which the kubelet offers the GPUs.
"""

from __future__ import annotations

from random import Random

from scheduler_core.allocation.device_plugin import predict
from scheduler_core.allocation.gpu_sets import AnyOf, OneOf, bits
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.request.device_request import Step


def handed_out(shape: Shape, free: int, size: int, random: Random) -> int:
    """A set of so many of the free GPUs. There are enough."""
    found = predict(shape, OneOf((free,)), (Step(size),)).sets
    if isinstance(found, AnyOf):
        return sum(random.sample(bits(found.among), size))
    # Where only a padded set can win the plugin crashes; its pod gets what is there once it runs again.
    return random.choice(found.masks) if found.masks else sum(random.sample(bits(free), size))
