"""The closed list of rejection reasons: why a node is rejected for a pod.

To add a rejection reason: add it to ``Reason``, its advice to ``scheduler_core.explain.advice``, and a row to
docs/troubleshooting.md.

kube-scheduler copies the text into the pod's condition. The text must be byte-stable: a text that changes from call to
call (a count, a time, a node's name, an order) makes kube-scheduler retry the pod in a loop. So each reason is a fixed
sentence, and `gputopo why` explains the details.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """A rejection reason. Its value is the text that kube-scheduler shows."""

    TOO_FEW_GPUS = "too few free healthy GPUs (see: gputopo why pod)"
    MODEL = "no GPU of the requested model (see: gputopo why pod)"
    VRAM = "GPU memory below what is requested (see: gputopo why pod)"
    ISLAND = "no NVLink island with enough free GPUs (see: gputopo why pod)"
    INTERCONNECT = "interconnect below what is requested (see: gputopo why pod)"
    BANDWIDTH = "NVLink bandwidth below what is requested (see: gputopo why pod)"
    NUMA = "no NUMA node with enough free GPUs (see: gputopo why pod)"
    NIC = "no free network card near enough to the GPUs (see: gputopo why pod)"
    PCIE_DISTANCE = "PCIe distance between the GPUs above what is requested (see: gputopo why pod)"
    ADMISSION = "the kubelet may reject the pod, or its device plugin may crash (see: gputopo why pod)"
    DEGRADED = "degraded GPU hardware (see: gputopo why pod)"
    UNKNOWN_TOPOLOGY = "GPU topology unknown or too old for a required shape (see: gputopo why pod)"
    UNKNOWN_NODE = "node not yet known to gputopo (see: gputopo why pod)"
    ISOLATION = "training and inference are to be apart (see: gputopo why pod)"
    EXTENSION = "a filter of the policy file rejects the node (see: gputopo why pod)"
    RESERVED = "GPUs reserved for another workload (see: gputopo why pod)"
    MALFORMED = "the pod's request is malformed"  # always through ``malformed``


def reason_text(reason: Reason | str) -> str:
    """Return a reason for people; reasons with values of their own are texts already."""
    return reason.value if isinstance(reason, Reason) else reason


def malformed_text(key: str, value: str, expected: str) -> str:
    """Return the text for a pod with a malformed value. It depends on the pod alone, so it is stable."""
    return f"{Reason.MALFORMED.value}: {key}: {value[:63]!r} is not {expected}"


def misplaced_text(key: str, value: str) -> str:
    """Return the text for a pod with a label that must be an annotation."""
    return f"{Reason.MALFORMED.value}: {key}: {value[:63]!r} is a label, and read as an annotation only"


def unknown_key_text(key: str, value: str, nearest: str | None) -> str:
    """Return the text for a pod with an unknown key under gputopo's prefix."""
    advice = "docs/pods.md lists the known keys" if nearest is None else f"the nearest known key is {nearest}"
    return f"{Reason.MALFORMED.value}: {key[:127]}: {value[:63]!r} is the value of an unknown key: {advice}"
