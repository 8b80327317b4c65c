"""The shell completions of arguments: machines and files, names of cluster objects, contexts, placement policies.

A completion prints no message and never fails: without a cluster, nothing is offered.
Heavy imports are in the functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from gputopo.kube.client import Kube

_TIMEOUT_S = 3.0  # a person waits for it; for a call, and for all calls together
_FILE_TIMEOUT_S = 10.0  # to read a file of the whole cluster
_MOST = 1000  # names offered at once
_KINDS = ("pod", "gang")
_CONTEXT = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_.:/@]{0,252}")  # "gke_a_b", "arn:aws:eks:a:1:cluster/b", "me@b"
_NAME = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}")


def machines_and_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the bundled example machines and the files that begin with ``incomplete``."""
    from agent.recording import bundled  # noqa: PLC0415  reads the file system

    found = bundled.list_machines(bundled.bundled_directory())
    names = sorted(name for each in found for name in (each.name, *each.aliases) if name.startswith(incomplete))
    # A shell offers either files or names: with names to offer, the files are listed here.
    files = [_item(each) for each in _files(incomplete)] if names else [_item(incomplete, "file")]
    return [*map(_item, names), *files]


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [_item(incomplete, "file")]


def nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the nodes of the cluster of the command, or of its file."""
    return _offered(ctx, incomplete, _node_names)


def pods(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the pods of the namespace of the command."""
    return _offered(ctx, incomplete, lambda kube: _pod_names(kube, ctx))


