"""Fixtures for tests of the agent against the real API server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gputopo.kube.client import Kube
from gputopo.kube.rbac import AGENT
from tests.e2e.agent.access import grant, open_kube
from tests.e2e.cluster import Cluster

ACCOUNT = "agent"


@pytest.fixture
def agent_kube(cluster: Cluster, tmp_path: Path) -> Iterator[Kube]:
    """A connection as an agent: as a service account that may do what the agent's role lists, and no more."""
    grant(cluster, ACCOUNT, AGENT)
    kube = open_kube(cluster, ACCOUNT, AGENT, tmp_path)
    yield kube
    kube.close()
