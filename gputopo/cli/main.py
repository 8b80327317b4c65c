"""The command line: the commands, and the modules that define them. A module is imported when its command is used.

To add a command: write its module in this package, and add it to ``COMMANDS``.

Exit codes: 0 fine; 1 degraded hardware found, with `--check`; 2 bad input or usage, or the command needs an extra that
is not installed; 3 no GPU or driver here; 4 the cluster cannot be reached, denies access, or does not have
the object; 5 the input is damaged or incomplete; 70 an internal error; 130 ended by Ctrl-C.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import NamedTuple

import click

from gputopo import __version__
from gputopo.cli.extras import missing_extra_message
from gputopo.cli.terminal import INTERRUPTED, exit_with_error, near_names_text


class Command(NamedTuple):
    """A command: ``name`` in ``module``."""

    module: str
    name: str
    summary: str  # the first sentence of its help: `gputopo --help` imports no command

    def load(self) -> click.Command:
        """Return the click command."""
        command: click.Command = getattr(import_module(self.module), self.name)
        return command


COMMANDS = {
    "agent": Command(
        "agent.daemon.command",
        "agent",
        "Publish this node's GPUs: labels on the Node, and the GPUs allocated to each pod.",
    ),
    "cleanup": Command(
        "gputopo.cli.cleanup",
        "cleanup",
        "Remove from a cluster everything that the agents wrote.",
    ),
    "completion": Command("gputopo.cli.completion", "completion", "Print the completion script of a shell."),
    "diff": Command(
        "gputopo.cli.show",
        "diff",
        "Compare two machines, or a recording with this machine.",
    ),
    "extender": Command(
        "scheduler_core.extender.command",
        "extender",
        "Serve kube-scheduler as an HTTP extender: filter and score nodes for GPU pods.",
    ),
    "gangs": Command(
        "gputopo.cli.gangs",
        "gangs",
        "List the gangs of a cluster, their phases and problems.",
    ),
    "labels": Command(
        "gputopo.cli.show",
        "labels",
        "Print the labels that the agent would publish.",
    ),
    "machines": Command("gputopo.cli.show", "machines", "List the bundled example machines, for `--from`."),
    "nodes": Command(
        "gputopo.cli.cluster",
        "nodes",
        "List the GPU nodes of a cluster: free GPUs and faults.",
    ),
    "observe": Command(
        "gputopo.cli.observe",
        "observe",
        "Report the cost of other schedulers' GPU placements.",
    ),
    "path": Command("gputopo.cli.show", "path", "Show how GPUs A and B are connected, and the bandwidth."),
    "planner": Command(
        "scheduler_core.planner.command",
        "planner",
        "Plan gangs: pods that start together or not at all, each pinned to its place and ungated.",
    ),
    "pods": Command(
        "gputopo.cli.cluster",
        "pods",
        "List running GPU pods, worst placed first.",
    ),
    "policy": Command(
        "gputopo.cli.policy",
        "policy",
        "Check policy files, and show their effective values.",
    ),
    "preemptions": Command(
        "gputopo.cli.preemptions",
        "preemptions",
        "List the pods that are evicted for gangs, and what that costs.",
    ),
    "record": Command(
        "gputopo.cli.show",
        "record",
        "Record this machine's hardware as JSON, for bug reports.",
    ),
    "release": Command(
        "gputopo.cli.release",
        "release",
        "Remove gputopo's scheduling gate from pods.",
    ),
    "replay": Command(
        "gputopo.cli.replay",
        "replay",
        "Replay the recorded decisions of an extender.",
    ),
    "scheduler-config": Command(
        "gputopo.cli.config",
        "scheduler_config",
        "Print or check the KubeSchedulerConfiguration.",
    ),
    "show": Command("gputopo.cli.show", "show", "Show the topology of a machine or of a cluster node."),
    "simulate": Command(
        "gputopo.cli.simulate",
        "simulate",
        "Simulate a workload with several placement policies.",
    ),
    "ui": Command(
        "gputopo.cli.ui",
        "ui",
        "Show the GPUs of a cluster in a browser.",
    ),
    "ui-server": Command(
        "gputopo.cli.ui_server",
        "ui_server",
        "Serve the pages of `gputopo ui` to the users of a cluster.",
    ),
    "what-if": Command(
        "gputopo.cli.what_if",
        "what_if",
        "Show where a pod would be placed now, and on which GPUs.",
    ),
    "why": Command(
        "gputopo.cli.why",
        "why",
        "Explain why a GPU pod or a gang is placed, or is not.",
    ),
}


_MEANT = {"--machine": "--from", "--input": "--from", "--source": "--from"}  # options that people try, and ours


class _Commands(click.Group):
    """The group of ``COMMANDS``. If a package is not installed, the error message names the extra to install.

    `gputopo help` and `gputopo help COMMAND` are the same as `--help`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            meant = _MEANT.get(error.option_name, "")
            if error.ctx is None or not any(meant in each.opts for each in error.ctx.command.params):
                raise
            other = f"No such option {error.option_name!r}. Did you mean {meant!r}?"
            raise click.NoSuchOption(error.option_name, other, ctx=error.ctx) from None
        except ModuleNotFoundError as error:
            message = missing_extra_message(ctx.invoked_subcommand, error.name)
            if message is None:
                raise
            exit_with_error(f"{ctx.invoked_subcommand}: {message}")
        except KeyboardInterrupt:
            exit_with_error("interrupted", INTERRUPTED)  # not 1, click's code, which means degraded hardware

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            message = f"{error.message.rstrip('.')}{near_names_text(args[0], COMMANDS)}"
            raise click.UsageError(message, ctx) from None

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        return COMMANDS[cmd_name].load() if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        summaries = {name: click.Command(name, help=each.summary) for name, each in COMMANDS.items()}
        click.Group(commands=summaries).format_commands(ctx, formatter)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gputopo")
def main() -> None:
    """Show the topology of a GPU machine: NVLink islands, NUMA nodes, PCIe, NICs and faults.

    \b
    Examples:
      gputopo show                                  this machine
      nvidia-smi topo -m | gputopo show --from -    any machine, from its pasted matrix
      gputopo show --from dgx-a100 -o svg > a.svg   a drawing of a bundled example machine
      kubectl get node N -o json | gputopo show --from -

    \b
    Exit codes: 0 fine; 1 degraded hardware found (with --check); 2 bad input or usage, or the
    command needs an extra that is not installed; 3 no GPU or driver here; 4 the cluster cannot
    be reached, denies access, or does not have the object; 5 the input is damaged or incomplete
    (labels, show --check); 70 an internal error of gputopo, please report it; 130 ended by
    Ctrl-C. With every code but 0, standard error has the reason.
    """
    # Without this the interpreter runs a garbage collection when it exits, which takes 7 ms.
    click.get_current_context().call_on_close(gc.freeze)
