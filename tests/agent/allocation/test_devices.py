"""Device ids of device plugins are mapped to GPUs."""

from __future__ import annotations

import pytest

from agent.allocation.devices import allocations_from_devices
from agent.allocation.wire import HeldDevices
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.model import Gpu, Health, MigDevice

GPUS = (
    Gpu(index=0, uuid="GPU-a", minor=4),
    Gpu(
        index=1,
        uuid="GPU-b",
        minor=5,
        mig_enabled=True,
        mig_devices=(MigDevice("1g.5gb", "MIG-1"), MigDevice("2g.10gb", "MIG-2")),
    ),
    Gpu(index=2, health=Health.LOST),
)
POD = PodRef("ml", "train-0", "main")


def held(*devices: str, resource: str = "nvidia.com/gpu", pod: PodRef = POD) -> HeldDevices:
    return HeldDevices(pod.namespace, pod.name, pod.container, resource, devices)


@pytest.mark.parametrize(
    ("resource", "device", "allocation"),
    [
        pytest.param("nvidia.com/gpu", "GPU-a", DeviceAllocation("GPU-a", POD), id="a GPU"),
        pytest.param("nvidia.com/gpu.shared", "GPU-a::3", DeviceAllocation("GPU-a", POD, replica=3), id="a shared GPU"),
        pytest.param("nvidia.com/gpu", "GPU-a::0", DeviceAllocation("GPU-a", POD, replica=0), id="shared, not renamed"),
        pytest.param(
            "nvidia.com/mig-1g.5gb", "MIG-1", DeviceAllocation("GPU-b", POD, mig_device="MIG-1"), id="a MIG device"
        ),
        pytest.param(
            "nvidia.com/mig-2g.10gb.shared",
            "MIG-2::1",
            DeviceAllocation("GPU-b", POD, replica=1, mig_device="MIG-2"),
            id="a shared MIG device",
        ),
        pytest.param("nvidia.com/gpu", "0", DeviceAllocation("GPU-a", POD), id="by index"),
        pytest.param("nvidia.com/gpu", "0::2", DeviceAllocation("GPU-a", POD, replica=2), id="by index, shared"),
        pytest.param(
            "nvidia.com/mig-2g.10gb", "1:1", DeviceAllocation("GPU-b", POD, mig_device="MIG-2"), id="MIG by index"
        ),
        pytest.param(
            "nvidia.com/mig-7g", "1:9", DeviceAllocation("GPU-b", POD), id="MIG by an index that is not known"
        ),
        pytest.param("nvidia.com/gpu", "nvidia4", DeviceAllocation("GPU-a", POD), id="GKE, by minor"),
        pytest.param("nvidia.com/gpu", "nvidia5/gi1", DeviceAllocation("GPU-b", POD), id="GKE, a part"),
        pytest.param("nvidia.com/gpu", "nvidia4/vgpu3", DeviceAllocation("GPU-a", POD, replica=3), id="GKE, shared"),
        pytest.param(
            "nvidia.com/vgpu", "GPU-a", DeviceAllocation("GPU-a", POD), id="another name for a GPU that is known"
        ),
        pytest.param(
            "nvidia.com/gpu", "GPU-gone::1", DeviceAllocation("GPU-gone::1", POD), id="a GPU that is not known"
        ),
        pytest.param("nvidia.com/gpu", "9", DeviceAllocation("9", POD), id="an index that is not known"),
        pytest.param("nvidia.com/gpu", "2", DeviceAllocation("2", POD), id="an index of a GPU without UUID"),
        pytest.param("nvidia.com/gpu", "nvidia9", DeviceAllocation("nvidia9", POD), id="a minor that is not known"),
        pytest.param(
            "nvidia.com/mig-1g.5gb", "MIG-9", DeviceAllocation("MIG-9", POD), id="a MIG device that is not known"
        ),
    ],
)
def test_a_device_id_names_a_gpu(resource: str, device: str, allocation: DeviceAllocation) -> None:
    assert allocations_from_devices([held(device, resource=resource)], GPUS) == (allocation,)


@pytest.mark.parametrize(
    ("resource", "device"),
    [
        pytest.param("rdma/hca", "GPU-a", id="another vendor's resource"),
        pytest.param("nvidia.com/hostdev", "0000:3b:00.0", id="a network card of the vendor"),
        pytest.param("nvidia.com/GA102GL_A10", "GPU-passed-through", id="a GPU that the driver does not see"),
    ],
)
def test_devices_that_are_not_gpus_of_this_machine_are_left_out(resource: str, device: str) -> None:
    assert allocations_from_devices([held(device, resource=resource)], GPUS) == ()


def test_the_order_of_the_report_does_not_matter() -> None:
    other = PodRef("ml", "train-1", "main")
    result = [held("MIG-2", "GPU-a::1"), held("GPU-a::0", pod=other), held("GPU-a::0", pod=other)]

    assert (
        allocations_from_devices(result, GPUS)
        == allocations_from_devices(reversed(result), GPUS)
        == (
            DeviceAllocation("GPU-a", other, replica=0),
            DeviceAllocation("GPU-a", POD, replica=1),
            DeviceAllocation("GPU-b", POD, mig_device="MIG-2"),
        )
    )
