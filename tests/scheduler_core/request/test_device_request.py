"""Device requests, compared with the kubelet (step by step) and kube-scheduler (a formula)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.request.device_request import (
    ContainerStep,
    DeviceRequest,
    MalformedDeviceRequestError,
    parse_device_request,
    total_devices,
)
from scheduler_core.request.pod import PodSpec


def _spec(containers: list[dict[str, object]], init: list[dict[str, object]] | None = None) -> PodSpec:
    return msgspec.convert({"containers": containers, "initContainers": init}, PodSpec)


def _asking(count: object, resource: str = "nvidia.com/gpu", **more: object) -> dict[str, object]:
    return {"resources": {"limits": {resource: count, "cpu": "1"}}, **more}


def test_init_containers_come_first_and_may_be_sidecars() -> None:
    spec = _spec([_asking("2"), _asking("1")], [_asking("4"), _asking("1", restartPolicy="Always")])

    assert parse_device_request(spec).steps_by_resource == (
        ("nvidia.com/gpu", (ContainerStep(4, False), ContainerStep(1), ContainerStep(2), ContainerStep(1))),
    )


@pytest.mark.parametrize(
    ("containers", "init", "milli"),
    [
        pytest.param(["500m", "700m"], [], 2000, id="containers together, rounded up to cores"),
        pytest.param(["1"], ["7"], 7000, id="the init container requests more"),
        pytest.param([None], [], 0, id="no request"),
        pytest.param(["a lot"], [], 0, id="no quantity"),
    ],
)
def test_cpu(containers: list[str | None], init: list[str], milli: int) -> None:
    def asking(cpu: str | None) -> dict[str, object]:
        requests = {} if cpu is None else {"cpu": cpu}
        return {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": requests}}

    assert parse_device_request(_spec(list(map(asking, containers)), list(map(asking, init)))).cpu_milli == milli


def test_a_sidecar_runs_beside_the_others() -> None:
    assert parse_device_request(_spec([_asking("1")], [_asking("1", restartPolicy="Always")])).cpu_milli == 2000


def test_resources_are_counted_separately() -> None:
    renamed = _spec([_asking("2", "nvidia.com/gpu.a100"), _asking("1", "nvidia.com/hostdev")])
    assert parse_device_request(renamed).totals == (("nvidia.com/gpu.a100", 2),)
    spec = _spec([_asking("1", "nvidia.com/gpu.shared"), _asking("2", "nvidia.com/mig-1g.5gb"), _asking("3")])

    assert parse_device_request(spec).totals == (
        ("nvidia.com/gpu", 3),
        ("nvidia.com/gpu.shared", 1),
        ("nvidia.com/mig-1g.5gb", 2),
    )


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param({"requests": {"nvidia.com/gpu": "2"}}, id="request alone"),
        pytest.param({"limits": {"nvidia.com/gpu": 2}}, id="a number instead of a text"),
        pytest.param({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "2"}}, id="the limit counts"),
    ],
)
def test_two_gpus(resources: dict[str, object]) -> None:
    assert parse_device_request(_spec([{"resources": resources}])).whole_gpu_steps == (ContainerStep(2),)


@pytest.mark.parametrize(
    "container",
    [_asking("0"), {"resources": {}}, {}, _asking("1", "amd.com/gpu")],
    ids=["zero", "no limits", "no resources", "another vendor"],
)
def test_no_devices(container: dict[str, object]) -> None:
    assert parse_device_request(_spec([container])) == DeviceRequest()


def test_devices_of_other_plugins_are_counted_at_most_at_once() -> None:
    nics: dict[str, object] = {
        "resources": {"limits": {"nvidia.com/hostdev": "2", "nvidia.com/gpu": 1, "cpu": "4", "hugepages-2Mi": "1Gi"}}
    }
    first: dict[str, object] = {"resources": {"limits": {"example.com/nic": "7"}}}
    sidecar: dict[str, object] = {"resources": {"limits": {"example.com/nic": "1"}}}
    spec = msgspec.convert(
        {"initContainers": [first, {**sidecar, "restartPolicy": "Always"}], "containers": [nics, nics]}, PodSpec
    )

    assert parse_device_request(spec).other_devices == 8  # 7 + 1 at first, then 2 + 2 + 1
    assert parse_device_request(_spec([nics, nics, first])).other_devices == 11
    assert parse_device_request(_spec([first])).other_devices == 0  # not on a GPU: never asked about


@pytest.mark.parametrize("text", ["two", "1.5", "-1", "99999999"])
def test_invalid_number_of_devices_is_quoted(text: str) -> None:
    message = f"the pod's request is malformed: nvidia.com/gpu: '{text}' is not a number of devices"

    with pytest.raises(MalformedDeviceRequestError) as caught:
        parse_device_request(_spec([_asking(text)]))

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("program", "held"),
    [
        pytest.param((), 0, id="nothing"),
        pytest.param((ContainerStep(2), ContainerStep(1)), 3, id="containers side by side: 2 + 1"),
        pytest.param(
            (ContainerStep(4, False), ContainerStep(2)), 4, id="the init container's GPUs are reused: max(4, 2)"
        ),
        pytest.param(
            (ContainerStep(2, False), ContainerStep(3, False), ContainerStep(1)),
            3,
            id="init containers one after the other: max(2, 3, 1)",
        ),
        pytest.param(
            (ContainerStep(1), ContainerStep(2, False), ContainerStep(1)), 3, id="sidecar stays: max(1 + 2, 1 + 1)"
        ),
        pytest.param(
            (ContainerStep(2, False), ContainerStep(2), ContainerStep(1)),
            3,
            id="the sidecar reuses the init container's GPUs: 2 + 1",
        ),
    ],
)
def test_total(program: tuple[ContainerStep, ...], held: int) -> None:
    assert total_devices(program) == held


_turns = st.lists(st.tuples(st.integers(1, 4), st.booleans()).map(lambda each: ContainerStep(*each)), max_size=5)


@given(_turns, st.lists(st.integers(1, 4).map(ContainerStep), max_size=3))
def test_kubelet_and_kube_scheduler_count_the_same(init: list[ContainerStep], containers: list[ContainerStep]) -> None:
    """kube-scheduler: the maximum needed at any time (``resourcehelpers.PodRequests``)."""
    sidecars, most = 0, 0
    for step in init:
        sidecars += step.devices if step.holds_until_end else 0
        most = max(most, sidecars if step.holds_until_end else sidecars + step.devices)
    running = sidecars + sum(step.devices for step in containers)

    assert total_devices((*init, *containers)) == max(most, running)


def _steps(*containers: dict[str, object], init: list[dict[str, object]]) -> tuple[ContainerStep, ...]:
    return parse_device_request(_spec(list(containers), init)).whole_gpu_steps


def test_init_containers_that_take_what_earlier_ones_left_change_nothing() -> None:
    many = [_asking(str(1 + number % 4)) for number in range(5_000)]

    found = _steps(_asking("2"), init=many)

    assert len(found) == 4 + 8 + 1  # that add GPUs, some that only reuse GPUs, and the container
    assert total_devices(found) == 4


def test_a_sidecar_keeps_what_later_init_containers_would_have_taken_again() -> None:
    init = [_asking("2"), _asking("1", restartPolicy="Always"), _asking("1"), _asking("2"), _asking("2")]

    assert total_devices(_steps(init=init)) == 3


def test_more_containers_than_any_node_has_gpus_for_are_counted_as_one() -> None:
    assert _steps(*[_asking("1")] * 8_000, init=[_asking("3")]) == (ContainerStep(8_000),)


def test_a_pod_that_requests_more_kinds_of_gpus_than_any_node_has_is_malformed() -> None:
    limits = {f"nvidia.com/gpu.kind-{number}": "1" for number in range(65)}

    with pytest.raises(MalformedDeviceRequestError, match="requests 65 GPU resources: expected at most 64"):
        parse_device_request(msgspec.convert({"containers": [{"resources": {"limits": limits}}]}, PodSpec))


def _guaranteed(gpus: str, cpu: str = "4", memory: str = "1Gi", **more: str) -> dict[str, object]:
    return {"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": cpu, "memory": memory, **more}}}


@pytest.mark.parametrize(
    ("containers", "steps"),
    [
        pytest.param(
            [_guaranteed("2"), {"resources": {"limits": {"cpu": "1500m", "memory": "5"}}}],
            (ContainerStep(2, cpus=4, memory=1 << 30), ContainerStep(0, memory=5)),
            id="whole CPUs and memory, also of containers without GPUs",
        ),
        pytest.param([_guaranteed("2"), _asking("1")], (), id="not Guaranteed: a container without memory"),
        pytest.param([_guaranteed("2", cpu="0")], (), id="not Guaranteed: a limit of 0"),
        pytest.param(
            [{"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "1"}, "requests": {"cpu": "3"}}}],
            (),
            id="not Guaranteed: a request below the limit",
        ),
        pytest.param(
            [
                {
                    "resources": {
                        "limits": {"nvidia.com/gpu": "1", "cpu": "4", "memory": "1"},
                        "requests": {"cpu": "4000m"},
                    }
                }
            ],
            (ContainerStep(1, cpus=4, memory=1),),
            id="a request that equals the limit",
        ),
        pytest.param([_asking("1", rdma="1")], (), id="no devices of others"),
        pytest.param(
            [_guaranteed("1", **{"rdma/hca": "1"}), _guaranteed("0", **{"hugepages-2Mi": "2Mi"})],
            (
                ContainerStep(1, cpus=4, memory=1 << 30, others=True),
                ContainerStep(0, cpus=4, memory=1 << 30, others=True),
            ),
            id="devices of others, and huge pages",
        ),
    ],
)
def test_resources_that_a_kubelet_may_align_with_gpus(
    containers: list[dict[str, object]], steps: tuple[ContainerStep, ...]
) -> None:
    assert parse_device_request(_spec(containers)).aligned_steps == steps


def test_resources_of_the_whole_pod_may_be_aligned_in_any_way() -> None:
    spec = msgspec.convert({"containers": [_asking("1")], "resources": {"limits": {"cpu": "8"}}}, PodSpec)

    assert parse_device_request(spec).aligned_steps == (ContainerStep(1, others=True),)
