"""The publisher behind each ``--publish``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent.daemon.settings import PUBLISH
from agent.publish import Publisher
from agent.publish.choice import PublishTarget, open_publisher
from agent.publish.local import FeaturesFilePublisher, StandardOutputPublisher
from agent.publish.node import NodePublisher
from agent.publish.nodefeature import NodeFeaturePublisher
from gputopo.kube.errors import ConfigError
from tests.api_server import Answer, api_server


@pytest.mark.parametrize(
    ("kind", "publisher"),
    [
        pytest.param("node", NodePublisher, id="the Node"),
        pytest.param("nodefeature", NodeFeaturePublisher, id="NFD's API"),
        pytest.param("features.d", FeaturesFilePublisher, id="NFD's folder"),
        pytest.param("stdout", StandardOutputPublisher, id="standard output"),
    ],
)
def test_each_kind_has_its_publisher(kind: str, publisher: type[Publisher], tmp_path: Path) -> None:
    with api_server(lambda _: Answer({})) as server:
        target = PublishTarget(kind=kind, node="n", kubeconfig=server.kubeconfig(tmp_path / "config"))

        assert type(open_publisher(target)) is publisher
    assert kind in PUBLISH


def test_missing_credentials_of_a_kind_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        open_publisher(PublishTarget(kind="node", node="n", kubeconfig=str(tmp_path / "none")))


def test_publishers_without_an_api_server_do_not_import_its_client() -> None:
    code = (
        "import sys; from agent.publish.choice import PublishTarget, open_publisher; "
        "[open_publisher(PublishTarget(kind=kind, node='n')) for kind in ('stdout', 'features.d')]; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"kubernetes", "urllib3"}.isdisjoint(loaded)
