"""What a pod asks, in words, each with the key that said it; and which of it could be asked otherwise. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gputopo.labels import keys
from gputopo.labels.keys import MIG_RESOURCE_PREFIX, Key
from gputopo.labels.reasons import Reason
from gputopo.render.wording import number
from scheduler_core.explain.model import Wanted
from scheduler_core.request.device_request import WHOLE, Program, total
from scheduler_core.request.pod_request import Profile, Wish, Wishes

_SHAPE = frozenset({Reason.UNKNOWN_TOPOLOGY})


class Said(NamedTuple):
    """How one field of ``Wishes`` is told."""

    key: Key
    words: Callable[[Any], str]
    value: Callable[[Any], str]  # as the pod may write it
    reasons: frozenset[Reason] = frozenset()  # that dropping it may lift; none: no node is refused for it


def _wish(what: str) -> Callable[[Wish], str]:
    texts = {
        Wish.REQUIRED: f"{what}, or not at all",
        Wish.PREFERRED: f"{what}, if it can be",
        Wish.IGNORE: f"no matter whether {what}",
    }
    return texts.__getitem__


def _word(value: Any) -> str:
    return str(value.value)


def _mebibytes(mib: int) -> str:
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


SAID: dict[str, Said] = {
    "model": Said(keys.POD_GPU_MODEL, lambda text: f"GPUs of the model {text}", str, frozenset({Reason.MODEL})),
    "island": Said(keys.POD_ISLAND, _wish("all in one NVLink island"), _word, _SHAPE | {Reason.ISLAND}),
    "interconnect": Said(
        keys.POD_INTERCONNECT,
        lambda value: f"every hop of the ring through them over {value.value} or better",
        _word,
        _SHAPE | {Reason.INTERCONNECT},
    ),
    "numa": Said(keys.POD_NUMA, _wish("all on one NUMA node"), _word, _SHAPE | {Reason.NUMA}),
    "min_vram_mib": Said(
        keys.POD_MIN_VRAM, lambda mib: f"{_mebibytes(mib)} of memory on each", _mebibytes, frozenset({Reason.VRAM})
    ),
    "vram_mib": Said(
        keys.POD_VRAM, lambda mib: f"will use {_mebibytes(mib)} of a GPU's memory", _mebibytes, frozenset({Reason.VRAM})
    ),
    "min_gbps": Said(
        keys.POD_MIN_BANDWIDTH,
        lambda gbps: f"{number(gbps)} GB/s in the weakest hop of the ring through them, over NVLink",
        number,
        _SHAPE | {Reason.BANDWIDTH},
    ),
    "workload": Said(keys.POD_WORKLOAD, lambda value: f"its work is {value.value}", _word),
    "isolation": Said(
        keys.POD_ISOLATION, _wish("training and inference on different nodes"), _word, frozenset({Reason.ISOLATION})
    ),
    "spread": Said(keys.POD_SPREAD, _wish("replicas of one owner on different nodes and islands"), _word),
    "parallel": Said(
        keys.POD_ISLAND,
        lambda degree: f"each tensor-parallel group of {degree}, by index, in one NVLink island",
        lambda degree: f"required for groups of {degree}",
        _SHAPE | {Reason.ISLAND},
    ),
}  # by the names of ``Wishes``


def wanted(profile: Profile) -> tuple[Wanted, ...]:
    """All that it asks: devices first, then its wishes."""
    devices = [
        Wanted(resource, str(total(program)), _devices(resource, program), required=True)
        for resource, program in profile.ask.programs
    ]
    said = [
        Wanted(told.key.key, told.value(value), told.words(value), required=is_hard(profile, field))
        for field, told in SAID.items()
        if (value := getattr(profile.wishes, field)) is not None
    ]
    return (*devices, *said)


def hard(profile: Profile) -> list[str]:
    """The fields of its wishes that a node may be refused for."""
    return [field for field in SAID if is_hard(profile, field)]


def is_hard(profile: Profile, field: str) -> bool:
    """Whether a node may be refused for that wish. One device has no shape to refuse it for."""
    value, told = getattr(profile.wishes, field), SAID[field]
    if value is None or not told.reasons or (isinstance(value, Wish) and value is not Wish.REQUIRED):
        return False
    return profile.devices > 1 or not told.reasons & _SHAPE


def softened(wishes: Wishes, field: str) -> Wishes:
    """The same without requiring that."""
    soft: Any = Wish.PREFERRED if isinstance(getattr(wishes, field), Wish) else None
    return wishes._replace(**{field: soft})


def quoted(profile: Profile, field: str) -> str:
    """The wish as the pod says it: ``gputopo.io/numa: required``."""
    told = SAID[field]
    return f"{told.key.key}: {told.value(getattr(profile.wishes, field))}"


def goal(profile: Profile) -> str:
    """What has to come about on a node: ``4 in one island``."""
    wishes = profile.wishes
    parts = ["in one island"] if wishes.island is Wish.REQUIRED else []
    parts += ["on one NUMA node"] if wishes.numa is Wish.REQUIRED else []
    parts += [f"joined by {wishes.interconnect.value} or better"] if wishes.interconnect is not None else []
    parts += [f"in a ring of {number(wishes.min_gbps)} GB/s"] if wishes.min_gbps is not None else []
    shape = " and ".join(parts) if profile.devices > 1 else ""
    return f"{profile.devices} {shape or 'free'}"


def _devices(resource: str, program: Program) -> str:
    size = total(program)
    kind = "whole GPU" if resource == WHOLE else "share of a GPU"
    if resource.startswith(MIG_RESOURCE_PREFIX):
        kind = f"MIG device {resource.removeprefix(MIG_RESOURCE_PREFIX)}"
    plural = kind if size == 1 else "shares of GPUs" if kind.startswith("share") else kind.replace("GPU", "GPUs")
    plural = plural.replace("MIG device ", "MIG devices ") if size > 1 else plural
    turns = ", then ".join(str(step.devices) for step in program)
    return f"{size} {plural}" + (f" (container by container: {turns})" if len(program) > 1 else "")
