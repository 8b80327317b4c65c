"""The custom resource ``NodeGpus``: the frequently changing facts of a node, kept out of the Node object.

There is one cluster-scoped object per node, with the node's name. Only gputopo watches it, so a new pod
causes no work in other clients. The agent writes and the scheduler component reads these types; the
CustomResourceDefinition is generated from them.

Every text and the list are bounded: an object with a million bytes of forged allocations would go to every watcher.
Readers apply the same bounds, because a cluster may have an older definition: an object beyond them cannot be decoded.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gputopo.crd.definition import CrdKind, crd_definition, structural_schema
from gputopo.model import MAX_GPUS
from gputopo.process.decoding import convert

VERSION = "v1alpha1"
KIND = "NodeGpus"
PLURAL = "nodegpus"
# A kubelet runs at most some hundred pods, and a node has at most 112 MIG devices; only shared GPUs have more devices.
MAX_ALLOCATIONS = 1024
MAX_NICS = 256  # network cards and virtual functions that pods hold

Name = Annotated[str, Meta(max_length=253)]  # of a pod
DnsLabel = Annotated[str, Meta(max_length=63)]
MAX_SHORT_TEXT = 96
ShortText = Annotated[str, Meta(max_length=MAX_SHORT_TEXT)]  # as NVML's identifiers of devices
Replica = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MAX_NUMA_NODES = 64  # of a machine: the kubelet's bit masks hold no more
_PER_NUMA_NODE = Meta(max_length=MAX_NUMA_NODES)
Count = Annotated[int, Meta(ge=0, le=2**62)]
NumaId = Annotated[int, Meta(ge=0, lt=MAX_NUMA_NODES)]
MAX_RATE_GBPS = 100_000
LinkRate = Annotated[int, Meta(ge=1, le=MAX_RATE_GBPS)]  # Gbit/s
Percent = Annotated[int, Meta(ge=0, le=100)]


class PodRef(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The holder of a GPU. Source: the kubelet's PodResources API, ``PodResources`` and ``ContainerResources``."""

    namespace: DnsLabel  # namespace of the pod
    name: Name  # name of the pod
    container: DnsLabel  # name of the container in the pod
    uid: ShortText | None = None  # UID of the pod; PodResources does not report it; set if the agent knows it


class DeviceAllocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A device that a container holds. Source: ``ContainerDevices.device_ids``."""

    gpu: ShortText  # UUID of the physical GPU: "GPU-..."
    pod: PodRef  # the pod and container that hold the device
    replica: Replica | None = None  # number of the replica: n of "GPU-...::n" where the device plugin shares GPUs
    mig_device: ShortText | None = (
        None  # UUID of the MIG device, "MIG-...", where the pod holds a MIG device of that GPU
    )


class NicAllocation(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A network card, or a virtual function of it, that a container holds. Source: ``ContainerDevices.device_ids``."""

    nic: ShortText  # name of the RDMA device: "mlx5_0"
    pod: PodRef  # the pod and container that hold the network card
    virtual_function: ShortText | None = None  # PCI address of the function; None: the pod holds the whole card


class NicRate(msgspec.Struct, frozen=True, rename="camel"):
    """The rate of a network card of the topology. Source: ``/sys/class/infiniband/*/ports/1/rate``."""

    nic: ShortText  # name of the RDMA device: "mlx5_0"
    gbps: LinkRate  # rate of its port, in Gbit/s in each direction


class NumaResources(msgspec.Struct, frozen=True, rename="camel"):
    """CPUs and memory of a NUMA node, as the kubelet's CPU Manager and Memory Manager count them.

    Source: ``AllocatableResourcesResponse`` and ``ContainerResources`` of PodResources, and the kernel's list of CPUs.
    """

    id: NumaId  # number of the NUMA node, as in sysfs
    cpus: Count = 0  # number of CPUs of the NUMA node
    free_cpus: Count = 0  # CPUs that the kubelet may allocate exclusively, and that no container has
    memory: Count = 0  # bytes of memory that the kubelet may allocate
    free_memory: Count = 0  # bytes of this memory that no container has
    group: Annotated[tuple[NumaId, ...], _PER_NUMA_NODE] = ()  # NUMA nodes of which containers hold memory together


class GpuUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The use of one GPU, coarse: the agent's metrics have the exact values. None: unknown.

    Measured values are in steps of 10 %, so that they seldom change, and are written at most every few minutes beside
    other writes. Source: NVML, and the kubelet's allocations for the claim.
    """

    gpu: ShortText  # UUID of the physical GPU
    used_memory_percent: Percent | None = None  # memory in use, the driver's own included (``nvmlDeviceGetMemoryInfo``)
    # Memory of the devices that containers hold, exact; 100 for a whole GPU.
    claimed_memory_percent: Percent | None = None
    # Part of the last 10 minutes in which a kernel ran (``nvmlDeviceGetUtilizationRates``).
    busy_percent: Percent | None = None


class KubeletFacts(msgspec.Struct, frozen=True, rename="camel"):
    """The facts that determine which devices the kubelet allocates. None: unknown.

    Source: ``KubeletConfiguration`` (kubelet.config.k8s.io/v1beta1), else ``NodeResourceTopology``
    (topology.node.k8s.io/v1alpha2), for the Topology Manager; PodResources' ``GetAllocatableResources`` for the rest.
    """

    # Policy of the Topology Manager: none, best-effort, restricted, single-numa-node.
    topology_manager_policy: DnsLabel | None = None
    topology_manager_scope: DnsLabel | None = None  # scope of the Topology Manager: container, pod
    prefer_closest_numa_nodes: bool | None = None  # whether the Topology Manager's option of this name is set
    exclusive_cpus: bool | None = None  # whether the CPU Manager's policy is static
    pinned_memory: bool | None = None  # whether the Memory Manager's policy is Static
    # CPUs and memory of each NUMA node.
    numa_nodes: Annotated[tuple[NumaResources, ...], _PER_NUMA_NODE] | None = None
    withdrawn: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_GPUS)] | None = (
        None  # UUIDs of GPUs that the device plugin does not offer
    )
    full_physical_cores: bool | None = None  # whether the CPU Manager's option full-pcpus-only is set
    align_by_socket: bool | None = None  # whether the CPU Manager's option align-by-socket is set
    cpus_per_core: Annotated[int, Meta(ge=1, le=64)] | None = None  # hardware threads of each core
    # Devices that the device plugin offers for each GPU that it shares, from their ids; unknown where GPUs differ.
    replicas: Annotated[int, Meta(ge=2, le=2**31 - 1)] | None = None


class NodeGpus(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The frequently changing facts of a node.

    The rates of network cards depend on cables and switches, so they are not part of
    the annotation.
    """

    # RFC 3339, UTC: when the agent saw the GPUs as written here. A Lease confirms it later
    # (``gputopo.kube.heartbeats``); readers compute staleness from the later time.
    observed_at: ShortText
    content_hash: ShortText  # SHA-256 of the topology annotation that this observation belongs to
    agent_version: ShortText  # version of the agent that wrote the object
    # Devices that containers hold. Empty: no device is allocated. Absent: the kubelet's socket cannot be read.
    allocations: Annotated[tuple[DeviceAllocation, ...], Meta(max_length=MAX_ALLOCATIONS)] | None = None
    # Network cards of the topology that containers hold; empty and absent as for ``allocations``.
    nics: Annotated[tuple[NicAllocation, ...], Meta(max_length=MAX_NICS)] | None = None
    kubelet: KubeletFacts | None = None  # settings of the kubelet that determine which devices it allocates
    # Use of each GPU of which NVML or the kubelet reports it.
    usage: Annotated[tuple[GpuUsage, ...], Meta(max_length=MAX_GPUS)] | None = None
    # Rates of the network cards whose port is up.
    nic_rates: Annotated[tuple[NicRate, ...], Meta(max_length=MAX_NICS)] | None = None


def content_hash(annotation: str) -> str:
    """Return the SHA-256 of a topology annotation. It links a ``NodeGpus`` to the annotation that it belongs to."""
    return sha256(annotation.encode()).hexdigest()


def bounds_error(state: NodeGpus) -> str | None:
    """Return why the API server would reject a ``NodeGpus``: it exceeds the bounds of its definition. None: it fits."""
    try:
        convert(msgspec.to_builtins(state), NodeGpus)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def nodegpus_crd() -> dict[str, Any]:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1) of ``NodeGpus``."""
    schema = structural_schema(NodeGpus)
    schema["properties"]["observedAt"]["format"] = "date-time"
    return crd_definition(
        CrdKind(
            KIND,
            PLURAL,
            VERSION,
            "Changing facts of a GPU node, above all which pod holds which GPU. Written by gputopo's agent.",
            (
                {"name": "Observed", "type": "date", "jsonPath": ".observedAt"},
                {"name": "Agent", "type": "string", "jsonPath": ".agentVersion"},
            ),
        ),
        schema,
    )
