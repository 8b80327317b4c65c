"""The commands about one machine: show, labels, diff, path, record and machines. Heavy imports are in the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gputopo.cli import complete
from gputopo.cli.connection import cluster_options
from gputopo.cli.progress import ProgressLine
from gputopo.cli.source import cluster_topology, name_uncertain_facts, topology_of
from gputopo.cli.terminal import (
    DEGRADED,
    INCOMPLETE,
    NO_GPU,
    exit_with_error,
    supports_unicode,
    terminal_paint,
    terminal_width,
    write_file,
    write_out,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gputopo.model import Degradation
    from gputopo.topology_diff import TopologyChange

FORMATS = ("tree", "matrix", "json", "yaml", "labels", "dot", "svg", "nccl-xml", "mermaid")  # gputopo.render.FORMATS


class _OnceOption(click.Option):
    """An option that may be given once: click would silently use the last value."""

    def __init__(self, *names: Any, **settings: Any) -> None:
        super().__init__(*names, **(settings | {"multiple": True}))

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        values = super().process_value(ctx, value)
        if len(values) > 1:
            raise click.UsageError(f"{self.opts[0]} is given {len(values)} times ({', '.join(values)}): name one", ctx)
        return values[0] if values else None


_FROM = click.option(
    "--from",
    "source",
    cls=_OnceOption,
    metavar="FILE|NAME|-",
    shell_complete=complete.machines_and_files,
    help="Read another machine instead of this one: a recording, the output of `nvidia-smi topo -m` or of "
    "`kubectl get node -o json`, an NCCL topology XML file, or the name of a bundled example machine. `-` is "
    "standard input.",
)
_MACHINE = click.argument("machine", required=False, shell_complete=complete.machines_and_files)
_NODE = click.option(
    "--node",
    metavar="NAME",
    shell_complete=complete.nodes,
    help="Read the topology annotation of this Node of the cluster.",
)
_MAX_NAMED = 3  # names in the message of an exit code
_ASCII = click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")


class _GpuIndex(click.ParamType[int]):
    """The index of a GPU: ``3``, ``GPU3``."""

    name = "gpu"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        digits = str(value).lower().removeprefix("gpu")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 4):
            self.fail(f"{str(value)[:60]!r} is not the index of a GPU; examples: 3, GPU3", param, ctx)
        return int(digits)


def _source(machine: str | None, source: str | None) -> str | None:
    """Return the machine to read: MACHINE or ``--from``."""
    if machine is not None and source is not None:
        raise click.UsageError(f"{machine} and --from {source} exclude each other")
    return machine if source is None else source


@click.command()
@_MACHINE
@_FROM
@_NODE
@cluster_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(FORMATS, case_sensitive=False),
    default="tree",
    show_default=True,
    help="What to print. matrix: as `nvidia-smi topo -m`, but distances between NICs are `?`, because gputopo does not "
    "read them, and the column GPU NUMA ID is only there if a GPU has a NUMA node of its own (Grace).",
)
@_ASCII
@click.option(
    "--check",
    is_flag=True,
    help="Exit with 1 if a link, a PCIe lane or a GPU is degraded, with 5 if the input is damaged.",
)
def show(
    *,
    machine: str | None,
    source: str | None,
    output: str,
    ascii_only: bool,
    check: bool,
    **from_cluster: str | None,
) -> None:
    """Show the topology of a machine or of a cluster node.

    Default: this machine. MACHINE is a value of `--from`.

    \b
    Examples:
      gputopo show
      gputopo show --check; test $? -eq 1 && echo "call the vendor"
      gputopo show --from topo.txt -o json | jq .islands
      gputopo show dgx-1 -o matrix --ascii
      gputopo show --node gpu-7
    """
    source = _source(machine, source)
    topology = cluster_topology(source, **from_cluster) or topology_of(source)
    from gputopo.render import RenderError, renderer  # noqa: PLC0415  start-up of --help and --version

    try:
        render = renderer(
            output, ascii_only=ascii_only or not supports_unicode(), paint=terminal_paint(), width=terminal_width()
        )
        write_out(render(topology))
    except RenderError as error:
        exit_with_error(f"-o {output}: {error}")
    if check and topology.degraded:
        exit_with_error(f"degraded: {_names_text(topology.degraded)}", DEGRADED)
    if check and (uncertain := name_uncertain_facts(topology)):
        exit_with_error(f"the input is damaged or incomplete ({uncertain} uncertain): health is unknown", INCOMPLETE)


def _names_text(facts: Sequence[Degradation | TopologyChange]) -> str:
    """Return the names of the first facts, for a message."""
    from gputopo.render.report import listed  # noqa: PLC0415  only for a message
    from gputopo.render.wording import escape_invisible  # noqa: PLC0415

    return escape_invisible(listed([each.what for each in facts], _MAX_NAMED))


@click.command()
@_MACHINE
@_FROM
@click.option(
    "--mirror",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="auto: also print the nvidia.com/ labels that other tools select on. off: only gputopo.io/ labels.",
)
@click.option("--annotations", is_flag=True, help="Also print the topology annotation.")
def labels(machine: str | None, source: str | None, mirror: str, annotations: bool) -> None:
    """Print the labels that the agent would publish.

    One `key=value` per line; warnings go to standard error. Labels that depend on what a damaged input does not show
    are left out, and the exit code is then 5: check it before you apply them.

    Default: this machine. MACHINE is a value of `--from`.

    \b
    Examples:
      gputopo labels
      gputopo labels dgx-a100 --mirror off
      l=$(gputopo labels --from topo.txt) && kubectl label --overwrite node N $l      no agent needed
    """
    from gputopo.render import RenderError  # noqa: PLC0415  start-up of the other commands
    from gputopo.render.label_lines import render_labels  # noqa: PLC0415

    topology = topology_of(_source(machine, source))
    for problem in topology.problems:
        click.echo(f"gputopo: {problem.what}: {problem.why}", err=True)
    try:
        write_out(render_labels(topology, mirrors=mirror == "auto", annotations=annotations))
    except RenderError as error:
        exit_with_error(str(error))
    if uncertain := name_uncertain_facts(topology):
        exit_with_error(
            f"the input is damaged or incomplete ({uncertain} uncertain): uncertain labels are left out",
            INCOMPLETE,
        )


@click.command()
@click.argument("before", required=False, shell_complete=complete.machines_and_files)
@click.argument("after", required=False, shell_complete=complete.machines_and_files)
@_NODE
@cluster_options
@click.option("--exit-code", is_flag=True, help="Exit with 1 if the machines differ.")
def diff(*, before: str | None, after: str | None, exit_code: bool, **from_cluster: str | None) -> None:
    """Compare two machines, or a recording with this machine.

    BEFORE and AFTER are values of `--from`. AFTER defaults to this machine. With --node, BEFORE is the topology
    annotation of that Node.

    \b
    Examples:
      gputopo diff yesterday.json                   what has changed on this machine
      gputopo diff dgx-a100 my-node.json
      gputopo diff --node $NODE_NAME                the published topology and the real one
    """
    if from_cluster["node"] is not None and after is None:
        before, after = None, before  # the node is compared with the only machine named
    first = cluster_topology(before, **from_cluster)
    if first is None and before is None:
        raise click.UsageError("specify BEFORE or --node NAME")
    from gputopo.render.topology_diff import render_changes  # noqa: PLC0415
    from gputopo.topology_diff import topology_changes  # noqa: PLC0415  start-up of the other commands

    found = topology_changes(first or topology_of(before), topology_of(after, stdin_option="the argument -"))
    write_out(render_changes(found, paint=terminal_paint()))
    if found and exit_code:
        exit_with_error(f"the machines differ: {_names_text(found)}", DEGRADED)


@click.command()
@click.argument("a", type=_GpuIndex())
@click.argument("b", type=_GpuIndex())
@_FROM
@_ASCII
def path(a: int, b: int, source: str | None, ascii_only: bool) -> None:
    """Show how GPUs A and B are connected, and the bandwidth.

    \b
    Examples:
      gputopo path 0 5
      gputopo path 0 7 --from dgx-1
    """
    from gputopo.model import ModelError  # noqa: PLC0415  start-up of --help and --version
    from gputopo.paths import find_path as path_between  # noqa: PLC0415
    from gputopo.render.path import render_path  # noqa: PLC0415

    topology = topology_of(source)
    try:
        found = path_between(topology, a, b)
    except ModelError as error:
        exit_with_error(str(error))
    write_out(render_path(found, ascii_only=ascii_only or not supports_unicode(), columns=terminal_width()))


@click.command()
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write to this file instead of standard output.")
@click.option("--scrub-uuids", is_flag=True, help="Replace each GPU UUID by a made-up UUID, the same one everywhere.")
def record(output: str | None, scrub_uuids: bool) -> None:
    """Record this machine's hardware as JSON, for bug reports.

    It contains the output of NVML, nvidia-smi and sysfs. Serial numbers and host names are always removed. Without a
    GPU the recording is written too, with exit code 3.

    \b
    Examples:
      gputopo record -o node.json && gputopo show --from node.json
      gputopo record --scrub-uuids | gzip > for-the-vendor.json.gz
    """
    from agent.recording.io import dump_snapshot  # noqa: PLC0415
    from agent.recording.probe import probe_machine  # noqa: PLC0415  imports NVML
    from agent.recording.scrub import scrub_snapshot  # noqa: PLC0415
    from agent.recording.topology import observe_snapshot  # noqa: PLC0415

    with ProgressLine("record") as shown:

        def show_source(name: str) -> None:
            shown.detail = name
            shown.draw()

        snapshot = probe_machine(before=show_source)
    text = dump_snapshot(scrub_snapshot(snapshot, uuids=scrub_uuids))
    if output is None:
        write_out(text)
    else:
        write_file(output, text)
    found = observe_snapshot(snapshot)
    if not found.topology.gpus:
        exit_with_error(f"this recording shows no GPU: {found.advice}", NO_GPU)


@click.command()
def machines() -> None:
    """List the bundled example machines, for `--from`.

    The columns are the name, its aliases and the title. A narrow terminal leaves out the names, which are longer:
    `--from` takes an alias as well.
    """
    from agent.recording import bundled as recorded  # noqa: PLC0415  reads the file system
    from gputopo.render.report import table_lines, text_table  # noqa: PLC0415  start-up of all other commands

    found = recorded.list_machines(recorded.bundled_directory())
    width = terminal_width()
    rows = [(each.name, ", ".join(each.aliases), each.title) for each in found]
    lines = [*table_lines(text_table((), rows))]
    if width is not None and max(map(len, lines)) > width:
        short = ((aliases or name, title) for name, aliases, title in rows)
        lines = [*table_lines(text_table((), short), columns=width)]
    click.echo("\n".join(lines))
