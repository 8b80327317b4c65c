"""The command line: options in, one call, text out. What is heavy is imported by the command that needs it.

Exit codes: 0 fine; 1 degraded hardware found, with `--check`; 2 bad input or usage, or the command needs an extra that
is not installed; 3 no GPU or driver here; 4 the cluster cannot be reached, refuses, or does not have what was asked
for; 70 an error of gputopo's own.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo import __version__
from gputopo.cli.cluster import COMMANDS, cluster_options, topology_of_node
from gputopo.cli.extras import missing_extra_message
from gputopo.cli.policy import policy
from gputopo.cli.simulate import simulate_command, what_if
from gputopo.cli.terminal import (
    exit_with_error,
    read_bytes,
    run_program,
    supports_unicode,
    terminal_paint,
    write_file,
    write_out,
)
from gputopo.cli.why import why

if TYPE_CHECKING:
    from gputopo.model import NodeTopology

DEGRADED, NO_GPU = 1, 3
FORMATS = ("tree", "matrix", "json", "yaml", "labels", "dot", "svg", "nccl-xml", "mermaid")  # gputopo.render.FORMATS

_FROM = click.option(
    "--from",
    "source",
    metavar="FILE|NAME|-",
    help="Read a recording, a pasted `nvidia-smi topo -m`, a Node as `kubectl get node -o json` prints it, an "
    "NCCL topology XML, or a machine that comes with gputopo, instead of this machine. `-` is standard input.",
)
_NODE = click.option("--node", metavar="NAME", help="Read what this node of the cluster carries.")
_ASCII = click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")


def _agent() -> click.Command:
    from agent.daemon.command import agent  # noqa: PLC0415  start-up of all other commands

    return agent


def _scheduler_config() -> click.Command:
    from gputopo.cli.config import scheduler_config  # noqa: PLC0415  start-up of all other commands

    return scheduler_config


def _extender() -> click.Command:
    from scheduler_core.extender.command import extender  # noqa: PLC0415  start-up of all other commands

    return extender


def _replay() -> click.Command:
    from scheduler_core.extender.replay import replay  # noqa: PLC0415  start-up of all other commands

    return replay


def _observe() -> click.Command:
    from gputopo.cli.observe import observe  # noqa: PLC0415  start-up of all other commands

    return observe


def _planner() -> click.Command:
    from scheduler_core.planner.command import planner  # noqa: PLC0415  start-up of all other commands

    return planner


def _gangs() -> click.Command:
    from gputopo.cli.gangs import gangs  # noqa: PLC0415  start-up of all other commands

    return gangs


def _release() -> click.Command:
    from gputopo.cli.release import release  # noqa: PLC0415  start-up of all other commands

    return release


class _LazyCommand(NamedTuple):
    load: Callable[[], click.Command]
    summary: str  # the first sentence of the command's own help, so that a list of commands imports none


# Commands that are imported when they are asked for.
LAZY_COMMANDS = {
    "agent": _LazyCommand(_agent, "Publish this node's GPUs: labels on the Node, and the GPUs allocated to each pod."),
    "extender": _LazyCommand(_extender, "Serve kube-scheduler: which nodes suit a GPU pod, and how well."),
    "gangs": _LazyCommand(
        _gangs, "List the gangs of a cluster: who gathers, waits, has places or runs; those in trouble first."
    ),
    "observe": _LazyCommand(
        _observe, "Watch how the cluster's own schedulers place GPU pods, and tell what each placement cost."
    ),
    "planner": _LazyCommand(
        _planner, "Plan gangs: pods that start together or not at all, each pinned to its place and let go at once."
    ),
    "release": _LazyCommand(
        _release,
        "Let pods go that gputopo's gate holds, without a place: their scheduler takes them as it takes any others.",
    ),
    "replay": _LazyCommand(_replay, "Make the decisions of FILE again, and say which come out otherwise."),
    "scheduler-config": _LazyCommand(
        _scheduler_config, "Print the KubeSchedulerConfiguration that calls the extender, or check one that is in use."
    ),
}


class _Commands(click.Group):
    """The commands, some of them imported late. A command that cannot import a package names the extra to install."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            message = missing_extra_message(ctx.invoked_subcommand, error.name)
            if message is None:
                raise
            exit_with_error(f"{ctx.invoked_subcommand}: {message}")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return LAZY_COMMANDS[cmd_name].load() if cmd_name in LAZY_COMMANDS else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        late = {name: click.Command(name, help=each.summary) for name, each in LAZY_COMMANDS.items()}
        click.Group(commands={**self.commands, **late}).format_commands(ctx, formatter)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gputopo")
