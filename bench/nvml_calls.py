"""NVML calls of a pass, by call: ``python -m bench.nvml_calls``.

The driver is the fake driver of the tests, so the numbers are exact, and the time is gputopo's alone: a real call takes
microseconds to milliseconds (nvmlInit and the first call to a sleeping GPU take longest).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.sources.nvml import read_nvml
from tests.agent.sources.fake_nvml import FakeDriver, FakeGpu, FakeLink, plug
from tests.agent.sources.fake_nvml_health import FakeFabric

if TYPE_CHECKING:
    from collections import Counter

H100 = FakeGpu(fabric=FakeFabric(), links=(FakeLink(),) * 18)


def measure(gpus: int) -> tuple[Counter[str], float]:
    """Return ``(calls by name, seconds)`` of a pass over a number of H100s behind NVSwitches."""
    driver = FakeDriver(*[H100] * gpus)
    lib = plug(driver)
    start = time.perf_counter()
    read_nvml(lib, 224)
    return driver.calls, time.perf_counter() - start


def main() -> None:
    """Print a table: a row per call, a column per machine."""
    sizes = (1, 8, 16)
    columns = [measure(size) for size in sizes]
    print(f"{'call':45}" + "".join(f"{size:>4} GPUs" for size in sizes))
    for name, _ in columns[-1][0].most_common():
        print(f"{name:45}" + "".join(f"{calls[name]:>9}" for calls, _ in columns))
    print(f"{'total':45}" + "".join(f"{calls.total():>9}" for calls, _ in columns))
    print(f"{'gputopo, ms':45}" + "".join(f"{seconds * 1000:>9.1f}" for _, seconds in columns))


if __name__ == "__main__":
    main()
