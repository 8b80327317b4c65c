"""Every label and annotation key that gputopo writes or reads, with its meaning. No other module contains a key.

To add a label or an annotation: add its key here; ``encode`` writes the labels of a Node, and
``scheduler_core.request.pod_request`` reads the annotations of a pod. docs/labels.md follows.

A released key keeps its meaning; an incompatible change needs a new schema version (``SCHEMA_VERSION``).
"""

from __future__ import annotations

from typing import NamedTuple

SCHEMA_VERSION = 1
API_GROUP = "gputopo.io"
FIELD_MANAGER = "gputopo-agent"  # owns the gputopo.io/ keys under server-side apply
SCHEDULER_NAME = "gputopo-scheduler"  # the second kube-scheduler, in the manifests and in pods that opt in
# Two more names of that scheduler, if it is installed with them: a policy profile for fast and one for cheap placement.
QUALITY_SCHEDULER_NAME = "gpu-aware-scheduler"
COST_SCHEDULER_NAME = "cost-optimized-scheduler"
STOCK_SCHEDULER = "default-scheduler"  # the API server's default for pods without a scheduler name
SCHEDULER_NAMES = (SCHEDULER_NAME, QUALITY_SCHEDULER_NAME, COST_SCHEDULER_NAME)
MIRROR_FIELD_MANAGER = "gputopo-mirror"  # owns the mirrors: a conflict on a mirror does not affect the other keys


class LabelKey(NamedTuple):
    """A key with an example of its value and its meaning (for docs/labels.md)."""

    key: str
    example: str
    meaning: str


