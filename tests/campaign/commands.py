"""The commands of the command line, on a cluster that lists hostile objects of one tenant."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.rbac import LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS, Resource
from tests.api_server import Answer, Asked, api_server
from tests.campaign.programs import NODES as HEALTHY_NODES
from tests.campaign.programs import REPORTS, node, pod

COMMANDS = (
    ("nodes",),
    ("nodes", "-o", "json"),
    ("pods",),
    ("gangs", "-A"),
    ("why", "pod", "asked", "-n", "team"),
    ("why", "gang", "llm", "-n", "team"),
)
_HEALTHY_PODS = [pod("asked", "team", 4), *(pod(f"w-{rank}", "team", 4, "llm") for rank in range(2))]
_HEALTHY: Mapping[Resource, Sequence[object]] = {
    NODES: [*HEALTHY_NODES, node("no-agent", {})],  # the pods of a node without agent are read one by one
    NODE_GPUS: REPORTS,
    PODS: _HEALTHY_PODS,
    RESERVATIONS: (),
    LEDGERS: (),
}


def command_faults(resource: Resource, hostile: Sequence[bytes]) -> list[str]:
    """Return the commands that fail, or lose another tenant's objects, if the cluster lists these objects too."""
    healthy = {each.plural: [json.dumps(item) for item in found] for each, found in _HEALTHY.items()}
    bad = [text.decode() for text in hostile]
    listed = healthy | {resource.plural: [*bad, *healthy.get(resource.plural, [])]}

    def answer(request: Asked) -> Answer:
        plural = request.path.rpartition("/")[2]
        if plural not in listed:
            return Answer({"message": "404 page not found"}, 404)
        found = healthy.get(plural, []) if "/namespaces/" in request.path else listed[plural]
        if "metadata.name=" in request.query.get("fieldSelector", ""):
            found = [json.dumps(_HEALTHY_PODS[0])]
        return Answer('{"metadata":{},"items":[' + ",".join(found) + "]}")

    with api_server(answer) as server, tempfile.TemporaryDirectory() as folder:
        config = server.kubeconfig(Path(folder) / "config")
        return [fault for command in COMMANDS if (fault := _fault(command, config)) is not None]


def _fault(command: tuple[str, ...], config: str) -> str | None:
    found = CliRunner().invoke(main.main, [*command, "--kubeconfig", config])
    if found.exit_code != 0:
        return f"{' '.join(command)}: exit {found.exit_code}: {found.stderr[-300:]} {found.exception!r}"
    expected = {"nodes": ("a", "b"), "gangs": ("llm",), "why": ("llm",) if command[1:2] == ("gang",) else ("asked",)}
    lost = [each for each in expected.get(command[0], ()) if each not in found.stdout]
    return f"{' '.join(command)}: {lost} missing" if lost else None
