"""What each reason means and what can be done about it: for people, so it may be long. Values only."""

from __future__ import annotations

from typing import NamedTuple

from gputopo.labels import keys
from gputopo.labels.reasons import Reason

SEE = " (see: gputopo why pod)"  # how a reason points to this very explanation


class ReasonAdvice(NamedTuple):
    """Two sentences about a reason."""

    means: str
    do: str


ADVICE: dict[Reason, ReasonAdvice] = {
    Reason.TOO_FEW_GPUS: ReasonAdvice(
        "Fewer healthy GPUs (or shares, or MIG devices) are free than the pod asks for.",
        "Wait for a pod to end, ask for fewer, or add nodes.",
    ),
    Reason.MODEL: ReasonAdvice(
        "A GPU that may come is not of the model asked for, or nobody says of which model it is.",
        f"Compare with the node's label {keys.NVIDIA_PRODUCT.key}; on mixed nodes the kubelet may give any of them.",
    ),
    Reason.VRAM: ReasonAdvice(
        "A GPU that may come has less memory than asked for, or less that no other pod has claimed; or nobody says how "
        "much it has.",
        f"Compare with the node's label {keys.VRAM_MIB.key}, and ask for less or for another model. Of shared GPUs "
        f"({keys.POD_VRAM.key}) the fullest that the device plugin may choose counts.",
    ),
    Reason.ISLAND: ReasonAdvice(
        "Enough GPUs are free, but the device plugin may take them from several NVLink islands.",
        f"Wait until an island is free, or say {keys.POD_ISLAND.key}: preferred.",
    ),
    Reason.INTERCONNECT: ReasonAdvice(
        "Between the GPUs that may come a hop is over less than asked for.",
        f"Choose nodes by the label {keys.INTERCONNECT.key}, or ask for less.",
    ),
    Reason.BANDWIDTH: ReasonAdvice(
        "The weakest hop of the ring through the GPUs that may come is slower than asked for.",
        f"{keys.POD_MIN_BANDWIDTH.key} is about the ring, not about one GPU's links: see docs/pods.md.",
    ),
    Reason.NUMA: ReasonAdvice(
        "The GPUs that may come are on several NUMA nodes, or the node's Topology Manager would reject the pod.",
        f"Wait until one NUMA node has enough free, or say {keys.POD_NUMA.key}: preferred.",
    ),
    Reason.DEGRADED: ReasonAdvice(
        "A GPU that may come has lost links, lanes or PCIe width, and the policy refuses such GPUs.",
        "gputopo nodes names what is broken; repair it, or let the policy avoid instead of refuse.",
    ),
    Reason.UNKNOWN_TOPOLOGY: ReasonAdvice(
        "The pod requires a shape, and nobody can vouch for it: no agent reports, or it did too long ago, or it speaks "
        "of another topology than the Node carries, or it cannot see.",
        "gputopo nodes shows when each agent was last heard of; start it, or do not require a shape.",
    ),
    Reason.UNKNOWN_NODE: ReasonAdvice(
        "kube-scheduler knows the node and gputopo does not yet.",
        "It passes in a second; if it stays, look at the extender's log.",
    ),
    Reason.RESERVED: ReasonAdvice(
        "Free GPUs there are promised to pods that the kubelet has not admitted yet, or kept for a gang.",
        "It passes when these have started; gputopo gangs shows what waits.",
    ),
    Reason.ISOLATION: ReasonAdvice(
        "It is training and inference runs there, or the other way round; and one of the two says "
        f"{keys.POD_ISOLATION.key}: required, or the policy says so for it.",
        "Wait until what is there has ended, or see gputopo policy show for who requires it.",
    ),
    Reason.MALFORMED: ReasonAdvice(
        "The pod itself says something that cannot be understood, so every node is refused.",
        "Correct the value that is quoted: see docs/pods.md.",
    ),
}