# Node labels: slowly changing facts only. A change makes kube-scheduler retry every pod that an extender rejected.
SCHEMA = LabelKey("gputopo.io/schema", "1", "Version of this contract.")
GPUS = LabelKey("gputopo.io/gpus", "8", "Usable GPUs: the GPUs that the driver can access.")
INTERCONNECT = LabelKey(
    "gputopo.io/interconnect",
    "nvswitch",
    "Interconnect of the largest island: `nvswitch`, `nvlink`, `pcie` (no NVLink) or `none` (fewer than two GPUs).",
)
ISLANDS = LabelKey("gputopo.io/islands", "4-4", "Sizes of the NVLink islands, largest first.")
LARGEST_ISLAND = LabelKey(
    "gputopo.io/largest-island", "4", "Size of the largest island, so that node affinity can require `Gt 3`."
)
ISLAND_BANDWIDTH = LabelKey(
    "gputopo.io/island-bandwidth",
    "600",
    "NVLink bandwidth per GPU in the largest island, in GB/s in both directions, of its slowest GPU.",
)
NUMA_LAYOUT = LabelKey(
    "gputopo.io/numa-layout", "4-4", "GPUs of each NUMA node that has GPUs, in the order of the NUMA ids."
)
VRAM_MIB = LabelKey("gputopo.io/vram-mib", "81559", "Smallest GPU memory on the node, in MiB.")
FABRIC = LabelKey(
    "gputopo.io/fabric",
    "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1",
    "Multi-node NVLink domain of all GPUs: `<cluster uuid>.<clique>`.",
)
DEGRADED = LabelKey("gputopo.io/degraded", "false", "Whether a link, a PCIe lane or a GPU is degraded.")
PRODUCT_PREFIX = "product.gputopo.io/"
PRODUCT = LabelKey(
    PRODUCT_PREFIX + "<product>",
    "product.gputopo.io/NVIDIA-H100-80GB-HBM3=8",
    "Usable GPUs of that product, also on mixed nodes. The product is spelled as in `nvidia.com/gpu.product`.",
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
TOPOLOGY = LabelKey(
    "gputopo.io/topology",
    '{"v":1,…}',
    "The whole graph as versioned compact JSON, below 8 KiB for 16 GPUs; read it with `gputopo show --node`.",
)
NODE_ANNOTATIONS = (TOPOLOGY,)


def is_node_label(key: str) -> bool:
    """Return whether a label of a Node is the agent's: no mirror, and no label that operators set."""
    return key.startswith(PRODUCT_PREFIX) or any(key == label.key for label in NODE_LABELS)


def is_node_annotation(key: str) -> bool:
    """Return whether an annotation of a Node is the agent's."""
    return any(key == annotation.key for annotation in NODE_ANNOTATIONS)


# Labels that other tools select on, in GPU Feature Discovery's formats. gputopo does not overwrite a key that another
# client owns.
NVIDIA_PRODUCT = LabelKey(
    "nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3", "Product; the most frequent product if there are several."
)
NVIDIA_MEMORY = LabelKey(
    "nvidia.com/gpu.memory", "81559", "MiB per GPU of that product. Left out if a GPU is in MIG mode."
)
NVIDIA_COUNT = LabelKey(
    "nvidia.com/gpu.count",
    "8",
    "Usable GPUs of that product. Left out if a GPU is in MIG mode, or of an unknown product beside known ones.",
)
NVIDIA_FAMILY = LabelKey("nvidia.com/gpu.family", "hopper", "Architecture of that product.")
NVIDIA_COMPUTE_MAJOR = LabelKey("nvidia.com/gpu.compute.major", "9", "CUDA compute capability, major part.")
NVIDIA_COMPUTE_MINOR = LabelKey("nvidia.com/gpu.compute.minor", "0", "CUDA compute capability, minor part.")
NVIDIA_CLIQUE = LabelKey("nvidia.com/gpu.clique", "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1", "As `gputopo.io/fabric`.")
NVIDIA_TOPOLOGY = LabelKey("nvidia.com/gpu-topology", "nvswitch", "As `gputopo.io/interconnect`.")
NVIDIA_NUMA = LabelKey("nvidia.com/gpu.numa", "0_1", "The NUMA node of the GPUs, or the ids joined by `_`.")
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
TOPOLOGY_MANAGER = LabelKey(
    "gputopo.io/topology-manager",
    "single-numa-node",
    "The kubelet's `topologyManagerPolicy`: `none`, `best-effort`, `restricted` or `single-numa-node`. Set it by hand "
    "where the agent reads neither the kubelet's configuration nor a NodeResourceTopology. Without all of these, a "
    "required shape must hold for all GPUs that the kubelet may allocate under any policy, and its rejections are "
    "not predicted.",
)
COST_PER_HOUR = LabelKey(
    "gputopo.io/cost-per-hour",
    "32.77",
    "Cost of the whole node per hour, in any currency: the same currency on all nodes.",
)
COST_PER_HOUR_SHORT = LabelKey("node-cost-per-hour", "32.77", "Short key with the same meaning.")
MILLICOST_PER_CPU = LabelKey(
    "gputopo.io/millicost-per-cpu",
    "41",
    "Cost of a node per CPU and hour, in thousandths of the currency. Only kube-scheduler reads it, for pods without "
    "GPUs (the profile `cpu-by-cost`): a whole number, because node affinity compares nothing else with `Lt` and `Gt`.",
)
SHARING = LabelKey(
    "gputopo.io/sharing",
    "packed",
    "How the device plugin chooses among replicas of shared GPUs: `distributed` (its default, and the only way "
    "before 0.20), or `packed` where its `sharedDevicesAllocationPolicy` is `packed`. Without it, or with another "
    "value, either is possible until an allocation shows the policy.",
)
STORAGE_NICS = LabelKey(
    "gputopo.io/storage-nics",
    "mlx5_4.mlx5_5",
    "RDMA NICs that carry no traffic of jobs, their names joined by `.`. Needed only where such a NIC is as near to a "
    "GPU as the NICs of the compute network: NICs that are farther from every GPU do not count anyway.",
)
NODE_KEYS_READ = (TOPOLOGY_MANAGER, COST_PER_HOUR, COST_PER_HOUR_SHORT, MILLICOST_PER_CPU, SHARING, STORAGE_NICS)

# Replicas of each GPU, from GPU Feature Discovery.
NVIDIA_REPLICAS = "nvidia.com/gpu.replicas"
# Labels that differ from node to node, and that gputopo reads nowhere: of the kubelet and of GPU Feature Discovery.
UNREAD_OWN_LABELS = frozenset({"kubernetes.io/hostname", "nvidia.com/gfd.timestamp"})

# The node of a NodeFeature, for Node Feature Discovery's master.
NFD_NODE_NAME = "nfd.node.kubernetes.io/node-name"

# Resource names of device plugins: whole GPUs, shares of GPUs, MIG devices by profile.
GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
MIG_RESOURCE_PREFIX = "nvidia.com/mig-"

# Pod keys. All are annotations, except the GPU model: a label, so that selectors can use it.
POD_GPU_MODEL = LabelKey(
    "accelerator.sched.io/gpu-model", "NVIDIA-A100-SXM4-80GB", "GPU product: exact, a short name (`A100`) or a glob."
)
POD_GPU_MODEL_SHORT = LabelKey("gpu-model", "A100", "Short key with the same meaning.")
POD_ISLAND = LabelKey(
    "gputopo.io/island", "required", "All GPUs in one NVLink island: `required`, `preferred` or `ignore`."
)
POD_INTERCONNECT = LabelKey(
    "gputopo.io/interconnect", "nvlink", "Minimum interconnect between the pod's GPUs: `nvlink`, `nvswitch`."
)
POD_NUMA = LabelKey("gputopo.io/numa", "preferred", "All GPUs on one NUMA node: `required`, `preferred` or `ignore`.")
POD_NIC = LabelKey(
    "gputopo.io/nic",
    "required",
    "Each GPU has an RDMA NIC on its NUMA node that no other pod holds: `required`, `preferred` or `ignore`.",
)
POD_MAX_PCIE_DISTANCE = LabelKey(
    "gputopo.io/max-pcie-distance",
    "PHB",
    "Maximum PCIe distance between two GPUs of the pod, as in `nvidia-smi topo -m`: `PIX`, `PXB`, `PHB` or `NODE`.",
)
POD_MIN_VRAM = LabelKey("gputopo.io/min-vram", "40Gi", "Minimum memory of each GPU.")
POD_VRAM = LabelKey("gputopo.io/vram", "15Gi", "Memory of a shared GPU that the pod will use.")
POD_MIN_BANDWIDTH = LabelKey(
    "gputopo.io/min-bandwidth",
    "300",
    "Minimum NVLink bandwidth, in GB/s in both directions, of the slowest hop of the best ring through the pod's GPUs.",
)
POD_WORKLOAD = LabelKey("gputopo.io/workload", "training", "`training`, `inference` or `batch`.")
POD_ISOLATION = LabelKey(
    "gputopo.io/isolation",
    "required",
    "Training and inference on different nodes: `required`, `preferred` or `ignore`.",
)
POD_SPREAD = LabelKey(
    "gputopo.io/spread", "ignore", "Replicas of one owner on different nodes and islands: `preferred` or `ignore`."
)
POD_SAME_PRODUCT = LabelKey(
    "gputopo.io/same-product",
    "required",
    "All pods of the job, or of the gang, on GPUs of one product: `required`, `preferred` (default) or `ignore`.",
)
POD_GANG = LabelKey(
    "gputopo.io/gang", "llm-7", "The gang that the pod belongs to, within its namespace: all start, or none do."
)
POD_GANG_SIZE = LabelKey("gputopo.io/gang-size", "16", "Number of members of the gang.")
POD_GANG_MINIMUM = LabelKey(
    "gputopo.io/gang-minimum", "12", "Number of members that the gang can start with; default: its size."
)
POD_GANG_TIMEOUT = LabelKey(
    "gputopo.io/gang-timeout",
    "30s",
    "Time from ungating the members until all are bound: `90s`, `5m`.",
)
POD_GANG_REQUIRED = LabelKey(
    "gputopo.io/gang-required-topology",
    "clique",
    "All members in the same domain: `clique` (multi-node NVLink), `rack`, `block`, `zone`, or a node label's key.",
)
POD_GANG_PREFERRED = LabelKey("gputopo.io/gang-preferred-topology", "rack", "The same, as a preference.")
POD_PLANNED = LabelKey(
    "gputopo.io/planned", "true", "A single pod that the planner places like a gang: `true` or `false`."
)
POD_ON_MEMBER_FAILURE = LabelKey(
    "gputopo.io/on-member-failure",
    "end-gang",
    "After a running member failed: `end-gang` deletes the other running members of its gang, `none` (default) "
    "leaves them.",
)
GANG_KEYS = (
    POD_GANG,
    POD_GANG_SIZE,
    POD_GANG_MINIMUM,
    POD_GANG_TIMEOUT,
    POD_GANG_REQUIRED,
    POD_GANG_PREFERRED,
    POD_ON_MEMBER_FAILURE,
    POD_PLANNED,
)
# How much work an eviction of the pod loses. The keys are on the pod, or on the object that creates it (Job, JobSet,
# TrainJob, ...). A program of the workload may change them while it runs. Invalid values count as not set.
POD_LAST_CHECKPOINT = LabelKey(
    "gputopo.io/last-checkpoint", "2026-11-18T11:06:40Z", "When the last checkpoint was saved, in RFC 3339."
)
POD_CHECKPOINTS = LabelKey(
    "gputopo.io/checkpoints", "true", "Whether the job saves checkpoints and resumes from them: `true` or `false`."
)
POD_EXPECTED_DURATION = LabelKey("gputopo.io/expected-duration", "6h", "Expected run time of the pod: `90m`, `6h`.")
POD_ESTIMATED_COMPLETION = LabelKey(
    "gputopo.io/estimated-completion", "2026-11-18T19:00:00Z", "When the job is expected to end, in RFC 3339."
)
POD_PROGRESS = LabelKey("gputopo.io/progress", "83", "Progress of the job since its start, in percent.")
POD_RESTART_TIME = LabelKey(
    "gputopo.io/restart-time",
    "4m",
    "Time from the start of a replacement until it continues the work: load image and checkpoint.",
)
POD_PREEMPTIBLE = LabelKey(
    "gputopo.io/preemptible",
    "never",
    "`never` or `false`: the pod should not be evicted for other pods; the policy limits for how long this counts.",
)
DISRUPTION_KEYS = (
    POD_LAST_CHECKPOINT,
    POD_CHECKPOINTS,
    POD_EXPECTED_DURATION,
    POD_ESTIMATED_COMPLETION,
    POD_PROGRESS,
    POD_RESTART_TIME,
    POD_PREEMPTIBLE,
)

# Annotations that the planner writes on a member, in the patch that ungates it.
POD_GANG_RANK = LabelKey(
    "gputopo.io/gang-rank", "3", "Rank of the pod in the plan: pods with consecutive ranks are close in the network."
)
POD_RESERVATION = LabelKey("gputopo.io/reservation", "llm-7-4f2a9c", "The `PlacementReservation` that placed the pod.")
POD_ROLLED_BACK = LabelKey(
    "gputopo.io/taken-back", "llm-7-4f2a9c", "The `PlacementReservation` of a placement that was rolled back."
)
WRITTEN_ON_PODS = (POD_GANG_RANK, POD_RESERVATION, POD_ROLLED_BACK)

# The scheduling gate that keeps a member from kube-scheduler until its gang is planned.
GATE = "gputopo.io/gang"
# A namespace in which pods that name a gang are gated for any scheduler.
GANGS_ENABLED = LabelKey(
    "gputopo.io/gangs", "enabled", "Pods in this namespace that name a gang are gated at creation."
)

POD_KEYS = (
    POD_GPU_MODEL,
    POD_GPU_MODEL_SHORT,
    POD_ISLAND,
    POD_INTERCONNECT,
    POD_NUMA,
    POD_NIC,
    POD_MAX_PCIE_DISTANCE,
    POD_MIN_VRAM,
    POD_VRAM,
    POD_MIN_BANDWIDTH,
    POD_WORKLOAD,
    POD_ISOLATION,
    POD_SPREAD,
    POD_SAME_PRODUCT,
    *GANG_KEYS,
    *DISRUPTION_KEYS,
    *WRITTEN_ON_PODS,
)
