"""The public JSON of a topology, ``gputopo.io/v1``, kind ``NodeTopology``: its types and its JSON Schema.

The classes below are both what ``gputopo.render.document`` fills and what the published schema is generated from, so
that the two cannot differ. Rules of version 1: a key is never missing, unknown is null, indices are GPU indices, and a
later version of the program may add keys but not take one away or change its meaning.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

# At run time too: the schema is made from the annotations below.
from gputopo.model import FabricState, Health, Interconnect, PcieDistance, ProblemKind

ApiVersion = Literal["gputopo.io/v1"]
API_VERSION: ApiVersion = get_args(ApiVersion)[0]  # of every document that gputopo prints
KIND = "NodeTopology"


def _key(field: str) -> str:
    """``memory_mib`` is ``memoryMiB``: camel case that keeps the unit's spelling."""
    first, *rest = field.split("_")
    return first + "".join("MiB" if word == "mib" else word.capitalize() for word in rest)


class Entry(msgspec.Struct, kw_only=True, rename=_key):
    """An object of the document. Every field is required: keys are never missing."""


class PcieEntry(Entry):
    """A GPU's PCIe link. Current values drop when the GPU is idle."""

    generation: int | None
    width: Annotated[int | None, Meta(description="lanes")]
    max_generation: int | None
    max_width: Annotated[int | None, Meta(description="lanes")]


class MigDeviceEntry(Entry):
    """One MIG device."""

    profile: Annotated[str | None, Meta(description="as in 1g.10gb")]
    uuid: str | None
    memory_mib: int | None


class MigEntry(Entry):
    """Whether a GPU is partitioned. A GPU in MIG mode takes no part in NVLink and is an island of one."""

    enabled: Annotated[bool | None, Meta(description="null: unknown or not supported")]
    devices: tuple[MigDeviceEntry, ...]


class GpuFabricEntry(Entry):
    """What a GPU says of its membership in a multi-node NVLink fabric."""

    state: FabricState
    cluster_uuid: str | None
    clique: int | None
    status: Annotated[str | None, Meta(description="null is success; else the name of the NVML error")]
    unhealthy: Annotated[tuple[str, ...], Meta(description="names of the health fields that report a fault")]


class C2cEntry(Entry):
    """The NVLink-C2C links between a GPU and the CPU of its superchip."""

    lanes: Annotated[int, Meta(description="links in use")]
    expected_lanes: int
    gbps: Annotated[float | None, Meta(description="GB/s of the links in use, both ways together")]


class GpuEntry(Entry):
    """One physical GPU."""

    index: Annotated[int, Meta(description="NVML's index; moves when a card is lost: identity is uuid and busId")]
    uuid: str | None
    bus_id: Annotated[str | None, Meta(description="PCI address in sysfs spelling: 0000:07:00.0")]
    minor: Annotated[int | None, Meta(description="/dev/nvidia<minor>")]
    product: Annotated[str | None, Meta(description="as NVML names it")]
    architecture: str | None
    compute_capability: Annotated[str | None, Meta(description="as in 9.0")]
    memory_mib: int | None
    numa_node: Annotated[int | None, Meta(description="an integer only where exactly one CPU NUMA node is known")]
    numa_affinity: Annotated[str | None, Meta(description="the text as printed: 0, 0-1, 0,5-11")]
    memory_numa_node: Annotated[int | None, Meta(description="the NUMA node that is this GPU's own memory (Grace)")]
    cpu_affinity: Annotated[str | None, Meta(description="list of CPUs: 0-63,128-191")]
    pcie: PcieEntry
    mig: MigEntry
    fabric: GpuFabricEntry | None
    c2c: Annotated[C2cEntry | None, Meta(description="null: unknown, or no superchip")]
    health: Health


class LinkEntry(Entry):
    """A pair of GPUs that active NVLink joins. Down links, lost GPUs and GPUs in MIG mode have none."""

    a: Annotated[int, Meta(description="GPU index, smaller than b")]
    b: int
    kind: Annotated[
        Literal["nvlink", "nvswitch"],
        Meta(description="nvlink: joined directly; nvswitch: through a fabric that both are attached to"),
    ]
    lanes: Annotated[int, Meta(description="active lanes; for nvswitch the smaller of the two uplinks")]
    expected_lanes: Annotated[int | None, Meta(description="what it should be; null: nothing to compare with")]
    gbps: Annotated[float | None, Meta(description="GB/s, both ways together; for nvswitch the smaller uplink")]


