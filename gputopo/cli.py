"""The command line: options in, one call, text out. What is heavy is imported by the command that needs it.

Exit codes: 0 fine; 1 degraded hardware found, with `--check`; 2 bad input or usage; 3 no GPU or driver here; 4 the
cluster cannot be reached, refuses, or does not have what was asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

from gputopo import __version__
from gputopo.cluster_cli import COMMANDS, cluster_options, topology_of_node

if TYPE_CHECKING:
    from gputopo.model import NodeTopology

DEGRADED, BAD_INPUT, NO_GPU = 1, 2, 3
FORMATS = ("tree", "matrix", "json", "yaml", "labels", "dot", "svg", "nccl-xml", "mermaid")  # gputopo.render.FORMATS

_FROM = click.option(
    "--from",
    "source",
    metavar="FILE|NAME|-",
    help="Read a recorded machine, a pasted `nvidia-smi topo -m`, a Node as `kubectl get node -o json` prints it, an "
    "NCCL topology XML, or a machine that comes with gputopo, instead of this machine. `-` is standard input.",
)
_NODE = click.option("--node", metavar="NAME", help="Read what this node of the cluster carries.")
_ASCII = click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    Exit codes: 0 fine; 1 degraded hardware found (with --check); 2 bad input or usage;
    3 no GPU or driver here; 4 the cluster cannot be reached, refuses, or does not have it.
    """


@main.command()
@_FROM
@_NODE
@cluster_options
@click.option("-o", "--output", type=click.Choice(FORMATS), default="tree", show_default=True, help="What to print.")
@_ASCII
@click.option("--check", is_flag=True, help="Exit with 1 if a link, a lane or a GPU is worse than it should be.")
def show(*, source: str | None, output: str, ascii_only: bool, check: bool, **of_cluster: str | None) -> None:
    """Show the topology of this machine, of a recorded one, or of a node of the cluster.

    \b
    Examples:
      gputopo show
      gputopo show --check || echo "call the vendor"
      gputopo show --from topo.txt -o json | jq .islands
      gputopo show --from dgx-1 -o matrix --ascii
      gputopo show --node gpu-7
    """
    topology = _of_cluster(source, **of_cluster) or _topology(source)
    from gputopo.render import RenderError, renderer  # noqa: PLC0415  start-up of --help and --version

    try:
        _print(renderer(output, ascii_only=ascii_only, paint=_paint())(topology))
    except RenderError as error:
        _fail(BAD_INPUT, f"-o {output}: {error}")
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
    """Print the labels that the agent would publish, one `key=value` a line.

    \b
    Examples:
      gputopo labels
      gputopo labels --from dgx-a100 --mirror off
      kubectl label node N $(gputopo labels --from topo.txt)      no agent needed
    """
    from gputopo.render import RenderError  # noqa: PLC0415  other commands do without
    from gputopo.render.label_lines import render_labels  # noqa: PLC0415

    try:
        _print(render_labels(_topology(source), mirrors=mirror == "auto", annotations=annotations))
    except RenderError as error:
        _fail(BAD_INPUT, str(error))


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
    from agent.probe import probe  # noqa: PLC0415  imports what talks to the driver
    from agent.scrub import scrub  # noqa: PLC0415
    from agent.snapshot_io import dump_snapshot  # noqa: PLC0415

    text = dump_snapshot(scrub(probe(), uuids=scrub_uuids))
    if output is None:
        _print(text)
    else:
        _write(output, text)


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
    first = _of_cluster(before, **of_cluster)
    if first is None and before is None:
        raise click.UsageError("say with what to compare: BEFORE, or --node NAME")
    from gputopo.changes import changes  # noqa: PLC0415  other commands do without
    from gputopo.render.changes import render_changes  # noqa: PLC0415

    found = changes(first or _topology(before), _topology(after))
    _print(render_changes(found, paint=_paint()))
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
    from gputopo.paths import path as path_between  # noqa: PLC0415
    from gputopo.render.path import render_path  # noqa: PLC0415

    topology = _topology(source)
    try:
        found = path_between(topology, a, b)
    except ModelError as error:
        _fail(BAD_INPUT, str(error))
    _print(render_path(found, ascii_only=ascii_only))


