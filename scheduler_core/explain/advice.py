"""The meaning of each rejection reason, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.reasons import Reason

SEE = " (see: gputopo why pod)"  # how a reason points to this explanation


class ReasonAdvice(NamedTuple):
    """The meaning of a reason, and what to do."""

    means: str
    do: str


ADVICE: dict[Reason, ReasonAdvice] = {
    Reason.TOO_FEW_GPUS: ReasonAdvice(
        "Fewer healthy GPUs (or shares, or MIG devices) are free than the pod requests.",
        "Wait for a pod to end, request fewer, or add nodes.",
    ),
    Reason.MODEL: ReasonAdvice(
        "A GPU that the pod may get is not of the requested model, or of the product that the job's other pods have "
        f"({keys.POD_SAME_PRODUCT.key}), or its model is unknown.",
        f"Compare with the node's label {keys.NVIDIA_PRODUCT.key}; on mixed nodes the kubelet may give any of them.",
    ),
    Reason.VRAM: ReasonAdvice(
        "A GPU that the pod may get has less (unclaimed) memory than requested, or its memory is unknown.",
        f"Compare with the node's label {keys.VRAM_MIB.key}, and request less or another model. Of shared GPUs "
        f"({keys.POD_VRAM.key}) the fullest that the device plugin may choose counts.",
    ),
    Reason.ISLAND: ReasonAdvice(
        "Enough GPUs are free, but the kubelet and its device plugin may take them from several NVLink islands.",
        f"Wait until an island is free, or set {keys.POD_ISLAND.key}: preferred. Where islands span NUMA nodes, a "
        "setting of the kubelet decides: set --kubelet-config of the agent, or the node's label "
        f"{keys.TOPOLOGY_MANAGER.key}.",
    ),
    Reason.INTERCONNECT: ReasonAdvice(
        "A hop between the GPUs that the pod may get is over a lower interconnect than requested.",
        f"Select nodes by the label {keys.INTERCONNECT.key}, or request less.",
    ),
    Reason.BANDWIDTH: ReasonAdvice(
        "The weakest hop of the ring through the GPUs that the pod may get is slower than requested.",
        f"{keys.POD_MIN_BANDWIDTH.key} is about the ring, not about one GPU's links: see docs/pods.md.",
    ),
    Reason.NUMA: ReasonAdvice(
        "The GPUs that the pod may get are on several NUMA nodes, or the node's Topology Manager would reject the pod.",
        f"Wait until one NUMA node has enough free GPUs, and free CPUs and memory if the kubelet allocates these "
        f"exclusively; or set {keys.POD_NUMA.key}: preferred.",
    ),
    Reason.PCIE_DISTANCE: ReasonAdvice(
        "Two of the GPUs that the pod may get are farther apart on PCIe than requested.",
        f"Compare with gputopo show --node NAME -o matrix, or raise {keys.POD_MAX_PCIE_DISTANCE.key}.",
    ),
    Reason.NIC: ReasonAdvice(
        "A GPU that the pod may get has no RDMA network card on its NUMA node, or other pods hold these cards.",
        f"Wait until a card is free, or set {keys.POD_NIC.key}: preferred.",
    ),
    Reason.ADMISSION: ReasonAdvice(
        "Two free GPUs disagree about the NVLinks between them (one reports links, the other none): NVIDIA's device "
        "plugin crashes when it compares them, so which GPUs a required shape gets is unknown. Or exclusive CPUs do "
        "not fill physical cores, and the kubelet's CPU Manager rejects that (full-pcpus-only), or may: its options "
        "are unknown.",
        "gputopo nodes shows a degraded pair: reset or replace these GPUs. For CPUs, request a multiple of the "
        "hardware threads of a core, or let the agent read the kubelet's configuration (--kubelet-config).",
    ),
    Reason.DEGRADED: ReasonAdvice(
        "A GPU that the pod may get has lost links, lanes or PCIe width, and the policy rejects such GPUs.",
        "gputopo nodes shows the degraded parts; repair them, or set degraded to avoid in the policy.",
    ),
    Reason.UNKNOWN_TOPOLOGY: ReasonAdvice(
        "The pod requires a shape, and the topology is not confirmed: no agent reports, its report is stale, or it is "
        "about another topology than the Node carries, or incomplete; or the annotation on the Node was edited.",
        "gputopo nodes shows when each agent was last seen; start it, or do not require a shape.",
    ),
    Reason.UNKNOWN_NODE: ReasonAdvice(
        "kube-scheduler knows the node and gputopo does not yet.",
        "This lasts a second; if it stays, check the extender's log.",
    ),
    Reason.RESERVED: ReasonAdvice(
        "Free GPUs there are reserved for pods that the kubelet has not admitted yet, or for a gang.",
        "Wait until these have started; gputopo gangs lists the gangs that wait.",
    ),
    Reason.ISOLATION: ReasonAdvice(
        "The pod is training and inference runs there, or the reverse; and one of the two has "
        f"{keys.POD_ISOLATION.key}: required, by itself or by the policy.",
        "Wait until the pods there have ended, or find the profile that requires it with gputopo policy show.",
    ),
    Reason.EXTENSION: ReasonAdvice(
        "A filter of another Python package, which the policy file names, rejects the node or fails.",
        "The notes below name the filter; gputopo policy show has the profile, and the extender's log the failures.",
    ),
    Reason.MALFORMED: ReasonAdvice(
        "The request of the pod is invalid, so every node rejects it.",
        "Correct the quoted value: see docs/pods.md.",
    ),
}
