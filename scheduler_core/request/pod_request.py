"""A pod -> what it asks of placement. Pure; what cannot be understood is a value with a reason, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from gputopo.labels import keys
from gputopo.labels.keys import Key
from gputopo.labels.reasons import malformed_text
from gputopo.labels.workloads import SCAVENGER
from gputopo.model import Interconnect
from scheduler_core.request.device_request import (
    DeviceRequest,
    MalformedDeviceRequestError,
    parse_device_request,
    total_devices,
)
from scheduler_core.request.gang_annotations import MalformedGangError, parse_gang_annotations
from scheduler_core.request.pod import Pod, has_soft_preferences
from scheduler_core.request.quantity import parse_mib
from scheduler_core.request.unknown_keys import unknown_key_reason
from scheduler_core.request.workload_type import (
    DETECTION_RULES,
    Detection,
    DetectionRule,
    WorkloadNeed,
    WorkloadType,
    detect_workload,
)

T = TypeVar("T")
_MODEL = re.compile(r"[A-Za-z0-9 ._*?\[\]-]*[A-Za-z0-9*][A-Za-z0-9 ._*?\[\]-]*")
_RATE = re.compile(r"\d{1,6}(?:\.\d{1,3})?", re.ASCII)


class Strength(Enum):
    """How much a pod wants something. Nothing said is None: it is preferred, and weighs as usual."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    IGNORE = "ignore"


class Constraints(NamedTuple):
    """What a pod asks beyond a number of GPUs. None: nothing said."""

    model: str | None = None  # a product, a short name or a glob, as written
    island: Strength | None = None
    interconnect: Interconnect | None = None  # NVLINK or NVSWITCH, at least
    numa: Strength | None = None
    min_vram_mib: int | None = None  # of each GPU
    vram_mib: int | None = None  # a share of one GPU's memory that the pod will use
    min_gbps: float | None = None  # GB/s, both ways, of the ring through its GPUs
    workload: WorkloadType | None = None  # what it says it is, or is recognised as
    isolation: Strength | None = None  # training and inference on different nodes
    spread: Strength | None = None  # PREFERRED or IGNORE: replicas of one owner on different nodes and islands
    parallel: int | None = None  # tensor-parallel degree: each group of so many GPUs, by index, in one island


class SiblingHardware(NamedTuple):
    """What the other pods of a job run on."""

    product: str | None
    driver: str | None


class PodProfile(NamedTuple):
    """All that decides about a pod's nodes. Pods of one profile get the same answers, so answers are kept by it."""

    device_request: DeviceRequest = DeviceRequest()
    constraints: Constraints = Constraints()
    scavenger: bool = False  # by its priority class: takes what is left over, and where it may end any time
    sibling_hardware: SiblingHardware | None = None  # of training whose other pods are placed already

    @property
    def gpus(self) -> int:
        """Whole GPUs that the pod holds."""
        return total_devices(self.device_request.whole_gpu_steps)

    @property
    def devices(self) -> int:
        """Devices of all kinds that the pod holds."""
        return sum(devices for _, devices in self.device_request.totals)

    @property
    def shape_required(self) -> bool:
        """Whether something about the set of its GPUs must hold, which another pod could break."""
        wishes = self.constraints
        return (
            wishes.island is Strength.REQUIRED
            or wishes.numa is Strength.REQUIRED
            or wishes.interconnect is not None
            or wishes.min_gbps is not None
            or wishes.parallel is not None
        ) and self.devices > 1

    @property
    def has_hard_constraints(self) -> bool:
        """Whether something must hold that another pod on the node could break: then Filter answers one node."""
        wishes = self.constraints
        return self.shape_required or wishes.isolation is Strength.REQUIRED or wishes.vram_mib is not None


class PodRequest(NamedTuple):
    """A pod as placement sees it."""

    uid: str
    namespace: str
    name: str
    scheduler: str | None  # spec.schedulerName
    profile: PodProfile
    has_soft_preferences: bool = False  # has preferences of its own among nodes: deserves to see all that pass
    owner: str | None = None  # UID of what made it, and makes others like it
    detection: tuple[str, ...] = ()  # why it is taken for what it is, and what follows, for people to read


class InvalidRequest(NamedTuple):
    """A pod that asks for something that cannot be understood."""

    reason: str  # quotes the key and the value; the same for every node and every call


class _MalformedError(Exception):
    """Carries the reason out of a parser to ``read_request``, the only one that catches it."""


class ParsingPolicy(NamedTuple):
    """How pods are read: which rules count, and how strong what they demand is."""

    rules: tuple[DetectionRule, ...] = DETECTION_RULES
    demands: Strength = Strength.REQUIRED


DEFAULT_PARSING = ParsingPolicy()


