"""``gputopo simulate`` and ``gputopo what-if``: placement before anything is installed. Heavy imports inside."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from gputopo.cli.cluster import cluster_options, connected_cluster
from gputopo.cli.terminal import exit_with_error, read_bytes, write_out

if TYPE_CHECKING:
    from gputopo.model import NodeTopology
    from scheduler_core.cache.list_once import ClusterSnapshot
    from scheduler_core.policy.policy import Policy
    from scheduler_core.request.full_pod import FullPod
    from scheduler_core.simulation.hosts import SimulatedNode
    from scheduler_core.simulation.workload import SimulatedJob

_POLICIES = "ours,spread,pack,fgd"
_SIZES = "1:45,2:25,3:8,4:15,5:7"
_MANY = re.compile(r"(?P<machine>.+)\*(?P<count>\d{1,5})")
_SIZE = re.compile(r"(\d{1,4}):(\d+(?:\.\d+)?)")


class _Compared(NamedTuple):
    """What is replayed."""

    policies: Sequence[str]  # by their names in the simulation
    profiles: Mapping[str, Policy]  # of a policy file, by their names there


class _Load(NamedTuple):
    """What is asked of the cluster."""

    workload: str | None
    sizes: str
    load: float
    jobs: int
    until: float


def simulate_command(topology: Callable[[str], NodeTopology]) -> click.Command:
    """The command. ``topology``: a machine by what ``--from`` takes."""

    @click.command()
    @click.option(
        "--cluster",
        "clusters",
        metavar="FILE|MACHINE*N",
        multiple=True,
        required=True,
        help="Nodes: CSV (sn, cpu_milli, memory_mib, gpu, model), `kubectl get nodes -o json`, or so many of a "
        "machine that `show --from` takes. Repeatable. Pods that run there are left out.",
    )
    @click.option("--workload", metavar="FILE", help="Jobs: CSV or JSON, as docs/quality.md says.")
    @click.option("--sizes", metavar="GPUS:WEIGHT,..", default=_SIZES, show_default=True, help="Without --workload.")
    @click.option("--load", default=0.9, show_default=True, help="Without --workload: GPUs asked for over time.")
    @click.option("--jobs", default=4000, show_default=True, help="Without --workload: how many.")
    @click.option("--until", default=1.3, show_default=True, help="Draw jobs of a file without times up to this load.")
    @click.option("--policies", default=_POLICIES, show_default=True, help="Which to compare, the first with the rest.")
    @click.option(
        "--policy", "policy_file", metavar="FILE", help="A policy file: each profile is replayed too, as ours:NAME."
    )
    @click.option("--seed", default=42, show_default=True, help="Of the first replay.")
    @click.option("--seeds", default=1, show_default=True, help="Replays with each policy.")
    @click.option("-o", "--output", type=click.Choice(["text", "json", "html"]), default="text", show_default=True)
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
        """Replay a workload on a cluster with gputopo's placement and with others, and print how well each did.

        Decisions are made by the code that serves kube-scheduler. The same seed gives the same placements.

        \b
        Examples:
          gputopo simulate --cluster 'dgx-a100*32'
          gputopo simulate --cluster 8a100-2n-pairs12*32 --sizes 1:60,2:40 --policies ours,ours-required,spread
          gputopo simulate --cluster nodes.csv --workload pods.csv --seeds 10 -o html > report.html
          kubectl get nodes -o json > nodes.json && gputopo simulate --cluster nodes.json
        """
        specs = [spec for each in clusters for spec in _nodes(each, topology)]
        wanted = _Load(**load)
        compared = _Compared(policies.split(","), {} if policy_file is None else _profiles(policy_file))
        _simulate(specs, wanted, compared, range(seed, seed + seeds), output)

    return simulate


@click.command("what-if")
@cluster_options
@click.option("-f", "--filename", metavar="FILE|-", required=True, help="The pod, or a Job, Deployment ...")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    help="A cluster as `kubectl get nodes,pods,nodegpus -A -o json` prints it, instead of the one of the kubeconfig.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def what_if(kubeconfig: str | None, context: str | None, filename: str, source: str | None, output: str) -> None:
    """Tell where a pod would land in the cluster now, which GPUs it would get, and what would be left.

    Nothing is created. CPU, memory and volumes are not looked at. `gputopo why` tells the reasons at length.

    \b
    Examples:
      gputopo what-if -f pod.yaml
      kubectl get nodes,pods,nodegpus -A -o json > c.json && gputopo what-if -f pod.yaml --from c.json
    """
    import json  # noqa: PLC0415  start-up of all other commands
    import time  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from scheduler_core.cache.list_once import read_cluster, rejected_nodes  # noqa: PLC0415
    from scheduler_core.policy.policy import Policy  # noqa: PLC0415
    from scheduler_core.request.pod_request import InvalidRequest, parse_request  # noqa: PLC0415
    from scheduler_core.simulation.what_if import render_text  # noqa: PLC0415
    from scheduler_core.simulation.what_if import what_if as answered  # noqa: PLC0415

    pod, policy, now = _pod(filename), Policy(), time.time()
    request = parse_request(pod)
    if isinstance(request, InvalidRequest):
        exit_with_error(f"{filename}: {request.reason}")
    if not request.profile.device_request.steps_by_resource:
        exit_with_error(f"{filename}: pod {pod.metadata.name} asks for no GPU")
    if source is not None:
        found = _snapshot(source, now)
    else:
        with connected_cluster(kubeconfig, context) as kube:
            found = read_cluster(kube, now, policy)
    barred = rejected_nodes(pod.spec, found)
    answer = answered(request, found.table, [name for name in found.table.records if name not in barred], policy)
    write_out(render_text(answer) if output == "text" else json.dumps(msgspec.to_builtins(answer), indent=2) + "\n")


def _simulate(
    specs: Sequence[SimulatedNode], wanted: _Load, compared: _Compared, seeds: Sequence[int], output: str
) -> None:
    import json  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.policy.policy import Policy  # noqa: PLC0415
    from scheduler_core.simulation.policies import DESCRIPTIONS, POLICIES, run_policy  # noqa: PLC0415
    from scheduler_core.simulation.report.page import simulation_page  # noqa: PLC0415
    from scheduler_core.simulation.report.summary import simulation_document, simulation_text, summaries  # noqa: PLC0415

    for name in compared.policies:
        if name not in POLICIES:
            exit_with_error(f"there is no policy {name!r}; there are {', '.join(POLICIES)}")
    gpus = sum(len(spec.topology.usable) for spec in specs)
    figures = []
    for seed in seeds:
        jobs = _jobs(wanted, gpus, seed)
        figures += [run_policy(name, specs, jobs, Policy(), seed) for name in compared.policies]
        figures += [
            run_policy("ours", specs, jobs, policy, seed, as_served=True)._replace(policy=f"ours:{name}")
            for name, policy in compared.profiles.items()
        ]
    asked = wanted.workload or f"{wanted.jobs} jobs of {wanted.sizes} GPUs at a load of {wanted.load:.0%}"
    about = f"{len(specs)} nodes with {gpus} GPUs; {asked}; {_seeds(seeds)}."
    if output == "json":
        write_out(json.dumps(simulation_document(figures, about), indent=2) + "\n")
    else:
        words = DESCRIPTIONS | {
            f"ours:{name}": f"gputopo, all pods by the profile {name}" for name in compared.profiles
        }
        write_out((simulation_page if output == "html" else simulation_text)(summaries(figures), words, about))


def _seeds(seeds: Sequence[int]) -> str:
    return f"1 run, seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} runs, seeds {seeds[0]} to {seeds[-1]}"


def _profiles(source: str) -> dict[str, Policy]:
    from scheduler_core.policy.file import PolicyError, parse_policy_file  # noqa: PLC0415  pydantic, and only --policy needs it

    try:
        placements = parse_policy_file(read_bytes(source).decode(), source).policies.profiles
    except UnicodeDecodeError as error:
        exit_with_error(f"{source}: this is no text: {error}")
    except PolicyError as error:
        exit_with_error(str(error))
    return {each.policy.name: each.policy for each in placements}


def _nodes(source: str, topology: Callable[[str], NodeTopology]) -> list[SimulatedNode]:
    import time  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.simulation.hosts import ClusterError, SimulatedNode, read_nodes  # noqa: PLC0415
    from scheduler_core.simulation.snapshot import idle_nodes  # noqa: PLC0415

    many = _MANY.fullmatch(source)
    if many is not None:
        machine = topology(many["machine"])
        return [SimulatedNode(f"{many['machine']}-{number:05}", machine) for number in range(int(many["count"]))]
    text = read_bytes(source)
    if text.lstrip().startswith(b"{"):
        return idle_nodes(_snapshot(source, time.time(), text))
    try:
        return read_nodes(text.decode())
    except (ClusterError, UnicodeDecodeError) as error:
        exit_with_error(f"{source}: {error}")


def _jobs(wanted: _Load, gpus: int, seed: int) -> list[SimulatedJob]:
    from random import Random  # noqa: PLC0415  start-up of all other commands

    from scheduler_core.policy.demand_mix import WHOLE_GPU  # noqa: PLC0415
    from scheduler_core.simulation.workload import WorkloadError, WorkloadRecipe, draw_jobs, generate_jobs, read_jobs  # noqa: PLC0415

    random = Random(seed)  # noqa: S311  no secret
    if wanted.workload is None:
        sizes = {int(size): float(weight) for size, weight in _SIZE.findall(wanted.sizes)}
        if not sizes or not _valid(wanted.sizes):
            exit_with_error(f"--sizes {wanted.sizes!r}: say GPUS:WEIGHT, separated by commas, like {_SIZES}")
        return generate_jobs(WorkloadRecipe(sizes, wanted.load, wanted.jobs), gpus, random)
    try:
        jobs = read_jobs(read_bytes(wanted.workload).decode())
    except (WorkloadError, UnicodeDecodeError) as error:
        exit_with_error(f"{wanted.workload}: {error}")
    if any(job.duration != float("inf") for job in jobs):
        return jobs
    return draw_jobs(jobs, gpus * WHOLE_GPU, wanted.until, random)


def _valid(sizes: str) -> bool:
    return all(_SIZE.fullmatch(each) for each in sizes.split(","))


def _snapshot(source: str, now: float, text: bytes | None = None) -> ClusterSnapshot:
    from scheduler_core.policy.policy import Policy  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.simulation.hosts import ClusterError  # noqa: PLC0415
    from scheduler_core.simulation.snapshot import read_snapshot  # noqa: PLC0415

    try:
        return read_snapshot(read_bytes(source) if text is None else text, now, Policy())
    except ClusterError as error:
        exit_with_error(f"{source}: {error}")


def _pod(filename: str) -> FullPod:
    from scheduler_core.request.manifest import ManifestError, parse_pods  # noqa: PLC0415  YAML: 20 ms, and only -f needs it

    try:
        return parse_pods(read_bytes(filename).decode())[0]
    except (ManifestError, UnicodeDecodeError) as error:
        exit_with_error(f"{filename}: {error}")