@main.command()
def machines() -> None:
    """List the recorded machines that come with gputopo, for `--from`."""
    from agent import machines as recorded  # noqa: PLC0415  reads the file system

    for machine in recorded.machines(recorded.folder()):
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


for _command in COMMANDS:
    main.add_command(_command)


def _of_cluster(
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
    from agent.documents import DocumentError, read  # noqa: PLC0415  start-up of --help and --version

    if source is None:
        from agent.observe import observe  # noqa: PLC0415
        from agent.probe import probe  # noqa: PLC0415  imports what talks to the driver

        seen = observe(probe())
    else:
        try:
            seen = read(_read(source))
        except DocumentError as error:
            _fail(BAD_INPUT, f"{source}: {error}")
    if not seen.topology.gpus:
        _fail(NO_GPU, f"{seen.advice}\nTo look at a recorded machine: gputopo show --from NAME ({_names()})")
    return seen.topology


def _read(source: str) -> str:
    """The text of a file, of standard input, or of a recorded machine."""
    from agent.documents import DocumentError, text_of  # noqa: PLC0415  start-up of --help and --version

    try:
        if source == "-":
            return text_of(sys.stdin.buffer.read())
        with open(source if os.path.exists(source) else _recorded(source), "rb") as file:  # noqa: PTH110,PTH123  see _write
            return text_of(file.read())
    except OSError as error:
        _fail(BAD_INPUT, f"cannot read {source}: {error.strerror}")
    except DocumentError as error:
        _fail(BAD_INPUT, f"{source}: {error}")


def _recorded(name: str) -> str:
    """The file of a recorded machine."""
    from agent import machines as recorded  # noqa: PLC0415  only for a name

    snapshot = recorded.find(name, recorded.folder())
    if snapshot is None:
        _fail(BAD_INPUT, f"there is no file {name!r} and no recorded machine of that name ({_names()})")
    return snapshot


def _names() -> str:
    from agent import machines as recorded  # noqa: PLC0415  only for a message

    return ", ".join(sorted(alias for each in recorded.machines(recorded.folder()) for alias in each.aliases))


def _paint() -> Callable[[str, str], str]:
    """How roles of text are coloured: not at all where nobody looks or NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return lambda _, text: text
    return _style


# Colours that people with colour-blindness tell apart, and that show on light and dark terminals alike.
_ISLANDS = ("cyan", "yellow", "magenta", "green", "blue", "bright_cyan", "bright_yellow", "bright_magenta")


def _style(role: str, text: str) -> str:
    """The text in the colours of its role (the roles are listed at ``gputopo.render.wording.plain``)."""
    kind, _, number = role.partition("-")
    if kind == "island":
        return click.style(text, fg=_ISLANDS[int(number) % len(_ISLANDS)], bold=True)
    if kind in ("bad", "good"):
        return click.style(text, fg="red" if kind == "bad" else "green", bold=kind == "bad")
    return (
        click.style(text, bold=True) if kind == "title" else click.style(text, dim=kind in ("dim", "frame", "unknown"))
    )


def _write(name: str, text: str) -> None:
    """Write a file whole or not at all."""
    from pathlib import Path  # noqa: PLC0415  8 ms that reading does without

    output = Path(name)
    partial = output.with_name(output.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(output)
    except OSError as error:
        partial.unlink(missing_ok=True)
        _fail(BAD_INPUT, f"cannot write {output}: {error.strerror}")


def _print(text: str) -> None:
    click.echo(text, nl=not text.endswith("\n"))


def _fail(code: int, message: str) -> NoReturn:
    click.echo(f"gputopo: {message}", err=True)
    sys.exit(code)
