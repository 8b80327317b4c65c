"""The closed list of reasons why a node is refused for a pod.

kube-scheduler copies the text into the pod's condition. Its text must be byte-stable: one that changes from call to
call (a count, a time, a node's name, an order) puts the pod into a hot loop. So each reason is one fixed sentence, at
most a dozen exist beside that of a malformed pod, and the long story is one command away.
"""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why a node does not suit a pod. The value is the text that kube-scheduler shows."""

    TOO_FEW_GPUS = "too few free healthy GPUs (see: gputopo why pod)"
    MODEL = "no GPU of the requested model (see: gputopo why pod)"
    VRAM = "GPU memory below what is requested (see: gputopo why pod)"
    ISLAND = "no NVLink island with enough free GPUs (see: gputopo why pod)"
    INTERCONNECT = "interconnect below what is requested (see: gputopo why pod)"
    BANDWIDTH = "NVLink bandwidth below what is requested (see: gputopo why pod)"
    NUMA = "no NUMA node with enough free GPUs (see: gputopo why pod)"
    DEGRADED = "degraded GPU hardware (see: gputopo why pod)"
    UNKNOWN_TOPOLOGY = "GPU topology unknown or too old for a required shape (see: gputopo why pod)"
    UNKNOWN_NODE = "node not yet known to gputopo (see: gputopo why pod)"
    ISOLATION = "training and inference are to be apart (see: gputopo why pod)"
    RESERVED = "GPUs reserved for another workload (see: gputopo why pod)"
    MALFORMED = "the pod's request is malformed"  # always through ``malformed``


def malformed_text(key: str, value: str, expected: str) -> str:
    """The text for a pod whose own key cannot be understood. It varies with the pod alone, so it is stable for it."""
    return f"{Reason.MALFORMED.value}: {key}: {value[:63]!r} is not {expected}"


def misplaced_text(key: str, value: str) -> str:
    """The text for a pod that says as a label what is read as an annotation."""
    return f"{Reason.MALFORMED.value}: {key}: {value[:63]!r} is a label, and read as an annotation only"


def unknown_key_text(key: str, value: str, nearest: str | None) -> str:
    """The text for a pod with a key under our prefix that nobody reads."""
    meant = "docs/pods.md lists the known keys" if nearest is None else f"the nearest known key is {nearest}"
    return f"{Reason.MALFORMED.value}: {key[:127]}: {value[:63]!r} is the value of an unknown key: {meant}"
