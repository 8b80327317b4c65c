"""Hardware faults, injected into recorded machines of each shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from msgspec.structs import replace

from agent.discover.products import board_links
from agent.snapshot import LOST_ERRORS, NvmlC2cLink, NvmlFabric, NvmlGpu, NvmlLink, Snapshot
from tests.agent.recordings import HANDLE, gpu_removed, load_machine, nvml_of, ports_down, with_gpu

Fault = Callable[[Snapshot], Snapshot]
VICTIM = 1  # index of the GPU


def _without(snapshot: Snapshot, *indices: int) -> Snapshot:
    for index in sorted(indices, reverse=True):
        snapshot = gpu_removed(snapshot, index)
    return snapshot


def shapes() -> dict[str, Snapshot]:
    """Return a healthy machine of each shape."""
    return {
        "cube": load_machine("8v100-2n-cubemesh"),
        "nvswitch": load_machine("8h100-2n-nvswitch18"),
        "pairs with bridges": load_machine("8a100-2n-pairs12"),
        "mesh of four": load_machine("4a100-1n-mesh4"),
        "two with a bridge": _without(load_machine("3a6000-1n-pair4"), 2),
        "two on an nvswitch": _without(load_machine("8h100-2n-nvswitch18"), *range(2, 8)),
        "mig": load_machine("8a100-8n-nvswitch12+mig"),
        "grace, nvswitch": load_machine("4gb200-2n-fabric18"),
        "grace, mesh": load_machine("4gh200-4n-mesh6"),
        "sixteen on an nvswitch": load_machine("16v100-2n-nvswitch6"),
        "ten PCIe cards": load_machine("10a40-2n-pcie"),
        "mixed products": load_machine("4mixed-1n-pcie"),
        "virtual machine": load_machine("8h100-1n-vm"),
    }


def faults_of(snapshot: Snapshot) -> dict[str, Fault]:
    """Return the faults that a machine can have."""
    gpus = nvml_of(snapshot).gpus
    victim = gpus[VICTIM]
    found = dict(_gpu_faults(len(gpus)))
    if any(link.active for link in victim.nvlinks):
        found |= _link_faults(snapshot)
    if victim.fabric is not None and victim.fabric.state == 3:
        found |= dict(_fabric_faults(victim.fabric))
    if victim.mig_devices:
        found["lost when its MIG devices are read"] = _lose_mig_device
    if (victim.compute_capability or (0, 0))[0] >= 9:
        down = (NvmlC2cLink(0, active=True), NvmlC2cLink(1, active=False))
        found["a C2C link down"] = partial(_change, c2c_links=down)
    return found


def _change(snapshot: Snapshot, index: int = VICTIM, **facts: object) -> Snapshot:
    gpu = nvml_of(snapshot).gpus[index]
    return with_gpu(snapshot, index, replace(gpu, **facts))


def _fail(snapshot: Snapshot, *calls: str, error: str, index: int = VICTIM) -> Snapshot:
    """Let calls of a GPU fail; they have no results, as all calls after a GPU was lost."""
    gpu = nvml_of(snapshot).gpus[index]
    lost = error in LOST_ERRORS and calls != (HANDLE,)
    kept = gpu if lost else NvmlGpu(index=index)
    return with_gpu(snapshot, index, replace(kept, errors={**kept.errors, **dict.fromkeys(calls, error)}))


IDENTITY = ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetName")
CALLS = (
    *IDENTITY,
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetNvLinkState",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetCpuAffinityWithinScope",
)


def _gpu_faults(count: int) -> Iterator[tuple[str, Fault]]:
    for error in ("GPU_IS_LOST", "RESET_REQUIRED", "UNKNOWN", "TIMEOUT", "IRQ_ISSUE", "INSUFFICIENT_POWER"):
        yield f"no handle: {error}", _handle(error)
    for call in CALLS:
        yield f"lost at {call}", _calls((call,), "GPU_IS_LOST")
    for call in CALLS[:4]:
        yield f"to be reset at {call}", _calls((call,), "RESET_REQUIRED")
    yield "lost in every call", _calls(CALLS, "GPU_IS_LOST")
    yield "no answer to any call", _calls(IDENTITY, "UNKNOWN")
    yield "the first GPU lost", lambda snapshot: _fail(snapshot, HANDLE, error="GPU_IS_LOST", index=0)
    yield "the last GPU lost", lambda snapshot: _fail(snapshot, HANDLE, error="GPU_IS_LOST", index=count - 1)
    yield "all GPUs lost", _lose_all(count)
    for name, generation, width in (("generation 1", 1, None), ("x8", None, 8), ("x4", None, 4), ("x1", None, 1)):
        yield f"PCIe {name} under load", _slow_pcie(generation, width)
    yield "PCIe generation 1, x1 under load", _slow_pcie(1, 1)
    yield "a row that could not be remapped", lambda snapshot: _change(snapshot, remapped_rows=(0, 512, 0, 1))


def _handle(error: str) -> Fault:
    return lambda snapshot: _fail(snapshot, HANDLE, error=error)


def _calls(calls: tuple[str, ...], error: str) -> Fault:
    return lambda snapshot: _fail(snapshot, *calls, error=error)


def _lose_all(count: int) -> Fault:
    def lose(snapshot: Snapshot) -> Snapshot:
        for index in range(count):
            snapshot = _fail(snapshot, HANDLE, error="GPU_IS_LOST", index=index)
        return snapshot

    return lose


def _slow_pcie(generation: int | None, width: int | None) -> Fault:
    def slow(snapshot: Snapshot) -> Snapshot:
        gpu = nvml_of(snapshot).gpus[VICTIM]
        now = generation or gpu.pcie_max_generation, width or gpu.pcie_max_width
        return _change(snapshot, pcie_generation=now[0], pcie_width=now[1], performance_state=0)

    return slow


def _lose_mig_device(snapshot: Snapshot) -> Snapshot:
    device, *others = nvml_of(snapshot).gpus[VICTIM].mig_devices
    lost = replace(device, errors={"nvmlDeviceGetMigDeviceHandleByIndex": "GPU_IS_LOST"})
    return _change(snapshot, mig_devices=(lost, *others))


def _link_faults(snapshot: Snapshot) -> dict[str, Fault]:
    """Ports that are down, at both ends where a GPU is the other end, as NVML reports them."""
    links = [link for link in nvml_of(snapshot).gpus[VICTIM].nvlinks if link.active]
    first, numbers = links[0], [link.link for link in links]
    direct = first.remote_type == "gpu"
    edge = [link for link in links if link.remote_bus_id == first.remote_bus_id]
    found: dict[str, Fault] = {
        "a port lost while it was read": lambda each: _change_link(each, active=None, errors={"x": "GPU_IS_LOST"}),
        "a link that was not recovered": lambda each: _change_link(each, counters={"recovery_failed": 1}),
        "one link down": lambda each: _down(each, [first]),
    }
    whole_bridge = direct and len({link.remote_bus_id for link in links}) == 1
    if not whole_bridge:  # a pair without any link has no bridge
        found["all links down"] = lambda each: _down(each, links)
        found["half of the links down"] = lambda each: _down(each, links[: len(links) // 2])
    bare_metal = snapshot.host is not None and snapshot.host.virtualization is None
    if bare_metal and board_links(nvml_of(snapshot).gpus[VICTIM].name):
        found["no link of any GPU, as without Fabric Manager"] = _silence
    if direct:
        found["one link down at one end"] = lambda each: ports_down(each, VICTIM, first.link)
        found["all links down at one end"] = lambda each: ports_down(each, VICTIM, *numbers)
        if not whole_bridge:
            found["all links to one GPU down"] = lambda each: _down(each, edge)
            ports = [link.link for link in edge]
            found["all links to one GPU down at one end"] = lambda each: ports_down(each, VICTIM, *ports)
    return found


def _silence(snapshot: Snapshot) -> Snapshot:
    for gpu in nvml_of(snapshot).gpus:
        snapshot = ports_down(snapshot, gpu.index, *(link.link for link in gpu.nvlinks))
    return snapshot


def _change_link(snapshot: Snapshot, **facts: object) -> Snapshot:
    first, *others = nvml_of(snapshot).gpus[VICTIM].nvlinks
    return _change(snapshot, nvlinks=(replace(first, **facts), *others))


def _down(snapshot: Snapshot, links: list[NvmlLink]) -> Snapshot:
    nvml = nvml_of(snapshot)
    own = nvml.gpus[VICTIM].bus_id
    for peer in nvml.gpus:
        back = [link.link for link in peer.nvlinks if link.active and link.remote_bus_id == own]
        wanted = sum(link.remote_bus_id == peer.bus_id for link in links)
        snapshot = ports_down(snapshot, peer.index, *back[:wanted])
    return ports_down(snapshot, VICTIM, *(link.link for link in links))


def _fabric_faults(well: NvmlFabric) -> Iterator[tuple[str, Fault]]:
    for name, state, status in (
        ("not started", 1, 0),
        ("failed", 3, 999),
        ("timed out", 3, 10),
        ("no partition", 3, 29),
    ):
        yield f"fabric {name}", _fabric(replace(well, state=state, status=status))
    for bit in (0, 2, 4, 6):
        healthy = 0b10_10_10_10 | 1 << 8
        yield f"fabric health bit {bit}", _fabric(replace(well, health_mask=healthy & ~(3 << bit) | 1 << bit))
    for cause in range(2, 9):
        yield f"fabric configuration {cause}", _fabric(replace(well, health_mask=cause << 8))
    for summary in (2, 3):
        yield f"fabric summary {summary}", _fabric(replace(well, health_mask=0, health_summary=summary))


def _fabric(fabric: NvmlFabric) -> Fault:
    return lambda snapshot: _change(snapshot, fabric=fabric)
