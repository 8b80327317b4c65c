"""Pods of a file, for ``gputopo why -f`` and ``gputopo what-if``. Heavy imports are in the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from gputopo.cli.terminal import exit_with_error, read_text

if TYPE_CHECKING:
    from gputopo.cli.gangs import GangQuery
    from scheduler_core.planner.report.manifest_gang import ManifestGang
    from scheduler_core.request.full_pod import FullPod
    from scheduler_core.request.manifest import ManifestPod

_MAX_NAMED = 5  # pods of a file that are not considered


class ManifestPods(NamedTuple):
    """The pods of a file, and the one that is explained."""

    filename: str
    pods: tuple[ManifestPod, ...]
    first: int  # the place of the first pod that requests GPUs, or else of the first pod

    @property
    def pod(self) -> ManifestPod:
        """Return the pod that is explained."""
        return self.pods[self.first]


def read_manifest_pods(filename: str) -> ManifestPods:
    """Return the pods of a file. Exit with an error if it has none."""
    from scheduler_core.request.manifest import ManifestError, parse_manifest  # noqa: PLC0415  YAML: 20 ms, and only -f needs it

    try:
        pods = parse_manifest(read_text(filename, "a Pod, Job, Deployment ... in YAML or JSON"))
    except ManifestError as error:
        exit_with_error(f"{filename}: {error}")
    first = next((place for place, pod in enumerate(pods) if _requests_gpus(pod.pod)), 0)
    return ManifestPods(filename, tuple(pods), first)


def manifest_gang(found: ManifestPods, namespace: str, *, alone: bool = False) -> ManifestGang | None:
    """Return the gang of the pod that is explained, if further pods of the file belong to it; None: it is alone.

    ``alone``: the pod is explained without its gang. Pods with GPUs that are not considered are named on standard
    error.
    """
    others = [place for place, each in enumerate(found.pods) if place != found.first and _requests_gpus(each.pod)]
    if not others:  # the common case: the planner is not imported
        return None
    from gputopo.render.report import listed  # noqa: PLC0415  start-up of all other commands
    from gputopo.render.wording import escape_invisible, shorten_names  # noqa: PLC0415
    from scheduler_core.planner.report.manifest_gang import gang_of_manifest  # noqa: PLC0415

    gang = None if alone else gang_of_manifest([each.pod for each in found.pods], found.first, namespace)
    members = () if gang is None else gang.pods
    left_out = [found.pods[place].pod.metadata.name or f"pod {place + 1}" for place in others if place not in members]
    if left_out:
        names = listed([escape_invisible(shorten_names(name)) for name in left_out], _MAX_NAMED)
        click.echo(
            f"gputopo: {found.filename} has further pods with GPUs, which are not considered: {names}; to explain one, "
            "put it into a file of its own",
            err=True,
        )
    return gang


def explain_manifest_gang(manifest: ManifestPods, gang: ManifestGang, query: GangQuery, output: str) -> None:
    """Print where the planner would place the gang of a manifest, whose pods do not exist yet."""
    from gputopo.cli.gangs import why_gang  # noqa: PLC0415  start-up of all other commands

    why_gang(query, output, [manifest.pods[place].pod for place in gang.pods])


def _requests_gpus(pod: FullPod) -> bool:
    """Return whether a pod requests GPUs, also in a way that is invalid."""
    from scheduler_core.request.pod_request import PodRequest, parse_request  # noqa: PLC0415  start-up of all other commands

    found = parse_request(pod)
    return not isinstance(found, PodRequest) or bool(found.profile.device_request.steps_by_resource)
