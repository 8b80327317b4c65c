"""The kubelet's device manager, case by case."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from tests.simulated_node.kubelet import (
    Container,
    Device,
    DeviceManager,
    PluginError,
    Pod,
    Policy,
    Rejection,
    Resource,
)
from tests.simulated_node.machine import distributed
from tests.simulated_node.topology_manager import NumaPolicy

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
# Eight GPUs, four per NUMA node.
GPUS = tuple(Device(f"GPU-{index}", index, index // 4) for index in range(8))


def _manager(
    policy: Policy | None = None, *, devices: tuple[Device, ...] = GPUS, numa: bool = False, seed: int = 0
) -> DeviceManager:
    numa_policy = NumaPolicy.SINGLE_NUMA_NODE if numa else NumaPolicy.NONE
    return DeviceManager({GPU: Resource(devices, policy)}, Random(seed), numa_policy)


def _pod(uid: str, *counts: int, init: tuple[Container, ...] = ()) -> Pod:
    containers = tuple(Container(f"c{number}", {GPU: count}) for number, count in enumerate(counts))
    return Pod(uid, "default", uid, init + containers)


def _lowest(available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
    others = sorted(set(available) - set(required), key=lambda device: device.gpu)
    return [*required, *others][:size]


def _gpus(manager: DeviceManager, uid: str) -> tuple[int, ...]:
    return tuple(device.gpu for device in manager.devices_of(uid))


def _unexpected(why: str) -> Rejection:
    return Rejection("UnexpectedAdmissionError", f"Pod was rejected: Allocate failed due to {why}, which is unexpected")


def test_pod_gets_what_the_plugin_prefers() -> None:
    manager = _manager(_lowest)

    assert manager.admit(_pod("a", 3)) is None
    assert manager.admit(_pod("b", 2)) is None

    assert (_gpus(manager, "a"), _gpus(manager, "b")) == ((0, 1, 2), (3, 4))


def test_without_a_preference_any_free_device_will_do_and_the_seed_says_which() -> None:
    outcomes = []
    for seed in range(40):
        manager = _manager(seed=seed)
        manager.admit(_pod("a", 1))
        outcomes.append(_gpus(manager, "a"))

    assert set(outcomes) == {(gpu,) for gpu in range(8)}
    again = _manager(seed=7)
    again.admit(_pod("a", 1))
    assert _gpus(again, "a") == outcomes[7]


def test_preference_for_too_few_is_filled_up() -> None:
    manager = _manager(lambda available, *_: [device for device in available if device.gpu == 6])

    manager.admit(_pod("a", 3))

    assert len(_gpus(manager, "a")) == 3
    assert 6 in _gpus(manager, "a")


def test_each_container_gets_its_own() -> None:
    manager = _manager(_lowest)
    manager.admit(_pod("a", 2, 3))

    ((_, given),) = manager.pods
    assert {name: sorted(device.gpu for device in devices[GPU]) for name, devices in given.items()} == {
        "c0": [0, 1],
        "c1": [2, 3, 4],
    }


def test_pod_that_ends_frees_its_devices() -> None:
    manager = _manager(_lowest)
    manager.admit(_pod("a", 8))
    manager.remove("a")

    assert manager.devices_of("a") == ()
    assert manager.admit(_pod("b", 8)) is None


def test_pod_that_is_here_keeps_what_it_has() -> None:
    manager = _manager()
    manager.admit(_pod("a", 4))
    before = _gpus(manager, "a")

    assert manager.admit(_pod("a", 4)) is None
    assert _gpus(manager, "a") == before


def test_too_few_free_devices_reject_the_pod_and_leave_nothing_behind() -> None:
    manager = _manager(_lowest)
    manager.admit(_pod("a", 5))

    rejection = manager.admit(_pod("b", 2, 2))

    why = f"requested number of devices unavailable for {GPU}. Requested: 2, Available: 1"
    assert rejection == _unexpected(why)
    assert manager.admit(_pod("c", 3)) is None


def test_ill_devices_are_not_given_but_kept() -> None:
    manager = _manager(_lowest)
    manager.admit(_pod("a", 1))
    manager.set_unhealthy(["GPU-0", "GPU-1"])

    manager.admit(_pod("b", 1))

    assert (_gpus(manager, "a"), _gpus(manager, "b")) == ((0,), (2,))
    assert (manager.capacity, manager.allocatable) == ({GPU: 8}, {GPU: 6})


def test_pod_on_a_node_without_a_healthy_device_is_rejected() -> None:
    manager = _manager()
    manager.set_unhealthy([device.id for device in GPUS])

    why = f"no healthy devices present; cannot allocate unhealthy devices {GPU}"
    assert manager.admit(_pod("a", 1)) == _unexpected(why)


def test_plugin_that_fails_fails_the_pod() -> None:
    def broken(*_: object) -> Sequence[Device]:
        raise PluginError("rpc error: code = Unknown desc = GPU is lost")

    rejection = _manager(broken).admit(_pod("a", 1))

    why = "device plugin GetPreferredAllocation rpc failed with err: rpc error: code = Unknown desc = GPU is lost"
    assert rejection == _unexpected(why)


def test_the_device_manager_ignores_resources_without_a_plugin() -> None:
    manager = _manager()

    assert manager.admit(Pod("a", "default", "a", (Container("c0", {"example.com/fpga": 1}),))) is None
    assert manager.devices_of("a") == ()


def test_container_reuses_what_an_init_container_had() -> None:
    manager = _manager(_lowest)
    init = (Container("prepare", {GPU: 2}, init=True),)

    manager.admit(_pod("a", 3, init=init))

    ((_, given),) = manager.pods
    assert set(given["prepare"][GPU]) < set(given["c0"][GPU])
    assert _gpus(manager, "a") == (0, 1, 2)


def test_container_reuses_only_as_many_as_it_wants() -> None:
    manager = _manager(_lowest)
    manager.admit(_pod("a", 1, init=(Container("prepare", {GPU: 4}, init=True),)))

    ((_, given),) = manager.pods
    assert len(given["c0"][GPU]) == 1
    assert set(given["c0"][GPU]) < set(given["prepare"][GPU])


def test_sidecar_keeps_its_own() -> None:
    manager = _manager(_lowest)
    init = (Container("sidecar", {GPU: 2}, init=True, restartable=True),)

    manager.admit(_pod("a", 3, init=init))

    ((_, given),) = manager.pods
    assert not set(given["sidecar"][GPU]) & set(given["c0"][GPU])


def test_the_plugin_gets_the_devices_that_it_must_include() -> None:
    asked: list[tuple[set[int], set[int], int]] = []

    def remember(available: Sequence[Device], required: Sequence[Device], size: int) -> Sequence[Device]:
        asked.append(({each.gpu for each in available}, {each.gpu for each in required}, size))
        return _lowest(available, required, size)

    _manager(remember).admit(_pod("a", 3, init=(Container("prepare", {GPU: 2}, init=True),)))

    assert asked == [(set(range(8)), set(), 2), (set(range(8)), {0, 1}, 3)]


@pytest.mark.parametrize(
    ("taken", "wanted", "gpus"),
    [
        pytest.param((), 2, (0, 1), id="the lowest node"),
        pytest.param((0, 1, 2), 2, (4, 5), id="the node that has enough"),
        pytest.param((0, 1, 2, 4), 3, (5, 6, 7), id="all that a node has left"),
    ],
)
def test_single_numa_node(taken: tuple[int, ...], wanted: int, gpus: tuple[int, ...]) -> None:
    manager = _manager(_lowest, numa=True)
    _take(manager, taken)

    assert manager.admit(_pod("a", wanted)) is None
    assert _gpus(manager, "a") == gpus


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        pytest.param((0, 1, 4, 5, 6), 3, id="free ones on two nodes"),
        pytest.param((), 5, id="more than a node has"),
        pytest.param((0, 1, 2, 3, 4, 5, 6), 2, id="too few at all"),
    ],
)
def test_single_numa_node_rejects(taken: tuple[int, ...], wanted: int) -> None:
    manager = _manager(_lowest, numa=True)
    _take(manager, taken)

    assert manager.admit(_pod("a", wanted)) == Rejection(
        "TopologyAffinityError", "Pod was rejected: Resources cannot be allocated with Topology locality"
    )


def test_single_numa_node_holds_a_container_to_the_node_of_what_it_reuses() -> None:
    manager = _manager(_lowest, numa=True)
    _take(manager, (0, 1))
    init = (Container("prepare", {GPU: 2}, init=True),)  # GPU 2 and 3, which leaves none on their node

    rejection = manager.admit(_pod("a", 3, init=init))

    assert rejection is not None
    assert rejection.reason == "TopologyAffinityError"


def test_single_numa_node_says_nothing_of_devices_that_are_on_none() -> None:
    anywhere = tuple(device._replace(numa=None) for device in GPUS)
    manager = _manager(_lowest, devices=anywhere, numa=True)

    assert manager.admit(_pod("a", 8)) is None


def test_single_numa_node_aligns_all_resources() -> None:
    nics = (Device("nic-1", 0, 1),)
    resources = {GPU: Resource(GPUS, _lowest), "example.com/nic": Resource(nics)}
    manager = DeviceManager(resources, Random(0), NumaPolicy.SINGLE_NUMA_NODE)

    manager.admit(Pod("a", "default", "a", (Container("c0", {GPU: 2, "example.com/nic": 1}),)))

    ((_, given),) = manager.pods
    assert [device.numa for devices in given["c0"].values() for device in devices] == [1, 1, 1]


def test_shares_of_gpus_are_spread() -> None:
    shares = tuple(Device(f"GPU-{gpu}::{number}", gpu) for gpu in range(2) for number in range(4))
    manager = DeviceManager({SHARED: Resource(shares, distributed(shares))}, Random(0))
    for uid in ("a", "b"):
        manager.admit(Pod(uid, "default", uid, (Container("c0", {SHARED: 3}),)))

    taken = [device.gpu for uid in ("a", "b") for device in manager.devices_of(uid)]
    assert sorted(taken) == [0, 0, 0, 1, 1, 1]
    assert sorted({device.gpu for device in manager.devices_of("a")}) == [0, 1]


def _take(manager: DeviceManager, gpus: tuple[int, ...]) -> None:
    """Have other pods hold these GPUs: one each, as a pod that may only have that one."""
    others = {device.id for device in GPUS}
    for gpu in gpus:
        manager.set_unhealthy(others - {f"GPU-{gpu}"})
        assert manager.admit(_pod(f"taken-{gpu}", 1)) is None
    manager.set_unhealthy(())
