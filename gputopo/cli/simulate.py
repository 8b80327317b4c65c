"""``gputopo simulate``: placement policies compared, without an installation. Heavy imports in the functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gputopo.cli import complete
from gputopo.cli.output import output_option
from gputopo.cli.policy import read_policy_file
from gputopo.cli.progress import ProgressLine
from gputopo.cli.simulated_nodes import SimulatedNodes, read_simulated_nodes
from gputopo.cli.terminal import exit_with_error, read_text, terminal_width, write_out

if TYPE_CHECKING:
    from scheduler_core.policy.policy import Policy
    from scheduler_core.policy.preemption import PreemptionPolicy
    from scheduler_core.simulation.hosts import SimulatedNode
    from scheduler_core.simulation.workload import SimulatedJob

_POLICIES = "ours,spread,pack,fgd"
_WORKLOAD = "jobs in CSV or JSON, see docs/quality.md"
_SIZES = "1:45,2:25,3:8,4:15,5:7"
_MAX_WEIGHT = 1e12
_SIZE = re.compile(r"(\d{1,4}):(\d+(?:\.\d+)?)")


class _Share(click.FloatRange):
    """A positive finite number."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = super().convert(value, param, ctx)
        return found if isfinite(found) else self.fail(f"{value} is not a number", param, ctx)


_SHARE = _Share(0.0, 100.0, min_open=True)


class _Compared(NamedTuple):
    """The placement policies to compare."""

    policies: Sequence[str]  # names of ``simulation.policies``
    profiles: Mapping[str, Policy]  # the profiles of a policy file, by name


class _Tiers(NamedTuple):
    """The rules of preemption to compare, for a workload with priority tiers."""

    policies: Sequence[str] | None  # names of rules; None: all
    policy_file: str | None


class _Load(NamedTuple):
    """The workload."""

    workload: str | None
    sizes: str
    load: float
    jobs: int
    until: float
    text: str | None = None  # the content of the file ``workload``


@click.command()
@click.option(
    "--cluster",
    "clusters",
    shell_complete=complete.machines_and_files,
    metavar="FILE|MACHINE[*N]",
    multiple=True,
    required=True,
    help="Nodes: a CSV file (sn, cpu_milli, memory_mib, gpu, model), the output of `kubectl get nodes -o json`, or N "
    "machines of a value of `show --from` (default: 1; a file needs *N). Repeatable. Running pods are ignored.",
)
@click.option(
    "--workload",
    metavar="FILE",
    shell_complete=complete.files,
    help="Jobs: a CSV or JSON file, see docs/quality.md. With the column `pods`, preemption policies are compared, see "
    "docs/preemption.md. Default: random jobs.",
)
@click.option("--sizes", metavar="GPUS:WEIGHT,..", default=_SIZES, show_default=True, help="Sizes of random jobs.")
@click.option(
    "--load", type=_SHARE, default=0.9, show_default=True, help="Requested share of the GPUs over time, of random jobs."
)
@click.option(
    "--jobs", type=click.IntRange(1, 1_000_000), default=4000, show_default=True, help="Number of random jobs."
)
@click.option(
    "--until",
    type=_SHARE,
    default=1.3,
    show_default=True,
    help="If the jobs of --workload have no times: draw jobs at random up to this load.",
)
@click.option(
    "--policies",
    default=_POLICIES,
    show_default=True,
    shell_complete=complete.policies,
    help="Policies to compare: the first is compared with each of the others.",
)
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    shell_complete=complete.files,
    help="A policy file: also run each of its profiles, as ours:NAME; with tiers its preemption rules, as ours:FILE.",
)
@click.option("--seed", default=42, show_default=True, help="Random seed of the first run.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Runs with each policy, with consecutive seeds.",
)
@output_option("text", "json", "html")
def simulate(
    *,
    clusters: tuple[str, ...],
    policies: str,
    policy_file: str | None,
    seed: int,
    seeds: int,
    output: str,
    **load: Any,
) -> None:
    """Simulate a workload with several placement policies.

    It prints and compares the results of the policies. gputopo's decisions come from the code that serves
    kube-scheduler. The same seed gives the same placements. "mean allocated" is the share of the GPUs in use, over the
    second half of the arrivals; "allocated at end" is the share after the last arrival, for jobs that never end. A
    narrow terminal leaves out the time per decision, fragments by island, fragments, the mean wait, % of best ring
    bandwidth, allocated at end, never scheduled, in this order; -o json, a file and a pipe have all columns.

    \b
    Examples:
      gputopo simulate --cluster 'a100-pcie*8'
      gputopo simulate --cluster 'a100-pcie*32' --sizes 1:60,2:40 --policies ours,ours-required,spread
      gputopo simulate --cluster nodes.csv --workload pods.csv --seeds 10 -o html > report.html
      kubectl get nodes -o json > nodes.json && gputopo simulate --cluster nodes.json
      gputopo simulate --cluster 'dgx-a100*8' --workload docs/examples/preemption/workload.csv
    """
    cluster = read_simulated_nodes(clusters)
    for each in cluster.caveats:
        click.echo(f"gputopo: {each}", err=True)
    text = None if load["workload"] is None else read_text(load["workload"], _WORKLOAD)
    wanted = _Load(**load, text=text)
    if text is not None:
        from scheduler_core.simulation.preemption.jobs import has_tiers  # noqa: PLC0415  start-up of all other commands

        if has_tiers(text):
            tiers = _Tiers(None if policies == _POLICIES else _policy_names(policies), policy_file)
            _simulate_tiers(cluster.specs, wanted, tiers, range(seed, seed + seeds), output)
            return
    placements = () if policy_file is None else read_policy_file(policy_file).policies.profiles
    compared = _Compared(_policy_names(policies), {each.policy.name: each.policy for each in placements})
    _simulate(cluster, wanted, compared, range(seed, seed + seeds), output)


