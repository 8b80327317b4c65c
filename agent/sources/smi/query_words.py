"""The paths of each fact in ``nvidia-smi -q``: in its XML (``nvsmi_device_v10`` to ``_v13.dtd``) and in its text.

A path leads through elements or indented headings; of several paths, the first with a value is used (driver versions
renamed elements). The text is converted to the same kind of tree as the XML, so that one reader serves both.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.lines import split_lines
from agent.sources.xml_tree import Element


class QueryPaths(msgspec.Struct, frozen=True):
    """The paths in one format: of the machine, of a GPU, and of a MIG device."""

    driver: tuple[str, ...]
    cuda: tuple[str, ...]
    attached: tuple[str, ...]
    bus_id: tuple[str, ...]
    uuid: tuple[str, ...]
    minor: tuple[str, ...]
    product: tuple[str, ...]
    architecture: tuple[str, ...]
    memory: tuple[str, ...]  # of a GPU and of a MIG device
    memory_reserved: tuple[str, ...]
    memory_used: tuple[str, ...]
    memory_free: tuple[str, ...]
    pcie_generation: tuple[str, ...]
    pcie_width: tuple[str, ...]
    pcie_max_generation: tuple[str, ...]  # with this slot; nvmlDeviceGetMaxPcieLinkGeneration
    pcie_max_width: tuple[str, ...]
    pcie_device_max_generation: tuple[str, ...]  # nvmlDeviceGetGpuMaxPcieLinkGeneration
    mig_mode: tuple[str, ...]
    mig_list: str | None  # the parent of the MIG devices; None: the GPU itself
    mig_device: str
    mig_index: tuple[str, ...]
    mig_gpu_instance: tuple[str, ...]
    mig_compute_instance: tuple[str, ...]
    fabric_state: tuple[str, ...]
    fabric_status: tuple[str, ...]
    fabric_cluster: tuple[str, ...]
    fabric_clique: tuple[str, ...]
    fabric_health: str
    virtualization: tuple[str, ...]
    performance_state: tuple[str, ...]
    remap_failure: tuple[str, ...]
    reset_required: tuple[str, ...]
    recovery_action: tuple[str, ...]


XML = QueryPaths(
    driver=("driver_version", "kmd_version"),  # the second: driver 610 and newer
    cuda=("cuda_version", "cuda_umd_version"),
    attached=("attached_gpus",),
    bus_id=("pci/pci_bus_id",),
    uuid=("uuid",),
    minor=("minor_number",),
    product=("product_name",),
    architecture=("product_architecture",),
    memory=("fb_memory_usage/total",),
    memory_reserved=("fb_memory_usage/reserved",),
    memory_used=("fb_memory_usage/used",),
    memory_free=("fb_memory_usage/free",),
    pcie_generation=("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    pcie_width=("pci/pci_gpu_link_info/link_widths/current_link_width",),
    pcie_max_generation=("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    pcie_max_width=("pci/pci_gpu_link_info/link_widths/max_link_width",),
    pcie_device_max_generation=("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",),
    mig_mode=("mig_mode/current_mig",),
    mig_list="mig_devices",
    mig_device="mig_device",
    mig_index=("index",),
    mig_gpu_instance=("gpu_instance_id",),
    mig_compute_instance=("compute_instance_id",),
    fabric_state=("fabric/state",),
    fabric_status=("fabric/status",),
    fabric_cluster=("fabric/clusterUuid",),
    fabric_clique=("fabric/cliqueId",),
    fabric_health="fabric/health",
    virtualization=("gpu_virtualization_mode/virtualization_mode",),
    performance_state=("performance_state",),
    remap_failure=("remapped_rows/remapped_row_failure",),
    reset_required=("gpu_reset_status/reset_required",),
    recovery_action=("gpu_recovery_action",),
)

TEXT = QueryPaths(
    driver=("Driver Version", "KMD Version"),
    cuda=("CUDA Version", "CUDA UMD Version"),
    attached=("Attached GPUs",),
    bus_id=("PCI/Bus Id",),
    uuid=("GPU UUID",),
    minor=("Minor Number",),
    product=("Product Name",),
    architecture=("Product Architecture",),
    memory=("FB Memory Usage/Total",),
    memory_reserved=("FB Memory Usage/Reserved",),
    memory_used=("FB Memory Usage/Used",),
    memory_free=("FB Memory Usage/Free",),
    pcie_generation=("PCI/GPU Link Info/PCIe Generation/Current",),
    pcie_width=("PCI/GPU Link Info/Link Width/Current",),
    pcie_max_generation=("PCI/GPU Link Info/PCIe Generation/Max",),
    pcie_max_width=("PCI/GPU Link Info/Link Width/Max",),
    pcie_device_max_generation=("PCI/GPU Link Info/PCIe Generation/Device Max",),
    mig_mode=("MIG Mode/Current",),
    mig_list=None,
    mig_device="MIG Device",
    mig_index=("Index",),
    mig_gpu_instance=("GPU Instance ID",),
    mig_compute_instance=("Compute Instance ID",),
    fabric_state=("Fabric/State",),
    fabric_status=("Fabric/Status",),
    fabric_cluster=("Fabric/ClusterUUID",),
    fabric_clique=("Fabric/CliqueId",),
    fabric_health="Fabric/Health",
    virtualization=("GPU Virtualization Mode/Virtualization Mode",),
    performance_state=("Performance State",),
    remap_failure=("Remapped Rows/Remapping Failure Occurred",),
    reset_required=("GPU Reset Status/Reset Required",),
    recovery_action=("GPU Recovery Action",),
)


def text_tree(text: str) -> Element:
    """Convert the text of ``nvidia-smi -q`` to a tree: headings contain the indented lines, "Key : Value" is a leaf.

    A line like "GPU 00000000:68:00.0" becomes ``<gpu id="00000000:68:00.0">``, as in the XML.
    """
    root = Element("nvidia_smi_log")
    above = [(-1, root)]
    for line in split_lines(text):
        while above[-1][0] >= line.indent:
            above.pop()
        element = _element(line.text, line.number)
        above[-1][1].children.append(element)
        above.append((line.indent, element))
    return root


def _element(text: str, number: int) -> Element:
    if match := _GPU.fullmatch(text):
        return Element("gpu", {"id": match[1]}, line=number)
    key, _, value = text.partition(" :")
    return Element(key.rstrip(), text=value.strip(), line=number)


_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])")
