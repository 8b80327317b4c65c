"""Discovery of a recorded 16-GPU machine, as a ratio to decoding its JSON with the standard library.

Run: make bench
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from agent.discover import discover
from agent.recording.io import load_snapshot
from gputopo.labels import decode_topology, encode_topology
from gputopo.render import renderer

ROUNDS = 51
SNAPSHOT = Path(__file__).parents[1] / "fixtures" / "machines" / "16v100-2n-nvswitch6" / "snapshot.json"


def cpu_us(work: Callable[[], object]) -> float:
    """Return the CPU time of a call, in microseconds."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1000


def main() -> None:
    """Print a row per step."""
    text = SNAPSHOT.read_text(encoding="utf-8")
    snapshot = load_snapshot(text)
    topology = discover(snapshot)
    facts = encode_topology(topology)
    steps: dict[str, Callable[[], object]] = {
        "json.loads of the snapshot (yardstick)": lambda: json.loads(text),
        "load_snapshot": lambda: load_snapshot(text),
        "discover": lambda: discover(snapshot),
        "encode": lambda: encode_topology(topology),
        "decode": lambda: decode_topology(facts.labels, facts.annotations),
        "render tree": lambda: renderer("tree")(topology),
        "render svg": lambda: renderer("svg")(topology),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, work in steps.items():
            times[name].append(cpu_us(work))
    yardstick = statistics.median(next(iter(times.values())))
    print(f"\n{'16 GPUs, 10 NICs, one NVSwitch fabric':<40} {'us':>8} {'ratio':>7}")
    for name, each in times.items():
        median = statistics.median(each)
        print(f"{name:<40} {median:8.0f} {median / yardstick:7.2f}")
    size = len(facts.annotations["gputopo.io/topology"])
    print(f"annotation: {size} bytes of 8192")


if __name__ == "__main__":
    main()