def parse_request(pod: Pod, reading: ParsingPolicy = DEFAULT_PARSING) -> PodRequest | InvalidRequest:
    """What a pod asks for, and what follows from what it is."""
    metadata, spec = pod.metadata, pod.spec
    try:
        ask = parse_device_request(spec)
        said = _constraints(metadata.labels or {}, metadata.annotations or {})
        parse_gang_annotations(
            metadata.annotations or {}
        )  # the planner's to follow; what nobody can follow is refused here too
    except (_MalformedError, MalformedDeviceRequestError, MalformedGangError) as error:
        return InvalidRequest(str(error))
    if (
        ask.steps_by_resource
        and (reason := unknown_key_reason(metadata.labels or {}, metadata.annotations or {})) is not None
    ):
        return InvalidRequest(reason)
    found = detect_workload(pod, reading.rules) if ask.steps_by_resource else Detection()
    scavenger = spec.priority_class_name == SCAVENGER
    profile = PodProfile(
        ask, _with_workload_needs(said, total_devices(ask.whole_gpu_steps), found, reading.demands), scavenger
    )
    return PodRequest(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        spec.scheduler_name,
        profile,
        has_soft_preferences(spec),
        None if metadata.owner is None else metadata.owner.uid,
        found.reasons,
    )


def _with_workload_needs(said: Constraints, gpus: int, found: Detection, demands: Strength) -> Constraints:
    """What the pod says, and what its rules add where it says nothing."""
    wishes = said if said.workload is not None else said._replace(workload=found.workload)
    if gpus < 2 or said.island is not None or demands is Strength.IGNORE or not found.needs:
        return wishes
    degree = min(found.degree, gpus)
    whole = WorkloadNeed.ISLAND in found.needs or degree == gpus  # a group that needs more than one pod fills this one
    if demands is Strength.PREFERRED or (not whole and gpus % degree):
        return wishes._replace(island=Strength.PREFERRED)
    if not whole:
        return wishes._replace(parallel=degree)
    parallel = WorkloadNeed.PARALLEL in found.needs and said.interconnect is None
    return wishes._replace(
        island=Strength.REQUIRED, interconnect=Interconnect.NVLINK if parallel else said.interconnect
    )


def _constraints(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Constraints:
    def said(key: Key, parse: Callable[[Key, str], T]) -> T | None:
        return None if key.key not in annotations else parse(key, annotations[key.key])

    return Constraints(
        model=_model(labels, annotations),
        island=said(keys.POD_ISLAND, _one_of(Strength)),
        interconnect=said(keys.POD_INTERCONNECT, _interconnect),
        numa=said(keys.POD_NUMA, _one_of(Strength)),
        min_vram_mib=said(keys.POD_MIN_VRAM, _memory),
        vram_mib=said(keys.POD_VRAM, _memory),
        min_gbps=said(keys.POD_MIN_BANDWIDTH, _rate),
        workload=said(keys.POD_WORKLOAD, _one_of(WorkloadType)),
        isolation=said(keys.POD_ISOLATION, _one_of(Strength)),
        spread=said(keys.POD_SPREAD, _spread),
    )


def _model(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """A label cannot hold a ``*``, so a glob comes as an annotation of the same key. Two that differ are refused."""
    found: dict[str, Key] = {}
    for where in (labels, annotations):
        for key in (keys.POD_GPU_MODEL, keys.POD_GPU_MODEL_SHORT):
            if key.key in where:
                found.setdefault(where[key.key], key)
    if not found:
        return None
    (text, key), *others = found.items()
    if others:
        other, other_key = others[0]
        raise _MalformedError(malformed_text(other_key.key, other, f"what {key.key} says: {text[:63]!r}"))
    if len(text) > 253 or _MODEL.fullmatch(text) is None:  # the longest name in Kubernetes
        raise _MalformedError(malformed_text(key.key, text, "a GPU product, a short name like A100, or a glob"))
    return text


def _one_of(words: type[Any]) -> Callable[[Key, str], Any]:
    def parse(key: Key, text: str) -> Any:
        try:
            return words(text)
        except ValueError:
            raise _MalformedError(malformed_text(key.key, text, _or([word.value for word in words]))) from None

    return parse


def _interconnect(key: Key, text: str) -> Interconnect:
    accepted = (Interconnect.NVLINK, Interconnect.NVSWITCH)
    for each in accepted:
        if each.value == text:
            return each
    raise _MalformedError(malformed_text(key.key, text, _or([each.value for each in accepted])))


def _spread(key: Key, text: str) -> Strength:
    if text not in (Strength.PREFERRED.value, Strength.IGNORE.value):
        raise _MalformedError(malformed_text(key.key, text, _or([Strength.PREFERRED.value, Strength.IGNORE.value])))
    return Strength(text)


def _memory(key: Key, text: str) -> int:
    found = parse_mib(text)
    if found is None:
        raise _MalformedError(malformed_text(key.key, text, "an amount of memory like 40Gi"))
    return found


def _rate(key: Key, text: str) -> float:
    if _RATE.fullmatch(text) is None or not float(text):
        raise _MalformedError(malformed_text(key.key, text, "GB/s as a plain number like 300"))
    return float(text)


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
