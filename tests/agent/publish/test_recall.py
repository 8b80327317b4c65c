"""A starting agent reads back the published topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.publish import PublishError, ReadsPublished
from agent.publish.local import FeaturesFilePublisher
from agent.publish.node import NodePublisher
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import AGENT
from gputopo.labels import encode_topology, keys
from gputopo.model import NodeTopology
from tests.api_server import Answer, api_server
from tests.machines import dgx1


def recalled(folder: Path, answer: Answer) -> NodeTopology | None:
    with api_server(lambda _: answer) as server:
        kube = from_kubeconfig(AGENT, server.kubeconfig(folder / "config"))
        try:
            return NodePublisher(kube, "n").read_published()
        finally:
            kube.close()


def node(annotations: dict[str, str], *managers: str) -> Answer:
    labels = {keys.GPUS.key: "4"}  # which alone are no topology to recall
    fields: object = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in annotations}}}
    managed = [{"manager": each, "operation": "Apply", "fieldsV1": fields} for each in managers]
    metadata = {"name": "n", "uid": "u", "labels": labels, "annotations": annotations, "managedFields": managed}
    return Answer({"metadata": metadata})


@pytest.mark.parametrize(
    ("annotations", "topology"),
    [
        pytest.param(encode_topology(dgx1()).annotations, dgx1().stable_facts(), id="what was published"),
        pytest.param({}, None, id="nothing was"),
        pytest.param({keys.TOPOLOGY.key: "{"}, None, id="damaged, and to be replaced"),
        pytest.param({keys.TOPOLOGY.key: '{"v":99}'}, None, id="of a version to come"),
    ],
)
def test_a_node_has_the_published_topology(
    annotations: dict[str, str], topology: NodeTopology | None, tmp_path: Path
) -> None:
    assert recalled(tmp_path, node(annotations, keys.FIELD_MANAGER)) == topology


@pytest.mark.parametrize("managers", [("kubectl-edit",), (keys.FIELD_MANAGER, "kubectl-edit")])
def test_a_topology_of_another_field_manager_is_not_recalled(managers: tuple[str, ...], tmp_path: Path) -> None:
    """A link that only they know of would be reported as missing."""
    assert recalled(tmp_path, node(encode_topology(dgx1()).annotations, *managers)) is None


def test_an_api_server_error_is_not_an_empty_node(tmp_path: Path) -> None:
    with pytest.raises(PublishError):
        recalled(tmp_path, Answer({"message": "later"}, 503))


def test_only_some_publishers_can_read_back() -> None:
    assert issubclass(NodePublisher, ReadsPublished)
    assert not issubclass(FeaturesFilePublisher, ReadsPublished)
