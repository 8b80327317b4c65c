"""The requirements of a pod, in words and with their keys; which are hard, and a pod without one of them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import MIG_RESOURCE_PREFIX, LabelKey
from gputopo.labels.reasons import Reason
from gputopo.render.wording import format_number
from scheduler_core.explain.model import RequirementItem
from scheduler_core.request.device_request import WHOLE, ContainerSteps, total_devices
from scheduler_core.request.pod_request import Constraints, PodProfile, Strength

_SHAPE = frozenset({Reason.UNKNOWN_TOPOLOGY})


class FieldWording(NamedTuple):
    """The key and the words of a field of ``Constraints``."""

    key: LabelKey
    words: Callable[[Any], str]
    value: Callable[[Any], str]  # as written on the pod
    reasons: frozenset[Reason] = frozenset()  # for which the field may reject a node; empty: it rejects none


def _strength_words(what: str) -> Callable[[Strength], str]:
    texts = {Strength.REQUIRED: what, Strength.PREFERRED: f"{what} (preferred)", Strength.IGNORE: f"{what} (ignored)"}
    return texts.__getitem__


def _value_word(value: Any) -> str:
    return str(value.value)


def _mebibytes(mib: int) -> str:
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _strength_field(key: LabelKey, what: str, *reasons: Reason) -> FieldWording:
    return FieldWording(key, _strength_words(what), _value_word, frozenset(reasons))


def _memory(key: LabelKey, words: str) -> FieldWording:
    return FieldWording(key, lambda mib: words.format(_mebibytes(mib)), _mebibytes, frozenset({Reason.VRAM}))


WORDING: dict[str, FieldWording] = {
    "model": FieldWording(keys.POD_GPU_MODEL, "GPUs of the model {}".format, str, frozenset({Reason.MODEL})),
    "island": _strength_field(keys.POD_ISLAND, "all in one NVLink island", Reason.ISLAND, *_SHAPE),
    "interconnect": FieldWording(
        keys.POD_INTERCONNECT,
        lambda value: f"every hop of their ring over {value.value} or better",
        _value_word,
        _SHAPE | {Reason.INTERCONNECT},
    ),
    "numa": _strength_field(keys.POD_NUMA, "all on one NUMA node", Reason.NUMA, *_SHAPE),
    "nic": _strength_field(keys.POD_NIC, "a free RDMA network card on the NUMA node of each GPU", Reason.NIC, *_SHAPE),
    "max_pcie_distance": FieldWording(
        keys.POD_MAX_PCIE_DISTANCE,
        lambda distance: f"no two GPUs farther apart on PCIe than {distance.value}",
        _value_word,
        _SHAPE | {Reason.PCIE_DISTANCE},
    ),
    "min_vram_mib": _memory(keys.POD_MIN_VRAM, "at least {} of memory on each GPU"),
    "vram_mib": _memory(keys.POD_VRAM, "uses {} of a GPU's memory"),
    "min_gbps": FieldWording(
        keys.POD_MIN_BANDWIDTH,
        lambda gbps: f"at least {format_number(gbps)} GB/s in the weakest hop of their ring, over NVLink",
        format_number,
        _SHAPE | {Reason.BANDWIDTH},
    ),
    "workload": FieldWording(keys.POD_WORKLOAD, lambda value: f"workload class {value.value}", _value_word),
    "isolation": _strength_field(keys.POD_ISOLATION, "training and inference on different nodes", Reason.ISOLATION),
    "spread": _strength_field(keys.POD_SPREAD, "replicas of one owner on different nodes and islands"),
    "same_product": _strength_field(keys.POD_SAME_PRODUCT, "all pods of the job on GPUs of one product", Reason.MODEL),
    "parallel": FieldWording(
        keys.POD_ISLAND,
        "each tensor-parallel group of {}, by index, in one NVLink island".format,
        "required for groups of {}".format,
        _SHAPE | {Reason.ISLAND},
    ),
}  # by field of ``Constraints``


def requirements(profile: PodProfile) -> tuple[RequirementItem, ...]:
    """Return the devices, then the constraints of the pod."""
    devices = [
        RequirementItem(resource, str(total_devices(program)), _devices(resource, program), required=True)
        for resource, program in profile.device_request.steps_by_resource
    ]
    constraints = [
        RequirementItem(wording.key.key, wording.value(value), wording.words(value), required=is_hard(profile, field))
        for field, wording in WORDING.items()
        if (value := getattr(profile.constraints, field)) is not None
    ]
    return (*devices, *constraints)


def hard_fields(profile: PodProfile) -> list[str]:
    """Return the fields of the pod's constraints for which a node may be rejected."""
    return [field for field in WORDING if is_hard(profile, field)]


def is_hard(profile: PodProfile, field: str) -> bool:
    """Return whether a node may be rejected for that field.

    A pod with a single device has no shape, so only its NIC and fields that are not about the shape can reject a node.
    """
    value, reasons = getattr(profile.constraints, field), WORDING[field].reasons
    if value is None or not reasons or (isinstance(value, Strength) and value is not Strength.REQUIRED):
        return False
    return profile.devices > 1 or not reasons & _SHAPE or Reason.NIC in reasons


def without_requirement(constraints: Constraints, field: str) -> Constraints:
    """Return the constraints without the requirement of that field: preferred, or absent if it has no strength."""
    soft: Any = Strength.PREFERRED if isinstance(getattr(constraints, field), Strength) else None
    return constraints._replace(**{field: soft})


def quoted_field(profile: PodProfile, field: str) -> str:
    """Return the field as written on the pod: ``gputopo.io/numa: required``."""
    wording = WORDING[field]
    return f"{wording.key.key}: {wording.value(getattr(profile.constraints, field))}"


def goal_words(profile: PodProfile) -> str:
    """Return the GPUs that a node must have free: ``4 in one island``."""
    wanted = profile.constraints
    parts = ["in one island"] if wanted.island is Strength.REQUIRED else []
    parts += ["on one NUMA node"] if wanted.numa is Strength.REQUIRED else []
    parts += [f"within {wanted.max_pcie_distance.value}"] if wanted.max_pcie_distance is not None else []
    parts += [f"connected by {wanted.interconnect.value} or better"] if wanted.interconnect is not None else []
    parts += [f"in a ring of {format_number(wanted.min_gbps)} GB/s"] if wanted.min_gbps is not None else []
    parts = parts if profile.devices > 1 else []
    parts += ["with a free network card on the NUMA node of each"] if wanted.nic is Strength.REQUIRED else []
    shape = " and ".join(parts)
    return f"{profile.devices} {shape or 'free'}"


def _devices(resource: str, program: ContainerSteps) -> str:
    size = total_devices(program)
    kind = "whole GPU" if resource == WHOLE else "share of a GPU"
    if resource.startswith(MIG_RESOURCE_PREFIX):
        kind = f"MIG device {resource.removeprefix(MIG_RESOURCE_PREFIX)}"
    plural = kind if size == 1 else "shares of GPUs" if kind.startswith("share") else kind.replace("GPU", "GPUs")
    plural = plural.replace("MIG device ", "MIG devices ") if size > 1 else plural
    steps = ", then ".join(str(step.devices) for step in program)
    return f"{size} {plural}" + (f" (by container: {steps})" if len(program) > 1 else "")