def _simulate(cluster: SimulatedNodes, wanted: _Load, compared: _Compared, seeds: Sequence[int], output: str) -> None:
    import json  # noqa: PLC0415  start-up of all other commands

    from gputopo.render.report import UNFOLDED  # noqa: PLC0415
    from scheduler_core.simulation.policies import DESCRIPTIONS, POLICIES, PolicyRun, replay_workload  # noqa: PLC0415
    from scheduler_core.simulation.report.page import simulation_page  # noqa: PLC0415
    from scheduler_core.simulation.report.summary import simulation_document, simulation_text, summaries  # noqa: PLC0415

    for name in compared.policies:
        if name not in POLICIES:
            exit_with_error(f"unknown policy {name!r}; expected: {', '.join(POLICIES)}")
    specs = cluster.specs
    gpus = sum(len(spec.topology.usable) for spec in specs)
    if not gpus:
        exit_with_error("--cluster: no node with usable GPUs; see `gputopo machines`, and `gputopo simulate --help`")
    runs = {name: PolicyRun(name, 0) for name in compared.policies}
    runs |= {f"ours:{name}": PolicyRun("ours", 0, each, as_served=True) for name, each in compared.profiles.items()}
    figures = []
    caveats = list(cluster.caveats)
    for seed in seeds:
        jobs = _jobs(wanted, gpus, seed)
        if seed == seeds[0]:
            sizes = Counter(job.kind.gpus for job in jobs if job.kind.demand)
            caveats += _oversized_jobs(sizes, specs, wanted.workload or f"--sizes {wanted.sizes!r}")
        with ProgressLine(f"simulate, seed {seed}", len(runs) * len(jobs)) as shown:
            for shown.detail, run in runs.items():
                found = replay_workload(run._replace(seed=seed), specs, jobs, shown.advance)
                figures.append(found._replace(policy=shown.detail))
    asked = wanted.workload or f"{wanted.jobs} random jobs (GPUs:weight {wanted.sizes}), load {wanted.load:.0%}"
    about = f"{_size(len(specs), gpus)}; {asked}; {_seeds(seeds)}."
    if output == "json":
        write_out(json.dumps(simulation_document(figures, about), indent=2) + "\n")
    else:
        words = DESCRIPTIONS | {
            f"ours:{name}": f"gputopo, all pods by the profile {name}" for name in compared.profiles
        }
        summed = summaries(figures)
        wide = terminal_width() or UNFOLDED
        is_page = output == "html"
        write_out(
            simulation_page(summed, words, about, caveats) if is_page else simulation_text(summed, words, about, wide)
        )


