"""Every label and annotation key that gputopo writes or reads, each with a sentence. No key is spelled anywhere else.

A key, once released, keeps its meaning; what must change gets a new schema version (``SCHEMA_VERSION``).
"""

from __future__ import annotations

from typing import NamedTuple

SCHEMA_VERSION = 1
API_GROUP = "gputopo.io"
FIELD_MANAGER = "gputopo-agent"  # owns our keys under server-side apply
SCHEDULER_NAME = "gputopo-scheduler"  # the second kube-scheduler, in the manifests and in pods that opt in
MIRROR_FIELD_MANAGER = "gputopo-mirror"  # owns the mirrors, so that losing one never costs us our own keys


class Key(NamedTuple):
    """A key with what its value looks like and what it means (one sentence each, used in docs/labels.md)."""

    key: str
    example: str
    meaning: str


# Node labels: slow facts only. Every change of one makes kube-scheduler retry every pod an extender rejected.
SCHEMA = Key("gputopo.io/schema", "1", "Version of this contract.")
GPUS = Key("gputopo.io/gpus", "8", "Usable GPUs: those that the driver can talk to.")
INTERCONNECT = Key(
    "gputopo.io/interconnect",
    "nvswitch",
    "What joins the largest island: `nvswitch`, `nvlink`, `pcie` (several GPUs, no NVLink) or `none` (fewer than two).",
)
ISLANDS = Key("gputopo.io/islands", "4-4", "Sizes of the NVLink islands, largest first.")
LARGEST_ISLAND = Key(
    "gputopo.io/largest-island", "4", "Size of the largest island, so that plain node affinity can say `Gt 3`."
)
ISLAND_BANDWIDTH = Key(
    "gputopo.io/island-bandwidth",
    "600",
    "GB/s per GPU over NVLink in the largest island, both ways, of its weakest member.",
)
NUMA_LAYOUT = Key("gputopo.io/numa-layout", "4-4", "GPUs per NUMA node that has any, by NUMA id order.")
VRAM_MIB = Key("gputopo.io/vram-mib", "81559", "Smallest GPU memory on the node, in MiB.")
FABRIC = Key(
    "gputopo.io/fabric",
    "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1",
    "Multi-node NVLink domain that all GPUs are in: `<cluster uuid>.<clique>`.",
)
DEGRADED = Key("gputopo.io/degraded", "false", "Whether a link, a lane or a GPU is worse than it should be.")
PRODUCT_PREFIX = "product.gputopo.io/"
PRODUCT = Key(
    PRODUCT_PREFIX + "<product>",
    "product.gputopo.io/NVIDIA-H100-80GB-HBM3=8",
    "Usable GPUs of that product: deterministic on mixed nodes. The product is spelled as in `nvidia.com/gpu.product`.",
)
NODE_LABELS = (
    SCHEMA,
    GPUS,
    PRODUCT,
    INTERCONNECT,
    ISLANDS,
    LARGEST_ISLAND,
    ISLAND_BANDWIDTH,
    NUMA_LAYOUT,
    VRAM_MIB,
    FABRIC,
    DEGRADED,
)

# Node annotation.
TOPOLOGY = Key(
    "gputopo.io/topology",
    '{"v":1,…}',
    "The whole graph as versioned compact JSON, below 8 KiB for 16 GPUs; read it with `gputopo show --node`.",
)
NODE_ANNOTATIONS = (TOPOLOGY,)