def main() -> None:
    """Show the shape of a GPU machine: NVLink islands, NUMA nodes, PCIe, NICs and what is broken.

    \b
    Examples:
      gputopo show                                  this machine
      nvidia-smi topo -m | gputopo show --from -    any machine whose matrix you can paste
      gputopo show --from dgx-a100 -o svg > a.svg   a picture of a recorded machine
      kubectl get node N -o json | gputopo show --from -

    \b
    Exit codes: 0 fine; 1 degraded hardware found (with --check); 2 bad input or usage, or the
    command needs an extra that is not installed; 3 no GPU or driver here; 4 the cluster cannot
    be reached, refuses, or does not have it.
    """
    # The interpreter would search all that is left for garbage on its way out: 7 ms for what the kernel takes at once.
    click.get_current_context().call_on_close(gc.freeze)


@main.command()
@_FROM
@_NODE
@cluster_options
@click.option("-o", "--output", type=click.Choice(FORMATS), default="tree", show_default=True, help="What to print.")
@_ASCII
@click.option("--check", is_flag=True, help="Exit with 1 if a link, a lane or a GPU is worse than it should be.")
def show(*, source: str | None, output: str, ascii_only: bool, check: bool, **of_cluster: str | None) -> None:
    """Show the topology of this machine, of another one, or of a node of the cluster.

    \b
    Examples:
      gputopo show
      gputopo show --check || echo "call the vendor"
      gputopo show --from topo.txt -o json | jq .islands
      gputopo show --from dgx-1 -o matrix --ascii
      gputopo show --node gpu-7
    """
    topology = _cluster_topology(source, **of_cluster) or _topology(source)
    from gputopo.render import RenderError, renderer  # noqa: PLC0415  start-up of --help and --version

    try:
        write_out(renderer(output, ascii_only=ascii_only or not supports_unicode(), paint=terminal_paint())(topology))
    except RenderError as error:
        exit_with_error(f"-o {output}: {error}")
    if check and topology.degraded:
        sys.exit(DEGRADED)


@main.command()
@_FROM
@click.option(
    "--mirror",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Whether to write the nvidia.com/ labels that other tools select on.",
)
@click.option("--annotations", is_flag=True, help="Print the annotation too.")
def labels(source: str | None, mirror: str, annotations: bool) -> None:
    """Print the labels that the agent would publish, one `key=value` a line; caveats go to standard error.

    \b
    Examples:
      gputopo labels
      gputopo labels --from dgx-a100 --mirror off
      kubectl label --overwrite node N $(gputopo labels --from topo.txt)      no agent needed
    """
    from gputopo.render import RenderError  # noqa: PLC0415  other commands do without
    from gputopo.render.label_lines import render_labels  # noqa: PLC0415

    topology = _topology(source)
    for problem in topology.problems:
        click.echo(f"gputopo: {problem.what}: {problem.why}", err=True)
    try:
        write_out(render_labels(topology, mirrors=mirror == "auto", annotations=annotations))
    except RenderError as error:
        exit_with_error(str(error))


@main.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write here instead of standard output.")
@click.option("--scrub-uuids", is_flag=True, help="Replace GPU UUIDs by made-up ones that keep their relations.")
def record(output: str | None, scrub_uuids: bool) -> None:
    """Record what the driver, nvidia-smi and sysfs say here, as one JSON document: the attachment of a bug report.

    Serial numbers and host names are always taken out.

    \b
    Examples:
      gputopo record -o node.json && gputopo show --from node.json
      gputopo record --scrub-uuids | gzip > for-the-vendor.json.gz
    """
    from agent.recording.io import dump_snapshot  # noqa: PLC0415
    from agent.recording.probe import probe_machine  # noqa: PLC0415  imports what talks to the driver
    from agent.recording.scrub import scrub_snapshot  # noqa: PLC0415

    text = dump_snapshot(scrub_snapshot(probe_machine(), uuids=scrub_uuids))
    if output is None:
        write_out(text)
    else:
        write_file(output, text)