def _simulate_tiers(
    specs: Sequence[SimulatedNode], wanted: _Load, tiers: _Tiers, seeds: Sequence[int], output: str
) -> None:
    """Compare rules of preemption."""
    import json  # noqa: PLC0415  start-up of all other commands

    from gputopo.render.report import UNFOLDED  # noqa: PLC0415
    from gputopo.render.wording import counted_noun  # noqa: PLC0415
    from scheduler_core.simulation.preemption.jobs import TieredWorkloadError, read_tiered_jobs  # noqa: PLC0415
    from scheduler_core.simulation.preemption.replay import HOLD_RULES, RULES, replay_tiers  # noqa: PLC0415
    from scheduler_core.simulation.preemption.report import tiers_document, tiers_text  # noqa: PLC0415

    source = f"{wanted.workload}"
    for name in tiers.policies or ():
        if name not in RULES and name not in HOLD_RULES:
            exit_with_error(
                f"unknown preemption policy {name!r}; expected for a workload with priority tiers: "
                f"{', '.join((*RULES, *HOLD_RULES))}"
            )
    if output == "html":
        exit_with_error("-o html does not show preemption; use -o text or -o json for a workload with priority tiers")
    try:
        jobs = read_tiered_jobs(wanted.text or "")
    except TieredWorkloadError as error:
        exit_with_error(f"{source}: {error}")
    _oversized_jobs(Counter(job.gpus for job in jobs), specs, source)
    found = []
    with_deadlines = HOLD_RULES if any(job.deadline_s is not None for job in jobs) else ()
    chosen: dict[str, PreemptionPolicy | None] = dict.fromkeys(tiers.policies or (*RULES, *with_deadlines))
    if tiers.policy_file is not None:
        chosen[f"ours:{Path(tiers.policy_file).stem}"] = read_policy_file(tiers.policy_file).policies.preemption
    with ProgressLine("simulate", len(seeds) * len(chosen) * len(jobs)) as shown:
        for seed, (name, rules) in product(seeds, chosen.items()):
            shown.detail = f"{name}, seed {seed}"
            found.append(replay_tiers(name, specs, jobs, seed, advance=shown.advance, rules=rules))
    gpus = sum(len(spec.topology.usable) for spec in specs)
    asked = f"{counted_noun(len(jobs), 'job')} of {source}"
    about = f"{_size(len(specs), gpus)}; {asked}; {_seeds(seeds)}, until all jobs arrived."
    document = json.dumps(tiers_document(found, about), indent=2) + "\n"
    write_out(document if output == "json" else tiers_text(found, about, terminal_width() or UNFOLDED))


def _size(nodes: int, gpus: int) -> str:
    from gputopo.render.wording import counted_noun  # noqa: PLC0415  start-up of all other commands

    return f"{counted_noun(nodes, 'node')} with {counted_noun(gpus, 'GPU')}"


def _policy_names(policies: str) -> list[str]:
    """Return the names of ``--policies``. Exit with an error if one occurs twice."""
    names = [name.strip() for name in policies.split(",")]
    if twice := next((name for name, number in Counter(names).items() if number > 1), None):
        exit_with_error(f"--policies {policies!r:.200}: {twice!r:.80} occurs twice; name each policy once")
    return names


def _seeds(seeds: Sequence[int]) -> str:
    return f"1 run, seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} runs, seeds {seeds[0]} to {seeds[-1]}"


def _oversized_jobs(sizes: Counter[int], specs: Sequence[SimulatedNode], source: str) -> list[str]:
    """Return a sentence about pods with more GPUs than any node has. Exit with an error if all jobs have such pods.

    ``sizes``: GPUs of a pod -> jobs.
    """
    from gputopo.render.wording import counted_noun  # noqa: PLC0415  start-up of all other commands

    most = max((len(spec.topology.joinable) for spec in specs), default=0)
    too_large = sorted(size for size in sizes if size > most)
    if not too_large:
        return []
    reason = f"{source}: no node has {counted_noun(too_large[0], 'GPU')}; the largest has {most}"
    if len(too_large) == len(sizes):
        exit_with_error(reason)
    number = sum(sizes[size] for size in too_large)
    caveat = f"{reason}. {counted_noun(number, 'job')} of {sum(sizes.values())} can never be scheduled"
    click.echo(f"gputopo: {caveat}", err=True)
    return [caveat]


def _jobs(wanted: _Load, gpus: int, seed: int) -> list[SimulatedJob]:
    from random import Random  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.policy.demand_mix import WHOLE_GPU  # noqa: PLC0415
    from scheduler_core.simulation.workload import WorkloadError, WorkloadRecipe, draw_jobs, generate_jobs, read_jobs  # noqa: PLC0415

    random = Random(seed)  # noqa: S311  not a secret
    if wanted.text is None:
        sizes = {int(size): float(weight) for size, weight in _SIZE.findall(wanted.sizes)}
        valid = all(_SIZE.fullmatch(each) for each in wanted.sizes.split(","))
        if not valid or not all(size and 0 < weight < _MAX_WEIGHT for size, weight in sizes.items()):
            exit_with_error(
                f"--sizes {wanted.sizes!r}: expected GPUS:WEIGHT, positive numbers, separated by commas; "
                f"example: {_SIZES}"
            )
        try:
            return generate_jobs(WorkloadRecipe(sizes, wanted.load, wanted.jobs), gpus, random)
        except WorkloadError as error:
            exit_with_error(f"--load {wanted.load:g}: {error}")
    try:
        jobs = read_jobs(wanted.text)
        if any(job.duration != float("inf") for job in jobs):
            return jobs
        return draw_jobs(jobs, gpus * WHOLE_GPU, wanted.until, random)
    except WorkloadError as error:
        exit_with_error(f"{wanted.workload}: {error}")
