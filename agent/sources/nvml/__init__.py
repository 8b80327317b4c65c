"""NVML through NVIDIA's bindings (``pynvml``): driver, GPUs, links and pairs, unchanged.

Every call can fail on its own; its error is stored under its name beside the results of the other calls. Comments mark
the pitfalls of this API where the code avoids them.
"""

from agent.sources.nvml.reader import read_nvml

__all__ = ["read_nvml"]
