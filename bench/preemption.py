"""Preemption compared: evictions in vain on random clusters, and a simulated month. --write: to docs/preemption.md.

    PYTHONPATH=. python bench/preemption.py [--nodes 500] [--days 30] [--clusters 1000] [--write]

Both parts run gputopo's own search (``scheduler_core.planner.preemption``). The same seed gives the same figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from random import Random

from scheduler_core.simulation.assumed_machines import islands, nvswitch
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.preemption.jobs import draw_tiered_jobs
from scheduler_core.simulation.preemption.replay import RULES, replay_tiers
from scheduler_core.simulation.preemption.report import tiers_markdown, tiers_svg
from scheduler_core.simulation.preemption.vain import count_vain_evictions

PAGE = Path("docs/preemption.md")
IMAGE = Path("docs/images/preemption-month.svg")
BEGIN, END = "<!-- bench/preemption.py: begin -->\n", "<!-- bench/preemption.py: end -->\n"
SEED = 1


def main() -> None:
    """Run both parts, print them, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    started = time.process_time()
    text = vain_table(options.clusters) + "\n"
    machines = (nvswitch("H100", 8), islands("A100", (4, 4)))
    specs = [SimulatedNode(f"n{at:04}", machines[at % 2]) for at in range(options.nodes)]
    jobs = draw_tiered_jobs(8 * options.nodes, options.days, options.load, Random(SEED))
    found = []
    for name in RULES:
        found.append(replay_tiers(name, specs, jobs, SEED))
        print(name, f"{time.process_time() - started:.0f} s", flush=True)
    text += (
        f"{len(jobs):,} jobs in {options.days:g} days on {options.nodes} nodes of 8 GPUs, load {options.load:.0%}:\n\n"
    )
    text += tiers_markdown(found) + f"\n![GPU-hours lost and waits by policy]({IMAGE.relative_to(PAGE.parent)})\n"
    print(text)
    if options.write:
        page = PAGE.read_text()
        before, _, rest = page.partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.partition(END)[2]}")
        IMAGE.write_text(tiers_svg(found))


def vain_table(clusters: int) -> str:
    """Return the count of every rule on random clusters."""
    lines = [f"{clusters:,} random full clusters, one critical job each:\n\n"]
    lines.append("| policy | evicted jobs | in vain | critical jobs started |\n| --- | ---: | ---: | ---: |\n")
    for name in RULES:
        found = count_vain_evictions(name, range(clusters))
        lines.append(f"| {name} | {found.evicted:,} | {found.in_vain:,} | {found.started:,} of {found.clusters:,} |\n")
    return "".join(lines)


if __name__ == "__main__":
    main()