class UplinkEntry(Entry):
    """The NVLinks from a GPU into an NVSwitch fabric. With 0 lanes it is down and should not be."""

    gpu: int
    fabric: Annotated[int, Meta(description="GPUs of one fabric reach each other at full bandwidth")]
    lanes: int
    expected_lanes: int | None
    gbps: Annotated[float | None, Meta(description="GB/s, both ways together")]
    assumed: Annotated[bool, Meta(description="the far end did not say what it is: taken for an NVSwitch")]


class DistanceEntry(Entry):
    """What PCIe lies between two GPUs. There is one entry per pair."""

    a: Annotated[int, Meta(description="GPU index, smaller than b")]
    b: int
    distance: Annotated[PcieDistance | None, Meta(description="words of nvidia-smi topo -m")]


class IslandEntry(Entry):
    """An island: usable GPUs that active NVLinks connect, or a GPU on its own."""

    gpus: tuple[int, ...]
    interconnect: Interconnect
    gbps: Annotated[float | None, Meta(description="GB/s per GPU over NVLink, both ways, of the weakest member")]


class NicEntry(Entry):
    """A network device that can reach GPUs."""

    name: str
    bus_id: str | None
    numa_node: int | None
    rate_gbps: Annotated[int | None, Meta(description="Gbit/s (not bytes)")]
    distances: Annotated[dict[str, PcieDistance | None], Meta(description="PCIe distance by GPU index")]


class NumaNodeEntry(Entry):
    """A NUMA node of the machine."""

    id: int
    cpus: Annotated[str | None, Meta(description="list of CPUs; empty where the node has memory only")]
    memory_mib: int | None


class FabricEntry(Entry):
    """The multi-node NVLink domain that all usable GPUs are registered in."""

    cluster_uuid: str
    clique: int


class DegradedEntry(Entry):
    """A part of the hardware that is worse than it should be."""

    what: Annotated[str, Meta(description="as in gpu3, gpu3.nvlink, gpu2-gpu3")]
    why: str


class ProblemEntry(Entry):
    """Something about the observation (not the hardware) that a reader should know."""

    what: Annotated[str, Meta(description="as in gpus.3.numaNode")]
    kind: ProblemKind
    why: str


class Document(Entry):
    """One machine with GPUs, as far as it is known. Unknown is null; a key is never missing."""

    api_version: ApiVersion
    kind: Literal["NodeTopology"]
    name: Annotated[str | None, Meta(description="of the node or recording, where it has one")]
    machine: Annotated[str | None, Meta(description="/sys/class/dmi/id/product_name")]
    driver_version: str | None
    cuda_version: Annotated[str | None, Meta(description="the newest CUDA that the driver supports")]
    boot_id: str | None
    partial: Annotated[bool, Meta(description="only some GPUs of the machine are visible")]
    gpus: tuple[GpuEntry, ...]
    islands: Annotated[
        tuple[tuple[int, ...], ...] | None,
        Meta(description="GPU indices of each island, islands of one included; null where NVLink is unknown"),
    ]
    island_details: Annotated[tuple[IslandEntry, ...] | None, Meta(description="in the order of islands")]
    links: Annotated[tuple[LinkEntry, ...] | None, Meta(description="null where NVLink is unknown")]
    uplinks: Annotated[tuple[UplinkEntry, ...] | None, Meta(description="null where NVLink is unknown")]
    unknown_links: Annotated[
        tuple[tuple[int, int], ...],
        Meta(description="pairs of GPU indices for which no source reports whether NVLinks join them"),
    ]
    pcie: tuple[DistanceEntry, ...]
    nics: tuple[NicEntry, ...]
    numa_nodes: tuple[NumaNodeEntry, ...]
    fabric: FabricEntry | None
    degraded: tuple[DegradedEntry, ...]
    problems: tuple[ProblemEntry, ...]


def document_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the document. Open: a reader of version 1 must tolerate keys added later."""
    schema = msgspec.json.schema(Document)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{KIND} {API_VERSION}",
        **schema,
    }


def schema_text() -> str:
    """The schema as the text of the published file."""
    return msgspec.json.format(msgspec.json.encode(document_schema()), indent=2).decode() + "\n"
