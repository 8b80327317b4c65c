"""The fixtures that a test asks for; ``conftest.py`` makes them known to pytest."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psutil
import pytest

from tests.e2e import binaries, cleaning, servers
from tests.e2e.cluster import Cluster
from tests.e2e.process import Server
from tests.e2e.servers import ControlPlane
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

_numbers = itertools.count()
PLAIN = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
StartScheduler = Callable[..., Server]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One etcd and one API server for the whole run."""
    try:
        found = binaries.find(os.environ)
    except binaries.NoBinariesError as missing:
        pytest.skip(str(missing))
    with servers.control_plane(found, tmp_path_factory.mktemp("control-plane")) as plane:
        yield plane
    left = psutil.Process().children(recursive=True)
    assert not left, f"child processes that no test ended: {left}"  # pytest explains no assert of this module


@pytest.fixture(scope="session")
def pristine(control_plane: ControlPlane) -> set[cleaning.Found]:
    """Return the objects that the API server creates itself, before any test."""
    return cleaning.inventory(control_plane.client())


@pytest.fixture
def cluster(
    control_plane: ControlPlane, pristine: set[cleaning.Found], request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """A clean cluster with a namespace of the test's own. No nodes, no scheduler, no controllers."""
    api = control_plane.client()
    stem = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    yield Cluster(control_plane, api, f"{stem}-{next(_numbers)}")
    cleaning.clean(api, pristine)
    api.close()


@pytest.fixture
def scheduler(cluster: Cluster) -> Iterator[StartScheduler]:
    """Starts kube-schedulers: ``scheduler(config_yaml)``; by default with its stock configuration."""
    with ExitStack() as running:
        yield lambda config=PLAIN, **options: running.enter_context(servers.scheduler(cluster.plane, config, **options))


@pytest.fixture
def controllers(control_plane: ControlPlane) -> tuple[str, ...]:
    """The controllers that workloads need; skips where downloaded binaries have no kube-controller-manager."""
    if not (control_plane.binaries.folder / "kube-controller-manager").exists():
        pytest.skip(f"{control_plane.binaries.folder} has no kube-controller-manager")
    return servers.CONTROLLERS


@pytest.fixture
def controller_manager(cluster: Cluster, controllers: tuple[str, ...]) -> Iterator[Server]:
    """A kube-controller-manager: Deployments, Jobs, DaemonSets, garbage collection, namespaces."""
    with servers.controller_manager(cluster.plane, controllers) as server:
        yield server


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[Fleet]:
    """Simulated nodes, none yet: ``fleet.add(NodeSpec(name="gpu-0", shape=cube_mesh_8()))``."""
    with Fleet(cluster.api) as nodes:
        yield nodes
    assert not nodes.failures, f"calls of kubelets that failed: {nodes.failures}"


@pytest.fixture
def gpu_nodes(fleet: Fleet) -> Fleet:
    """Four nodes, gpu-0 to gpu-3, of 8 GPUs in two islands of 4: the shape on which a choice of GPUs shows."""
    fleet.add(*(NodeSpec(name=f"gpu-{number}", shape=islands_4_4()) for number in range(4)))
    return fleet
