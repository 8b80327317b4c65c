"""Extended resources by which Kubernetes hands out GPUs. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

VENDOR = "nvidia.com/"
# "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb.shared": what NVIDIA's
# device plugin names GPUs, shares of them and MIG devices; builds that allow renaming keep the vendor, and names that
# follow its own begin so. Other resources of the vendor are network cards and passed-through GPUs.
_GPU = re.compile(re.escape(VENDOR) + r"(?:gpu(?:\..+)?|mig-.+)")


@lru_cache(maxsize=1 << 10)
def is_gpu(resource: str) -> bool:
    """Whether a resource is a GPU or a part of one, by its name."""
    return _GPU.fullmatch(resource) is not None