# Mirrors of what the ecosystem selects on, in GPU Feature Discovery's formats. A key that somebody else owns stays
# theirs.
NVIDIA_PRODUCT = Key("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "Product; on mixed nodes the most frequent.")
NVIDIA_MEMORY = Key(
    "nvidia.com/gpu.memory", "81559", "MiB per GPU of that product. Left out where a GPU is in MIG mode."
)
NVIDIA_COUNT = Key("nvidia.com/gpu.count", "8", "Usable GPUs. Left out where a GPU is in MIG mode.")
NVIDIA_FAMILY = Key("nvidia.com/gpu.family", "hopper", "Architecture of that product.")
NVIDIA_COMPUTE_MAJOR = Key("nvidia.com/gpu.compute.major", "9", "CUDA compute capability, major part.")
NVIDIA_COMPUTE_MINOR = Key("nvidia.com/gpu.compute.minor", "0", "CUDA compute capability, minor part.")
NVIDIA_CLIQUE = Key("nvidia.com/gpu.clique", "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1", "As `gputopo.io/fabric`.")
NVIDIA_TOPOLOGY = Key("nvidia.com/gpu-topology", "nvswitch", "As `gputopo.io/interconnect`.")
NVIDIA_NUMA = Key("nvidia.com/gpu.numa", "0_1", "The NUMA node of the GPUs, or the ids joined by `_`.")
MIRRORS = (
    NVIDIA_PRODUCT,
    NVIDIA_MEMORY,
    NVIDIA_COUNT,
    NVIDIA_FAMILY,
    NVIDIA_COMPUTE_MAJOR,
    NVIDIA_COMPUTE_MINOR,
    NVIDIA_CLIQUE,
    NVIDIA_TOPOLOGY,
    NVIDIA_NUMA,
)

# What gputopo reads on a node and never writes.
TOPOLOGY_MANAGER = Key(
    "gputopo.io/topology-manager",
    "single-numa-node",
    "The kubelet's `topologyManagerPolicy`, where it rejects pods whose GPUs span NUMA nodes. Set it by hand.",
)
COST_PER_HOUR = Key(
    "gputopo.io/cost-per-hour",
    "32.77",
    "What the whole node costs in an hour, in a currency of your own: the same on all nodes.",
)
COST_PER_HOUR_SHORT = Key("node-cost-per-hour", "32.77", "The same, by the short key.")
SHARING = Key(
    "gputopo.io/sharing",
    "packed",
    "How the device plugin chooses among replicas of shared GPUs: `distributed` (where nothing is said) or `packed`.",
)
NODE_KEYS_READ = (TOPOLOGY_MANAGER, COST_PER_HOUR, COST_PER_HOUR_SHORT, SHARING)

# GPU Feature Discovery's word on how often each GPU is handed out.
NVIDIA_REPLICAS = "nvidia.com/gpu.replicas"

# By which Node Feature Discovery's master knows the node that a NodeFeature speaks of.
NFD_NODE_NAME = "nfd.node.kubernetes.io/node-name"

# What device plugins call their devices: whole GPUs, shares of GPUs where sharing is on, MIG devices by profile.
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"

# What a pod may ask. Annotations, but for the model, which is a label so that it can be selected on.
POD_GPU_MODEL = Key(
    "accelerator.sched.io/gpu-model", "NVIDIA-A100-SXM4-80GB", "GPU product: exact, a short name (`A100`) or a glob."
)
POD_GPU_MODEL_SHORT = Key("gpu-model", "A100", "The same, by the short key.")
POD_ISLAND = Key("gputopo.io/island", "required", "All GPUs in one NVLink island: `required`, `preferred` or `ignore`.")
POD_INTERCONNECT = Key(
    "gputopo.io/interconnect", "nvlink", "At least this between the pod's GPUs: `nvlink`, `nvswitch`."
)
POD_NUMA = Key("gputopo.io/numa", "preferred", "All GPUs on one NUMA node: `required`, `preferred` or `ignore`.")
POD_MIN_VRAM = Key("gputopo.io/min-vram", "40Gi", "Memory that each GPU must have at least.")
POD_VRAM = Key("gputopo.io/vram", "15Gi", "Share of one GPU's memory that the pod will use.")
POD_MIN_BANDWIDTH = Key(
    "gputopo.io/min-bandwidth",
    "300",
    "GB/s, both ways, that the weakest hop of the best ring through the pod's GPUs must have over NVLink.",
)
POD_WORKLOAD = Key("gputopo.io/workload", "training", "`training`, `inference` or `batch`.")
POD_ISOLATION = Key(
    "gputopo.io/isolation",
    "required",
    "Training and inference on different nodes: `required`, `preferred` or `ignore`.",
)
POD_SPREAD = Key(
    "gputopo.io/spread", "ignore", "Replicas of one owner on different nodes and islands: `preferred` or `ignore`."
)
POD_GANG = Key(
    "gputopo.io/gang", "llm-7", "The gang that the pod belongs to, within its namespace: all start, or none do."
)
POD_GANG_SIZE = Key("gputopo.io/gang-size", "16", "Members of the gang, as many as there will be.")
POD_GANG_MINIMUM = Key(
    "gputopo.io/gang-minimum", "12", "Members that it can start with, where that is fewer than its size."
)
POD_GANG_TIMEOUT = Key(
    "gputopo.io/gang-timeout",
    "30s",
    "From when its members are let go until all have their nodes: `90s`, `5m`.",
)
POD_GANG_REQUIRED = Key(
    "gputopo.io/gang-required-topology",
    "clique",
    "All members in one: `clique` (multi-node NVLink), `rack`, `block`, `zone`, or a node label's key.",
)
POD_GANG_PREFERRED = Key("gputopo.io/gang-preferred-topology", "rack", "The same, where that can be had.")
POD_PLANNED = Key(
    "gputopo.io/planned", "true", "A pod of its own that is to be placed as gangs are: `true` or `false`."
)
GANG_KEYS = (
    POD_GANG,
    POD_GANG_SIZE,
    POD_GANG_MINIMUM,
    POD_GANG_TIMEOUT,
    POD_GANG_REQUIRED,
    POD_GANG_PREFERRED,
    POD_PLANNED,
)
# What the planner writes on a member, in the one patch that lets it go.
POD_GANG_RANK = Key(
    "gputopo.io/gang-rank", "3", "Its rank in the plan: neighbours in rank are neighbours in the fabric."
)
POD_RESERVATION = Key("gputopo.io/reservation", "llm-7-4f2a9c", "The `PlacementReservation` that it was placed by.")
POD_ROLLED_BACK = Key(
    "gputopo.io/taken-back", "llm-7-4f2a9c", "The `PlacementReservation` that it was to be placed by and was not."
)
WRITTEN_ON_PODS = (POD_GANG_RANK, POD_RESERVATION, POD_ROLLED_BACK)

# The scheduling gate that keeps a member from kube-scheduler until its gang is planned.
GATE = "gputopo.io/gang"
# A namespace whose pods are gated whatever their scheduler, where they name a gang.
GANGS_ENABLED = Key("gputopo.io/gangs", "enabled", "Pods of this namespace that name a gang are gated at creation.")

POD_KEYS = (
    POD_GPU_MODEL,
    POD_GPU_MODEL_SHORT,
    POD_ISLAND,
    POD_INTERCONNECT,
    POD_NUMA,
    POD_MIN_VRAM,
    POD_VRAM,
    POD_MIN_BANDWIDTH,
    POD_WORKLOAD,
    POD_ISOLATION,
    POD_SPREAD,
    *GANG_KEYS,
    *WRITTEN_ON_PODS,
)
