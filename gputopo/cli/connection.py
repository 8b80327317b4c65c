"""Connect a command to a cluster or to a file of its objects, and add its options. Heavy imports are in functions.

Exit code 4: the cluster cannot be reached, denies access, or does not have the object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gputopo.cli import complete
from gputopo.cli.output import print_unreadable
from gputopo.cli.progress import input_progress
from gputopo.cli.terminal import NO_CLUSTER, exit_with_error, read_packed
from gputopo.cluster_kinds import CLUSTER_FILE_KINDS

if TYPE_CHECKING:
    from gputopo.kube.client import Kube
    from gputopo.kube.rbac import Role

_SWITCH_S = 0.05  # how long a thread that computes may make the others wait
_FILE_HINT = "; to read a file of the objects of a cluster instead, use --from FILE (see --help)"
HOW_TO_INCLUDE = f"is not known; to include them: kubectl get {CLUSTER_FILE_KINDS} -A -o json"
_NO_PODS = f"the file has no Pods: which GPUs they request, and which of them wait, {HOW_TO_INCLUDE}"
_Command = TypeVar("_Command", bound=Callable[..., Any])


def cluster_options(command: _Command) -> _Command:
    """Add kubectl's options ``--kubeconfig`` and ``--context``."""
    for option in (
        click.option(
            "--context",
            metavar="NAME",
            shell_complete=complete.contexts,
            help="The context of the kubeconfig; default: its current context. A pod's ServiceAccount has no contexts.",
        ),
        click.option(
            "--kubeconfig",
            metavar="FILE",
            shell_complete=complete.files,
            help="The kubeconfig file; default: KUBECONFIG, else ~/.kube/config, else, in a pod, its ServiceAccount.",
        ),
    ):
        command = option(command)
    return command


# Not in the help of the option, where the command would be folded, and could not be copied.
FILE_EPILOG = f"""\b
The file of --from:
  kubectl get -A -o json \\
    {CLUSTER_FILE_KINDS} \\
    > cluster.json
"""


def file_option(command: _Command) -> _Command:
    """Add ``--from FILE``: a cluster as kubectl prints it, instead of the cluster of the kubeconfig."""
    return click.option(
        "--from",
        "source",
        metavar="FILE|-",
        shell_complete=complete.files,
        help="Instead of a cluster: a file of its objects; the command that prints it is below.",
    )(command)


def cluster_options_text(kubeconfig: str | None, context: str | None, source: str | None = None) -> str:
    """Return the options that name the cluster, as a command in a hint needs them: ``" --from c.json"``."""
    from shlex import quote  # noqa: PLC0415  only for a hint

    from gputopo.render.wording import escape_invisible  # noqa: PLC0415  only for a hint

    named = (("--kubeconfig", kubeconfig), ("--context", context), ("--from", source))
    return "".join(f" {option} {escape_invisible(quote(value))}" for option, value in named if value is not None)


@contextmanager
def connected_cluster(
    kubeconfig: str | None, context: str | None, role: Role | None = None, source: str | None = None
) -> Iterator[Kube]:
    """Connect to a cluster with the rights of ``role``, or read the file ``source``.

    An error of the API server or of the file exits with its message.
    """
    from gputopo.kube.errors import ConfigError, ForbiddenError, KubeError  # noqa: PLC0415
    from gputopo.kube.rbac import READER  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.selectors import SelectorError  # noqa: PLC0415

    wanted = role or READER
    try:
        kube = _connection(wanted, kubeconfig, context, source)
        try:
            yield kube
        finally:
            kube.close()
            print_unreadable(kube.unreadable)
    except SelectorError as error:
        exit_with_error(str(error))
    except KubeError as error:
        other = _FILE_HINT if isinstance(error, ConfigError) and _takes_file() else ""
        click.echo(f"gputopo: {error}{other}", err=True)
        if isinstance(error, ForbiddenError):
            click.echo(f"this command needs a ClusterRole with {_rights(wanted)}", err=True)
        sys.exit(NO_CLUSTER)


def _takes_file() -> bool:
    """Return whether the command that runs has the option ``--from`` for a cluster; that of `show` is of a machine."""
    context = click.get_current_context(silent=True)
    options = () if context is None else context.command.params
    return any("--from" in each.opts and each.metavar == "FILE|-" for each in options)


def _connection(role: Role, kubeconfig: str | None, context: str | None, source: str | None) -> Kube:
    if source is None:
        from gputopo.kube.connect import connect  # noqa: PLC0415  a file needs no credentials

        return connect(role, kubeconfig, context)
    from gputopo.kube.cluster_file import ClusterFileError, FileKube  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.rbac import PODS  # noqa: PLC0415

    for name, value in (("--kubeconfig", kubeconfig), ("--context", context)):
        if value is not None:
            raise click.UsageError(f"--from and {name} exclude each other")
    try:
        text = read_packed(source)
        with input_progress(source, len(text)):
            kube = FileKube(text, role)
    except ClusterFileError as error:
        exit_with_error(f"{source}: {error}")
    if not kube.lists(PODS):
        click.echo(f"gputopo: {_NO_PODS}", err=True)
    return kube


@contextmanager
def listing_cluster(
    kubeconfig: str | None, context: str | None, role: Role | None = None, source: str | None = None
) -> Iterator[Kube]:
    """Connect as ``connected_cluster`` does, for lists only: without garbage collection until the click command ends.

    Nearly all objects stay until then: to search them for cycles would take a quarter of the time. Without a click
    command, the garbage collection resumes with the end of the context. Threads that read lists take turns less often
    than is usual, which saves 5 %.
    """
    import gc  # noqa: PLC0415  start-up of all other commands

    interval = sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with connected_cluster(kubeconfig, context, role, source) as kube:
            yield kube
    finally:
        sys.setswitchinterval(interval)
        command = click.get_current_context(silent=True)
        if command is None:
            _resume_garbage_collection()
        else:
            command.call_on_close(_resume_garbage_collection)


def _resume_garbage_collection() -> None:
    import gc  # noqa: PLC0415  start-up of all other commands

    gc.freeze()  # else the next allocation starts a search of all objects of the lists
    gc.enable()


def _rights(role: Role) -> str:
    """Return the rights as a sentence: "get, list of nodes; list of pods"."""
    rights = ((", ".join(verbs), each.rbac_name, each.group) for each, verbs in role.verbs.items())
    return "; ".join(f"{verbs} of {plural}{f'.{group}' if group else ''}" for verbs, plural, group in rights)