def gangs(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the gangs of the namespace of the command."""
    return _offered(ctx, incomplete, lambda kube: _gang_names(kube, ctx))


def namespaces(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the namespaces of the cluster, or those of the pods in a file."""
    return _offered(ctx, incomplete, _namespace_names)


def kind_and_name(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the kinds of ``gputopo why``, and after a kind and a space or "/" the pods or the gangs."""
    before = ctx.params.get("what") or ()
    if not before and "/" in incomplete:
        kind, _, name = incomplete.partition("/")
        names = next((offer for kinds, offer in _NAMES_OF if kind in kinds), None)
        return [] if names is None else [_item(f"{kind}/{each.value}") for each in names(ctx, parameter, name)]
    if not before:
        return [_item(kind) for kind in _KINDS if kind.startswith(incomplete)]
    names = next((offer for kinds, offer in _NAMES_OF if before[0] in kinds), None)
    return [] if names is None or len(before) > 1 else names(ctx, parameter, incomplete)


_NAMES_OF = ((("pod", "pods", "po"), pods), (("gang", "gangs"), gangs))


def contexts(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the contexts of the kubeconfig."""
    import io  # noqa: PLC0415  only here
    from contextlib import redirect_stderr  # noqa: PLC0415

    with redirect_stderr(io.StringIO()):
        try:
            from gputopo.kube.connect import context_names  # noqa: PLC0415  start-up of all other commands

            found = context_names(ctx.params.get("kubeconfig"))
        except Exception:  # noqa: BLE001  whatever is wrong, the person goes on typing
            return []
    return [_item(each) for each in found if each.startswith(incomplete) and _CONTEXT.fullmatch(each)][:_MOST]


def policies(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the placement policies of the simulation, for the last name of a list with commas."""
    from scheduler_core.simulation.policies import POLICIES  # noqa: PLC0415  start-up of all other commands

    before, comma, last = incomplete.rpartition(",")
    return [_item(f"{before}{comma}{name}") for name in POLICIES if name.startswith(last)]


def _item(value: str, kind: str = "plain") -> CompletionItem:
    from click.shell_completion import CompletionItem  # noqa: PLC0415  start-up of all other commands

    return CompletionItem(value, kind)


def _files(incomplete: str) -> Iterator[str]:
    import os  # noqa: PLC0415  only here

    folder, _, start = incomplete.rpartition("/")
    try:
        with os.scandir(f"{folder}/" if "/" in incomplete else ".") as entries:
            names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in entries)
    except OSError:
        return
    prefix = incomplete[: len(incomplete) - len(start)]
    yield from (f"{prefix}{name}" for name in names[:_MOST] if name.startswith(start))


def _offered(ctx: click.Context, incomplete: str, names: Callable[[Kube], list[str]]) -> list[CompletionItem]:
    import io  # noqa: PLC0415  only here
    from contextlib import redirect_stderr  # noqa: PLC0415
    from threading import Thread  # noqa: PLC0415

    found: list[str] = []

    def read_names() -> None:
        try:
            kube = _connection(ctx.params)
            try:
                found.extend(names(kube))
            finally:
                kube.close()
        except (Exception, SystemExit):  # noqa: BLE001  whatever is wrong, the person goes on typing
            return

    with redirect_stderr(io.StringIO()):  # a message would end up in the line that is being typed
        reading = Thread(target=read_names, daemon=True)
        reading.start()
        reading.join(_FILE_TIMEOUT_S if ctx.params.get("source") else _TIMEOUT_S)
    # A shell inserts a name as it is: only names that Kubernetes permits, so no "$(...)" of a file.
    return [_item(each) for each in sorted({*found}) if each.startswith(incomplete) and _NAME.fullmatch(each)][:_MOST]


def _connection(parameters: dict[str, Any]) -> Kube:
    from gputopo.kube.rbac import READER  # noqa: PLC0415  start-up of all other commands

    if (source := parameters.get("source")) is not None:
        from gputopo.cli.terminal import read_packed  # noqa: PLC0415
        from gputopo.kube.cluster_file import FileKube  # noqa: PLC0415

        if source == "-":
            raise OSError("standard input is the terminal")
        return FileKube(read_packed(source), READER)
    from gputopo.kube.connect import connect  # noqa: PLC0415

    return connect(READER, parameters.get("kubeconfig"), parameters.get("context")).with_timeout(_TIMEOUT_S)


def _node_names(kube: Kube) -> list[str]:
    from gputopo.kube.client import ListOptions  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.objects import PartialObject  # noqa: PLC0415
    from gputopo.kube.rbac import NODES  # noqa: PLC0415

    return [each.metadata.name for each in kube.list_objects(NODES, PartialObject, ListOptions(metadata_only=True))]


def _pod_names(kube: Kube, ctx: click.Context) -> list[str]:
    from gputopo.kube.client import ListOptions  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.objects import PartialObject  # noqa: PLC0415
    from gputopo.kube.rbac import PODS  # noqa: PLC0415

    query = ListOptions(_namespace(kube, ctx), metadata_only=True)
    return [each.metadata.name for each in kube.list_objects(PODS, PartialObject, query)]


def _gang_names(kube: Kube, ctx: click.Context) -> list[str]:
    from scheduler_core.planner.report.read import read_gang_names  # noqa: PLC0415  start-up of all other commands

    return read_gang_names(kube, _namespace(kube, ctx))


def _namespace_names(kube: Kube) -> list[str]:
    from gputopo.kube.client import ListOptions  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.objects import PartialObject  # noqa: PLC0415
    from gputopo.kube.rbac import COMPLETION, NAMESPACES, PODS  # noqa: PLC0415

    query = ListOptions(metadata_only=True)
    if kube.from_file:  # it has no Namespaces
        return [each.metadata.namespace or "" for each in kube.list_objects(PODS, PartialObject, query)]
    listed = kube.with_role(COMPLETION).list_objects(NAMESPACES, PartialObject, query)
    return [each.metadata.name for each in listed]


def _namespace(kube: Kube, ctx: click.Context) -> str:
    """Return the namespace of the command."""
    namespace: str | None = ctx.params.get("namespace")
    if namespace is not None:
        return namespace
    if kube.from_file:
        return "default"
    from gputopo.kube.connect import default_namespace  # noqa: PLC0415  start-up of all other commands

    return default_namespace(ctx.params.get("kubeconfig"), ctx.params.get("context"))
