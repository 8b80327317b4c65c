"""Extended resources for GPUs. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

VENDOR = "nvidia.com/"
# "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared": the names
# that NVIDIA's device plugin gives to GPUs, shares of GPUs and MIG devices. Builds that allow renaming keep the vendor.
# Other resources of the vendor are network cards and passed-through GPUs.
_GPU = re.compile(re.escape(VENDOR) + r"(?:gpu(?:\..+)?|mig-.+)")


@lru_cache(maxsize=1 << 10)
def is_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU or a part of a GPU, by its name."""
    return _GPU.fullmatch(resource) is not None