@main.command()
@click.argument("before", required=False)
@click.argument("after", required=False)
@_NODE
@cluster_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there is a difference.")
def diff(*, before: str | None, after: str | None, exit_code: bool, **of_cluster: str | None) -> None:
    """Compare two machines, or a recorded one with this one: BEFORE and AFTER are what `--from` takes.

    With --node, what that node carries takes the place of BEFORE.

    \b
    Examples:
      gputopo diff yesterday.json                   what changed on this machine since
      gputopo diff dgx-a100 my-node.json
      gputopo diff --node $NODE_NAME                what is published of this machine, and what is so
    """
    if of_cluster["node"] is not None and after is None:
        before, after = None, before  # the only machine named is what the node is compared with
    first = _cluster_topology(before, **of_cluster)
    if first is None and before is None:
        raise click.UsageError("say with what to compare: BEFORE, or --node NAME")
    from gputopo.render.topology_diff import render_changes  # noqa: PLC0415
    from gputopo.topology_diff import topology_changes  # noqa: PLC0415  other commands do without

    found = topology_changes(first or _topology(before), _topology(after))
    write_out(render_changes(found, paint=terminal_paint()))
    if found and exit_code:
        sys.exit(DEGRADED)


@main.command()
@click.argument("a", type=int)
@click.argument("b", type=int)
@_FROM
@_ASCII
def path(a: int, b: int, source: str | None, ascii_only: bool) -> None:
    """Say how GPUs A and B talk to each other, at what bandwidth, and why.

    \b
    Examples:
      gputopo path 0 5
      gputopo path 0 7 --from dgx-1
    """
    from gputopo.model import ModelError  # noqa: PLC0415  start-up of --help and --version
    from gputopo.paths import find_path as path_between  # noqa: PLC0415
    from gputopo.render.path import render_path  # noqa: PLC0415

    topology = _topology(source)
    try:
        found = path_between(topology, a, b)
    except ModelError as error:
        exit_with_error(str(error))
    write_out(render_path(found, ascii_only=ascii_only or not supports_unicode()))


@main.command()
def machines() -> None:
    """List the machines that come with gputopo, for `--from`."""
    from agent.recording import bundled as recorded  # noqa: PLC0415  reads the file system

    for machine in recorded.list_machines(recorded.bundled_directory()):
        click.echo(f"{machine.name:<34} {', '.join(machine.aliases):<26} {machine.title}")


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      gputopo completion bash > /etc/bash_completion.d/gputopo
      eval "$(gputopo completion zsh)"
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415  only this command

    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover  the choice above is click's own list
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(main, {}, "gputopo", "_GPUTOPO_COMPLETE").source())


for _command in (*COMMANDS, policy, what_if, why):
    main.add_command(_command)


def _cluster_topology(
    source: str | None, *, node: str | None, kubeconfig: str | None, context: str | None
) -> NodeTopology | None:
    """The topology of the node asked for; None where none is."""
    if node is None:
        return None
    if source is not None:
        raise click.UsageError(f"both --node {node} and {source}: give one of the two")
    return topology_of_node(node, kubeconfig, context)


def _topology(source: str | None) -> NodeTopology:
    """The topology asked for, or the end of the program with advice."""
    from agent.recording.inputs import InputError, read_observation  # noqa: PLC0415  start-up of --help and --version

    if source is None:
        from agent.recording.probe import probe_machine  # noqa: PLC0415  imports what talks to the driver
        from agent.recording.topology import observe_snapshot  # noqa: PLC0415

        seen = observe_snapshot(probe_machine())
    else:
        try:
            seen = read_observation(_read(source))
        except InputError as error:
            exit_with_error(f"{source}: {error}")
    if not seen.topology.gpus:
        exit_with_error(f"{seen.advice}\nTo look at another machine: gputopo show --from NAME ({_names()})", NO_GPU)
    return seen.topology


def _read(source: str) -> str:
    """The text of a file, of standard input, or of a machine that comes along."""
    from agent.recording.inputs import decode_text  # noqa: PLC0415  start-up of --help and --version

    known = source == "-" or os.path.exists(source)  # noqa: PTH110  pathlib costs 8 ms of start-up
    return decode_text(read_bytes(source if known else _recorded(source)))


def _recorded(name: str) -> str:
    """The file of a recorded machine."""
    from agent.recording import bundled as recorded  # noqa: PLC0415  only for a name

    snapshot = recorded.find_recording(name, recorded.bundled_directory())
    if snapshot is None:
        exit_with_error(f"there is no file {name!r} and no machine of that name comes with gputopo ({_names()})")
    return snapshot


def _names() -> str:
    from agent.recording import bundled as recorded  # noqa: PLC0415  only for a message

    return ", ".join(
        sorted(alias for each in recorded.list_machines(recorded.bundled_directory()) for alias in each.aliases)
    )


def run() -> None:
    """The console script."""
    run_program(main)


main.add_command(simulate_command(_topology))
