"""NVML through NVIDIA's bindings (``pynvml``): what the driver says of its GPUs, links and pairs, verbatim.

Every call can fail by itself, and then its error stands under its name beside what the other calls said. The traps
of this interface are commented where they are avoided.
"""

from agent.sources.nvml.reader import read_nvml

__all__ = ["read_nvml"]
