"""The costs of a cluster from 1,000 to 50,000 nodes, as a table for docs/performance.md.

One generated API server per size (``bench/scale_server.py``), and a new process per measurement: the sync of extender
and planner, Filter calls, pod events, plans, and the commands that read a cluster. CPU times are what to compare:
wall times include the server, which shares the machine. The minimum is a process that reads and decodes the same
objects and keeps nothing. ``--before DIR``: measure a checkout of another commit as well, in turns with this one.
Run: make bench-scale; --sizes for less
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scale_client import kubeconfig

HERE = Path(__file__).parent
SIZES = (1_000, 5_000, 15_000, 50_000)
MOST_FOR_COMMANDS = 15_000  # nodes: the commands of larger clusters would take most of the time of the benchmark
COMMAND_TURNS = 3
# The kubernetes package imports this package of the tests if it is there, in 40 ms; users do not install it.
AS_INSTALLED = "import sys; sys.modules['kubernetes_validate'] = None"
COMMANDS = {
    "nodes": ("nodes",),
    "pods": ("pods",),
    "gangs": ("gangs",),
    "why pod": ("why", "pod", "wait-0", "-n", "team"),
    "why gang": ("why", "gang", "gang-0001", "-n", "team"),
}
Figures = dict[str, dict[str, float]]  # by way, then by name
Cell = Callable[[Figures], str]
AGENT_ROWS = {  # figures of scale_agent.py
    "nodegpus_requests": "requests that apply NodeGpus",
    "nodegpus_stored": "of these, stored",
    "nodegpus_bytes": "bytes of their bodies",
    "lease_requests": "writes of the Lease",
    "lease_bytes": "bytes of their bodies",
    "gets": "GETs of the Node",
}


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as bytecode:  # an installed package has its bytecode
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        print_tables()


def print_tables() -> None:
    """Measure each size, and print the tables."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--before", type=Path, help="the root of a checkout of another commit")
    asked = options.parse_args()
    roots = [*([] if asked.before is None else [asked.before.resolve()]), HERE.parent]
    hours = [child(root, "scale_agent.py") for root in roots]
    found = {size: measured(size, roots) for size in asked.sizes}
    heads = " | ".join(f"{size:,} nodes" for size in found)
    print(f"\n| figure | {heads} |\n|---|{'---|' * len(found)}")
    for title, cell in ROWS.items():
        cells = (" → ".join(cell(each) for each in of_size) for of_size in found.values())
        print(f"| {title} | {' | '.join(cells)} |")
    print("\n| an agent in a quiet hour | |\n|---|---|")
    for name, title in AGENT_ROWS.items():
        print(f"| {title} | {' → '.join(f'{each.get(name, 0):,.0f}' for each in hours)} |")


def measured(size: int, roots: list[Path]) -> list[Figures]:
    """Return the figures of a size for each checkout."""
    found: list[Figures] = [{} for _ in roots]
    with served(size) as port, tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{port}")))
        for way in ("read", "extender", "planner"):
            for root, figures in zip(roots, found, strict=True):
                figures[way] = child(root, "scale_client.py", way, str(port))
        for name, command in COMMANDS.items() if size <= MOST_FOR_COMMANDS else ():
            turns = [
                [command_costs(root, [*command, "--kubeconfig", str(config)]) for root in roots]
                for _ in range(COMMAND_TURNS)
            ]
            for figures, costs in zip(found, zip(*turns, strict=True), strict=True):
                figures[name] = min(costs, key=lambda each: each["cpu_s"])  # the first run also writes bytecode
        print(f"{size:,} nodes: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


@contextmanager
def served(size: int) -> Iterator[int]:
    """Start the server of a cluster; return its port."""
    command = [sys.executable, str(HERE / "scale_server.py"), str(size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


def child(root: Path, program: str, *arguments: str) -> dict[str, float]:
    """Return the figures of a program of this folder, run on the code of a checkout."""
    command = [sys.executable, str(HERE / program), *arguments]
    done = subprocess.run(command, env=environment(root), stdout=subprocess.PIPE, check=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def command_costs(root: Path, arguments: list[str]) -> dict[str, float]:
    """Return wall and CPU seconds and the memory of a command."""
    start = time.perf_counter()
    command = [sys.executable, "-P", "-c", f"{AS_INSTALLED}; from gputopo.cli.main import main; main()", *arguments]
    process = subprocess.Popen(command, env=environment(root), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"gputopo {' '.join(arguments)} ended with {status}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"wall_s": time.perf_counter() - start, "cpu_s": cpu_s, "mib": usage.ru_maxrss / 1024}


def environment(root: Path) -> dict[str, str]:
    """Return an environment in which Python imports the code of a checkout."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(HERE)])}


def _figure(way: str, name: str, form: str) -> Cell:
    return lambda found: form.format(found[way][name]) if way in found else "-"


def _of_minimum(way: str) -> Cell:
    return lambda found: f"{found[way]['cpu_s'] / found['read']['cpu_s']:.1f}" if way in found else "-"


ROWS: dict[str, Cell] = {
    "sync of the extender: CPU, s": _figure("extender", "cpu_s", "{:.1f}"),
    "the same, as a multiple of the minimum": _of_minimum("extender"),
    "the same, wall time with the server, s": _figure("extender", "wall_s", "{:.1f}"),
    "memory of the extender's cluster cache, MiB": _figure("extender", "mib", "{:.0f}"),
    "sync of the planner: CPU, s": _figure("planner", "cpu_s", "{:.1f}"),
    "memory of the planner's cluster cache, MiB": _figure("planner", "mib", "{:.0f}"),
    "Filter, a new pod profile: median, ms": _figure("extender", "cold_ms", "{:.1f}"),
    "Filter, a known pod profile: median, ms": _figure("extender", "warm_ms", "{:.1f}"),
    "part of it: decoding the names of the nodes, ms": _figure("extender", "names_ms", "{:.1f}"),
    "pod event: median, ms": _figure("extender", "event_ms", "{:.2f}"),
    "plan of a gang of 4 without earlier results: first of the process, ms": _figure(
        "planner", "first_plan_ms", "{:.0f}"
    ),
    "plan of a gang of 4 without earlier results: median of the next, ms": _figure("planner", "plan_ms", "{:.0f}"),
    **{f"`gputopo {name}`: CPU, s": _figure(name, "cpu_s", "{:.1f}") for name in COMMANDS},
    **{f"`gputopo {name}`: wall time with the server, s": _figure(name, "wall_s", "{:.1f}") for name in COMMANDS},
    **{f"`gputopo {name}`: CPU, as a multiple of the minimum": _of_minimum(name) for name in COMMANDS},
}

if __name__ == "__main__":
    main()
