"""The GPUs that a simulated node allocates: a random outcome of NVIDIA's device plugin.

``allocation.device_plugin`` predicts the outcomes; the kubelet offers the GPUs in random order, which decides.
"""

from __future__ import annotations

from random import Random

from scheduler_core.allocation.admission import predict_sets
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, single_bits
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.request.device_request import ContainerStep


def draw_gpus(shape: MachineShape, free: int, size: int, random: Random) -> int:
    """Return a set of ``size`` free GPUs. There must be enough."""
    found = predict_sets(shape, ExactSets((free,)), (ContainerStep(size),)).sets
    if isinstance(found, SomeSet):
        return sum(random.sample(single_bits(found.among), size))
    # If only a padded set can win, the plugin crashes; after its restart, the pod gets any free GPUs.
    return random.choice(found.masks) if found.masks else sum(random.sample(single_bits(free), size))
