"""CPU, memory and other resources than GPUs on the nodes of a preemption, as kube-scheduler counts them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from scheduler_core.planner.commit.resource_fit import FitNode, FitPod, requests_of, shortage_on

Json = dict[str, Any]


def pod(
    uid: str = "u", *containers: Json, status: Json | None = None, deleted: str | None = None, **spec: Any
) -> FitPod:
    """Return a pod of containers with these requests."""
    made = {
        "metadata": {"name": uid, "uid": uid, "deletionTimestamp": deleted},
        "spec": {"containers": [{"resources": {"requests": each}} for each in containers], **spec},
        "status": status or {"phase": "Running"},
    }
    return msgspec.convert(made, FitPod)


def node(**allocatable: str) -> FitNode:
    given = {"cpu": "8", "memory": "64Gi", "pods": "4", "nvidia.com/gpu": "0", **allocatable}
    return msgspec.convert({"metadata": {"name": "n1"}, "status": {"allocatable": given}}, FitNode)


def sidecar(**requests: str) -> Json:
    return {"restartPolicy": "Always", "resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("made", "cpu", "memory"),
    [
        pytest.param(pod("u", {"cpu": "1", "memory": "1Ki"}, {"cpu": "500m"}), 1.5, 1024, id="containers together"),
        pytest.param(pod("u", {"cpu": "1"}, initContainers=[{"resources": {"limits": {"cpu": "3"}}}]), 3, 0, id="init"),
        pytest.param(
            pod("u", {"cpu": "1"}, initContainers=[sidecar(cpu="2"), {"resources": {"requests": {"cpu": "2"}}}]),
            4,
            0,
            id="an init container beside a sidecar",
        ),
        pytest.param(pod("u", {"cpu": "1"}, initContainers=[sidecar(cpu="2")]), 3, 0, id="sidecar"),
        pytest.param(pod("u", {"cpu": "1"}, overhead={"memory": "1Ki"}), 1, 1024, id="overhead"),
        pytest.param(
            pod("u", {"cpu": "1", "memory": "1Ki"}, resources={"requests": {"cpu": "7"}}),
            7,
            1024,
            id="of the whole pod",
        ),
        pytest.param(pod("u", {"cpu": "nonsense", "memory": "-1"}), 0, 0, id="malformed"),
    ],
)
def test_requests_count_as_for_kube_scheduler(made: FitPod, cpu: float, memory: int) -> None:
    found = requests_of(made)

    assert [float(found.get(name, 0)) for name in ("cpu", "memory", "pods")] == [cpu, memory, 1]


def with_port(uid: str, port: int, **more: str) -> FitPod:
    made = {"containerPort": port, "hostPort": port, **more}
    return pod(uid, initContainers=[{"ports": [{"hostPort": 1}]}, {"ports": [made], "restartPolicy": "Always"}])


@pytest.mark.parametrize(
    ("running", "members", "conflict"),
    [
        pytest.param([with_port("x", 29500)], [with_port("w", 29500)], True, id="of a pod that stays"),
        pytest.param([with_port("gone", 29500)], [with_port("w", 29500)], False, id="of a pod that is evicted"),
        pytest.param([], [with_port("v", 29500), with_port("w", 29500)], True, id="of another member"),
        pytest.param([with_port("x", 29501)], [with_port("w", 29500)], False, id="another port"),
        pytest.param([with_port("x", 29500, protocol="UDP")], [with_port("w", 29500)], False, id="another protocol"),
        pytest.param([with_port("x", 7, hostIP="10.0.0.1")], [with_port("w", 7)], True, id="of any address"),
        pytest.param(
            [with_port("x", 7, hostIP="10.0.0.1")], [with_port("w", 7, hostIP="10.0.0.2")], False, id="another address"
        ),
    ],
)
def test_ports_of_the_host_may_be_in_use(running: list[FitPod], members: list[FitPod], *, conflict: bool) -> None:
    found = shortage_on(node(), running, ("gone",), members)

    assert (found is not None) == conflict
    assert found is None or found.startswith("port ")


BIG = pod("big", {"memory": "40Gi", "cpu": "4"})
MEMBER = pod("w", {"memory": "32Gi", "cpu": "4", "nvidia.com/gpu": "8"})


@pytest.mark.parametrize(
    ("pods", "gone", "members", "short"),
    [
        pytest.param([], (), [MEMBER, MEMBER], None, id="exactly enough, and the planner counts GPUs"),
        pytest.param([BIG], (), [MEMBER], "memory", id="memory"),
        pytest.param([BIG], ("big",), [MEMBER], None, id="to be evicted"),
        pytest.param([pod("big", {"memory": "40Gi"}, deleted="2026-11-18T11:06:40Z")], (), [MEMBER], None, id="ending"),
        pytest.param([pod("big", {"memory": "40Gi"}, status={"phase": "Failed"})], (), [MEMBER], None, id="failed"),
        pytest.param([pod("x", {"cpu": "5"})], (), [MEMBER], "cpu", id="CPU"),
        pytest.param([pod("a"), pod("b"), pod("c"), pod("d")], (), [MEMBER], "pods", id="number of pods"),
        pytest.param([], (), [pod("w", {"rdma/hca": "1"})], "rdma/hca", id="a resource that the node lacks"),
        pytest.param([pod("a", {"memory": "100Gi"})], (), [pod("w", {"cpu": "1"})], None, id="not requested"),
    ],
)
def test_a_node_without_the_victims_may_lack_other_resources(
    pods: list[FitPod], gone: tuple[str, ...], members: list[FitPod], short: str | None
) -> None:
    found = shortage_on(node(), pods, gone, members)

    assert (found is None) == (short is None)
    assert found is None or f" of {short} left" in found
