"""Placement quality: regenerates the tables in docs/quality.md.

Run: PYTHONPATH=. python bench/quality.py. ``--traces DIR`` names the folder with the public "openb" traces; without it
only the island tables are made. All cores are used; two take about 10 minutes for ten seeds of three traces, and
``--seeds 2`` is enough to see a change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice, product
from pathlib import Path
from random import Random
from statistics import fmean

from scheduler_core.policy.policy import Policy
from scheduler_core.simulation.assumed_machines import islands, nvswitch
from scheduler_core.simulation.hosts import SimulatedCluster, SimulatedNode, read_nodes
from scheduler_core.simulation.measures import Figures
from scheduler_core.simulation.policies import run_policy
from scheduler_core.simulation.workload import WorkloadRecipe, draw_jobs, generate_jobs, read_jobs

DOCS = Path(__file__).parent.parent / "docs" / "quality.md"
NODES, JOBS = 32, 3000
_OF_8 = {1: 45, 2: 25, 3: 8, 4: 15, 5: 7}
_OF_6 = {1: 45, 2: 30, 3: 25}
SHAPES = {
    "2 islands of 4": (islands("X", (4, 4)), _OF_8),
    "4 bridged pairs": (islands("X", (2, 2, 2, 2), 12), _OF_8),
    "2 islands of 3": (islands("X", (3, 3)), _OF_6),
    "8 on NVSwitch": (nvswitch("X", 8), _OF_8),
}
ISLAND_SEEDS = (1, 2, 3)
ISLAND_POLICIES = ("spread", "pack", "ours", "ours-required")
TRACE_POLICIES = ("random", "dot-product", "gpu-packing", "best-fit", "fgd", "ours")
TRACES = ("default", "multigpu50", "gpuspec33")


def main() -> None:
    """Run the simulations, and write the tables between their marks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    asked = parser.parse_args()
    replace("islands", island_table())
    if asked.traces is not None:
        replace("traces", trace_table(asked.traces, asked.seeds))


def island_table() -> str:
    """Return island share and mean wait at 90 % load, three seeds."""
    found = iter(_each(on_shape, product(SHAPES, ISLAND_POLICIES, ISLAND_SEEDS)))
    rows = []
    for shape in SHAPES:
        cells = []
        for _ in ISLAND_POLICIES:
            of_seeds = list(islice(found, len(ISLAND_SEEDS)))
            share, wait = mean(each.island_share for each in of_seeds), mean(each.mean_wait_s for each in of_seeds)
            cells.append(f"{share:.3f} ({wait:.0f} s)")
        rows.append((shape, *cells))
    return table(("machine", *ISLAND_POLICIES), rows)


def on_shape(shape: str, policy: str, seed: int) -> Figures:
    """Simulate the islands' workload once."""
    machine, sizes = SHAPES[shape]
    specs = [SimulatedNode(f"n{number}", machine) for number in range(NODES)]
    jobs = generate_jobs(WorkloadRecipe(sizes, 0.9, JOBS), NODES * len(machine.gpus), Random(seed))
    return run_policy(policy, specs, jobs, Policy(), seed)


def trace_table(folder: Path, seeds: int) -> str:
    """Return allocation and island share by the published protocol."""
    found = iter(_each(partial(on_trace, folder), product(TRACE_POLICIES, TRACES, range(42, 42 + seeds))))
    rows = []
    for policy in TRACE_POLICIES:
        cells = [policy]
        for _ in TRACES:
            cells += _cells(list(islice(found, seeds)))
        rows.append(cells)
    heads = [f"{trace}: {what}" for trace in TRACES for what in ("allocated", "in one island")]
    return table(("policy", *heads), rows) + f"\nMeans of {seeds} seeds from 42.\n"


def on_trace(folder: Path, policy: str, trace: str, seed: int) -> Figures:
    """Simulate a trace once."""
    specs = read_nodes((folder / "openb_node_list_gpu_node.csv").read_text())
    kinds = read_jobs((folder / f"openb_pod_list_{trace}.csv").read_text())
    return run_policy(
        policy, specs, draw_jobs(kinds, SimulatedCluster(specs).capacity, 1.3, Random(seed)), Policy(), seed
    )


def replace(name: str, text: str) -> None:
    """Write a table between its marks."""
    begin, end = f"<!-- {name}: made by bench/quality.py -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = DOCS.read_text().partition(begin)
    _, _, after = rest.partition(end)
    DOCS.write_text(f"{before}{begin}\n{text}\n{end}{after}")
    print(text)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def mean(values: Iterable[float | None]) -> float:
    """Return the mean of the existing values."""
    return fmean(value for value in values if value is not None)


def _each(replayed: Callable[[str, str, int], Figures], settings: Iterable[tuple[str, str, int]]) -> Iterable[Figures]:
    """Return the figures of each setting, in order; as many processes as cores."""
    with ProcessPoolExecutor() as cores:
        yield from cores.map(replayed, *zip(*settings, strict=True))


def _cells(found: Sequence[Figures]) -> list[str]:
    return [f"{100 * mean(each.allocated for each in found):.2f} %", f"{mean(each.island_share for each in found):.2f}"]


if __name__ == "__main__":
    main()
