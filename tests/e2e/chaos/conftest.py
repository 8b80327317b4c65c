"""Fixtures of the planner, beside the real kube-scheduler and an extender that runs in a pod."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api_objects import pod
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.conftest import agents_of, planner, served
from tests.e2e.scheduler.running import Extender, prepare, running
from tests.simulated_node.fleet import Fleet

__all__ = ["agents_of", "planner", "served"]
_POD = "extender-0"


@pytest.fixture
def extender(cluster: Cluster, gpu_nodes: Fleet) -> Iterator[Extender]:
    """An extender that is ready. A killed one is replaced in the same pod, as a kubelet does.

    Without a pod, planners could not know that it was replaced, and gangs would wait ``EXTENDER_LOST_S`` for it.
    """
    prepare(cluster)
    cluster.create_pod(pod(_POD, 0, nodeName=gpu_nodes.names[0]))
    with running(cluster, environ={"POD_NAMESPACE": cluster.namespace, "POD_NAME": _POD}) as started:
        started.wait_until_ready()
        yield started
