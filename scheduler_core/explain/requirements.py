"""What a pod asks, in words, each with the key that said it; and which of it could be asked otherwise. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import MIG_RESOURCE_PREFIX, Key
from gputopo.labels.reasons import Reason
from gputopo.render.wording import format_number
from scheduler_core.explain.model import RequirementItem
from scheduler_core.request.device_request import WHOLE, ContainerSteps, total_devices
from scheduler_core.request.pod_request import Constraints, PodProfile, Strength

_SHAPE = frozenset({Reason.UNKNOWN_TOPOLOGY})


class RequirementWording(NamedTuple):
    """How one field of ``Wishes`` is told."""

    key: Key
    words: Callable[[Any], str]
    value: Callable[[Any], str]  # as the pod may write it
    reasons: frozenset[Reason] = frozenset()  # that dropping it may lift; none: no node is refused for it


def _strength_words(what: str) -> Callable[[Strength], str]:
    texts = {
        Strength.REQUIRED: f"{what}, or not at all",
        Strength.PREFERRED: f"{what}, if it can be",
        Strength.IGNORE: f"no matter whether {what}",
    }
    return texts.__getitem__


def _value_word(value: Any) -> str:
    return str(value.value)


def _mebibytes(mib: int) -> str:
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


REQUIREMENT_WORDING: dict[str, RequirementWording] = {
    "model": RequirementWording(
        keys.POD_GPU_MODEL, lambda text: f"GPUs of the model {text}", str, frozenset({Reason.MODEL})
    ),
    "island": RequirementWording(
        keys.POD_ISLAND, _strength_words("all in one NVLink island"), _value_word, _SHAPE | {Reason.ISLAND}
    ),
    "interconnect": RequirementWording(
        keys.POD_INTERCONNECT,
        lambda value: f"every hop of the ring through them over {value.value} or better",
        _value_word,
        _SHAPE | {Reason.INTERCONNECT},
    ),
    "numa": RequirementWording(
        keys.POD_NUMA, _strength_words("all on one NUMA node"), _value_word, _SHAPE | {Reason.NUMA}
    ),
    "min_vram_mib": RequirementWording(
        keys.POD_MIN_VRAM, lambda mib: f"{_mebibytes(mib)} of memory on each", _mebibytes, frozenset({Reason.VRAM})
    ),
    "vram_mib": RequirementWording(
        keys.POD_VRAM, lambda mib: f"will use {_mebibytes(mib)} of a GPU's memory", _mebibytes, frozenset({Reason.VRAM})
    ),
    "min_gbps": RequirementWording(
        keys.POD_MIN_BANDWIDTH,
        lambda gbps: f"{format_number(gbps)} GB/s in the weakest hop of the ring through them, over NVLink",
        format_number,
        _SHAPE | {Reason.BANDWIDTH},
    ),
    "workload": RequirementWording(keys.POD_WORKLOAD, lambda value: f"its work is {value.value}", _value_word),
    "isolation": RequirementWording(
        keys.POD_ISOLATION,
        _strength_words("training and inference on different nodes"),
        _value_word,
        frozenset({Reason.ISOLATION}),
    ),
    "spread": RequirementWording(
        keys.POD_SPREAD, _strength_words("replicas of one owner on different nodes and islands"), _value_word
    ),
    "parallel": RequirementWording(
        keys.POD_ISLAND,
        lambda degree: f"each tensor-parallel group of {degree}, by index, in one NVLink island",
        lambda degree: f"required for groups of {degree}",
        _SHAPE | {Reason.ISLAND},
    ),
}  # by the names of ``Wishes``


def requirements(profile: PodProfile) -> tuple[RequirementItem, ...]:
    """All that it asks: devices first, then its wishes."""
    devices = [
        RequirementItem(resource, str(total_devices(program)), _devices(resource, program), required=True)
        for resource, program in profile.device_request.steps_by_resource
    ]
    said = [
        RequirementItem(told.key.key, told.value(value), told.words(value), required=is_hard(profile, field))
        for field, told in REQUIREMENT_WORDING.items()
        if (value := getattr(profile.constraints, field)) is not None
    ]
    return (*devices, *said)


def hard_fields(profile: PodProfile) -> list[str]:
    """The fields of its wishes that a node may be refused for."""
    return [field for field in REQUIREMENT_WORDING if is_hard(profile, field)]


def is_hard(profile: PodProfile, field: str) -> bool:
    """Whether a node may be refused for that wish. One device has no shape to refuse it for."""
    value, told = getattr(profile.constraints, field), REQUIREMENT_WORDING[field]
    if value is None or not told.reasons or (isinstance(value, Strength) and value is not Strength.REQUIRED):
        return False
    return profile.devices > 1 or not told.reasons & _SHAPE


def without_requirement(wishes: Constraints, field: str) -> Constraints:
    """The same without requiring that."""
    soft: Any = Strength.PREFERRED if isinstance(getattr(wishes, field), Strength) else None
    return wishes._replace(**{field: soft})


def quoted_requirement(profile: PodProfile, field: str) -> str:
    """The wish as the pod says it: ``gputopo.io/numa: required``."""
    told = REQUIREMENT_WORDING[field]
    return f"{told.key.key}: {told.value(getattr(profile.constraints, field))}"


def goal_words(profile: PodProfile) -> str:
    """What has to come about on a node: ``4 in one island``."""
    wishes = profile.constraints
    parts = ["in one island"] if wishes.island is Strength.REQUIRED else []
    parts += ["on one NUMA node"] if wishes.numa is Strength.REQUIRED else []
    parts += [f"joined by {wishes.interconnect.value} or better"] if wishes.interconnect is not None else []
    parts += [f"in a ring of {format_number(wishes.min_gbps)} GB/s"] if wishes.min_gbps is not None else []
    shape = " and ".join(parts) if profile.devices > 1 else ""
    return f"{profile.devices} {shape or 'free'}"


def _devices(resource: str, program: ContainerSteps) -> str:
    size = total_devices(program)
    kind = "whole GPU" if resource == WHOLE else "share of a GPU"
    if resource.startswith(MIG_RESOURCE_PREFIX):
        kind = f"MIG device {resource.removeprefix(MIG_RESOURCE_PREFIX)}"
    plural = kind if size == 1 else "shares of GPUs" if kind.startswith("share") else kind.replace("GPU", "GPUs")
    plural = plural.replace("MIG device ", "MIG devices ") if size > 1 else plural
    turns = ", then ".join(str(step.devices) for step in program)
    return f"{size} {plural}" + (f" (container by container: {turns})" if len(program) > 1 else "")
