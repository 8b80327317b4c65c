"""The cost of the watch, as ratios to the minimum: reading the same bytes and decoding the same fields.

With a server of generated objects in its own process; each measurement in a new process, in turns. Sync:
15,000 nodes, 100,000 pods of which 30,000 have GPUs, 15,000 NodeGpus: 730 MB. Events: one per chunk, as kube-apiserver
sends them. Run: make bench
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NODES, PODS = 15_000, 100_000
SAMPLE = (1_000, 2_000)  # for the official package's models, which take minutes for all objects
ROUNDS = 3
HERE = Path(__file__).parent


def main() -> None:
    """Print the results."""
    with served(NODES, PODS) as port:
        runs = [{way: child(way, port) for way in ("read", "sync")} for _ in range(ROUNDS)]
    print(f"\nsync of {NODES:,} nodes and {PODS:,} pods")
    for name, unit in (("wall", "s"), ("cpu", "s"), ("held", "MiB"), ("peak", "MiB")):
        found = {way: statistics.median(run[way][name] for run in runs) for way in ("read", "sync")}
        ratio = statistics.median(run["sync"][name] / run["read"][name] for run in runs)
        said = f"read and decoded only {found['read']:7.1f} {unit}, watch {found['sync']:7.1f} {unit}"
        print(f"  {name:<5} {said}, ratio {ratio:.2f}")
    with served(*SAMPLE) as port:
        pairs = [(child("models", port)["cpu"], child("sync", port)["cpu"]) for _ in range(ROUNDS)]
    ratio = statistics.median(models / ours for models, ours in pairs)
    print(
        f"\n{SAMPLE[0]:,} nodes and {SAMPLE[1]:,} pods: a list into the official models takes {ratio:.1f} times our CPU"
    )
    with served(500, 500) as port:
        stories = [child("events", port) for _ in range(ROUNDS)]
    print(f"\n{'CPU of one event':<24} {'decoded only, us':>17} {'watch, us':>10} {'ratio':>6}")
    for story in [name.removeprefix("decode ") for name in stories[0] if name.startswith("decode ")]:
        decode = statistics.median(run[f"decode {story}"] for run in stories)
        ours = statistics.median(run[f"watch {story}"] for run in stories)
        ratio = statistics.median(run[f"watch {story}"] / run[f"decode {story}"] for run in stories)
        print(f"{story:<24} {decode:>17.1f} {ours:>10.1f} {ratio:>6.2f}")


@contextmanager
def served(nodes: int, pods: int) -> Iterator[int]:
    """Start a server with a number of objects; return its port."""
    command = [sys.executable, str(HERE / "watch_server.py"), str(nodes), str(pods)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def child(way: str, port: int) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, str(HERE / "watch_client.py"), way, str(port)]
    answer: dict[str, float] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return answer


if __name__ == "__main__":
    main()
