"""Backfill compared: use of GPUs, waits of short gangs, and delays of the holder. --write: to docs/preemption.md.

    PYTHONPATH=. python bench/backfill.py [--clusters 50] [--write]

Random clusters in discrete time with the planner's own code, each with and without backfill
(tests/scheduler_core/planner/leader/backfill_simulation.py). The same seeds give the same figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.scheduler_core.planner.leader.backfill_simulation import GPUS, HORIZON_S, World, WorldResult

PAGE = Path("docs/preemption.md")
BEGIN, END = "<!-- bench/backfill.py: begin -->\n", "<!-- bench/backfill.py: end -->\n"
HEAD = """\
| pods in use | backfill | GPUs in use | wait of short gangs p50 / p95 | backfilled gangs | evicted pods \
| later than without backfill | longest delay | later than the estimate |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


SCENARIOS = (
    (False, False, "end at their deadlines"),
    (True, True, "half of them end earlier, and say when"),
    (True, False, "half of them end earlier, unannounced"),
)


def main() -> None:
    """Run all clusters, print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, default=50)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    text = f"{options.clusters} random clusters of 2 to 4 nodes of {GPUS} GPUs, {HORIZON_S / 60:.0f} minutes each:\n\n"
    text += HEAD
    for early, announced, name in SCENARIOS:
        seeds = range(options.clusters)
        plain = [World(seed, backfill=False, early=early, announced=announced) for seed in seeds]
        gpus = GPUS * sum(each.nodes for each in plain)
        without = [each.run() for each in plain]
        found = [World(seed, backfill=True, early=early, announced=announced).run() for seed in seeds]
        text += _row(name, "off", without, without, gpus) + _row(name, "deadline", found, without, gpus)
        print(text, flush=True)
    if options.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}")


def _row(name: str, mode: str, found: list[WorldResult], without: list[WorldResult], gpus: int) -> str:
    waits = sorted(wait for each in found for wait in each.waits)
    used = sum(each.used_gpu_s for each in found) / (gpus * HORIZON_S)
    delays = [
        (one.holder_started or HORIZON_S) - (other.holder_started or HORIZON_S)
        for one, other in zip(found, without, strict=True)
    ]
    p50, p95 = waits[len(waits) // 2], waits[len(waits) * 95 // 100]
    return (
        f"| {name} | {mode} | {used:.1%} | {p50:.0f} s / {p95:.0f} s | {sum(each.backfilled for each in found)} | "
        f"{sum(each.evicted for each in found)} | {sum(each > 0 for each in delays)} | {max(delays):.0f} s | "
        f"{sum(each.late_s > 0 for each in found)} |\n"
    )


if __name__ == "__main__":
    main()
