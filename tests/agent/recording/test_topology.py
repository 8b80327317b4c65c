"""The failure of a machine without GPU, and the advice."""

import pytest

from agent.failures import Failure
from agent.recording.topology import Observation, find_failure, observe_snapshot
from agent.snapshot import Nvml, NvmlGpu, Output, Snapshot, Sysfs
from gputopo.model import NodeTopology

CARD = {
    "bus/pci/devices/0000:07:00.0/vendor": "0x10de\n",
    "bus/pci/devices/0000:07:00.0/class": "0x030200\n",
}
FAILURES = {
    "NVML says it": (Snapshot(nvml=Nvml(error="nvmlInit_v2: NO_PERMISSION")), Failure.NO_PERMISSION),
    "nvidia-smi says it": (
        Snapshot(nvml=Nvml(), smi={"-L": Output("No devices were found\n", 6)}),
        Failure.NO_DEVICE,
    ),
    "NVML is used": (
        Snapshot(nvml=Nvml(error="nvmlInit_v2: DRIVER_NOT_LOADED"), smi={"-L": Output("", 127)}),
        Failure.NO_DRIVER,
    ),
    "NVML could not count": (
        Snapshot(nvml=Nvml(errors={"nvmlDeviceGetCount_v2": "UNKNOWN"}), smi={"-L": Output("")}),
        Failure.UNKNOWN,
    ),
    "NVML may open no GPU": (
        Snapshot(nvml=Nvml(gpus=(NvmlGpu(0, errors={"nvmlDeviceGetHandleByIndex_v2": "NO_PERMISSION"}),))),
        Failure.NO_PERMISSION,
    ),
    "nobody says anything": (Snapshot(), None),
}


@pytest.mark.parametrize(("snapshot", "expected"), FAILURES.values(), ids=FAILURES)
def test_the_failure_of_a_machine(snapshot: Snapshot, expected: Failure | None) -> None:
    assert find_failure(snapshot) is expected


ADVICE = {
    "cards without a driver": (
        Observation(NodeTopology(), Snapshot(nvml=Nvml(error="nvmlInit_v2: DRIVER_NOT_LOADED"), sysfs=Sysfs(CARD))),
        "no GPU found: the NVIDIA kernel driver is not loaded; NVIDIA GPUs on the PCI bus: 1.\nLoad it with",
    ),
    "no cards": (
        Observation(NodeTopology(), Snapshot(nvml=Nvml(error="nvmlInit_v2: LIBRARY_NOT_FOUND"), sysfs=Sysfs())),
        "is not installed; NVIDIA GPUs on the PCI bus: none.\nOn a GPU machine install",
    ),
    "an unread bus": (Observation(NodeTopology(), Snapshot(nvml=Nvml())), "driver runs and sees no GPU.\nCheck"),
    "a query": (
        Observation(NodeTopology(), Snapshot(smi={"-q -x": Output("<nvidia_smi_log/>")})),
        "driver runs and sees no GPU.\nCheck",
    ),
    "bindings of another version": (
        Observation(NodeTopology(), Snapshot(nvml=Nvml(error="the NVML bindings lack X; install Y"), sysfs=Sysfs())),
        "no GPU found: the NVML bindings lack X; install Y; NVIDIA GPUs on the PCI bus: none.",
    ),
    "a Node": (Observation(NodeTopology()), "the input describes no NVIDIA GPU"),
    "a file of another machine": (Observation(NodeTopology(), Snapshot(lstopo="")), "describes no NVIDIA GPU"),
}


@pytest.mark.parametrize(("observation", "text"), ADVICE.values(), ids=ADVICE)
def test_advice_says_what_is_wrong_and_what_to_do(observation: Observation, text: str) -> None:
    assert text in observation.advice


def test_an_observation_keeps_its_snapshot() -> None:
    snapshot = Snapshot()

    assert observe_snapshot(snapshot).snapshot is snapshot
