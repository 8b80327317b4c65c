"""A pod -> what it requests of placement. Pure; an invalid request is a value with a reason, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from gputopo.labels import keys
from gputopo.labels.keys import LabelKey
from gputopo.labels.reasons import malformed_text
from gputopo.labels.workloads import SCAVENGER
from gputopo.model import Interconnect, PcieDistance
from gputopo.quantities import parse_mib
from scheduler_core.request.device_request import (
    DeviceRequest,
    MalformedDeviceRequestError,
    parse_device_request,
    total_devices,
)
from scheduler_core.request.gang_annotations import MalformedGangError, parse_gang_annotations
from scheduler_core.request.job_key import job_key
from scheduler_core.request.pod import Pod, has_soft_preferences
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
E = TypeVar("E", bound=Enum)
PCIE_LIMITS = (PcieDistance.PIX, PcieDistance.PXB, PcieDistance.PHB, PcieDistance.NODE)
_MODEL = re.compile(r"[A-Za-z0-9 ._*?\[\]-]*[A-Za-z0-9*][A-Za-z0-9 ._*?\[\]-]*")
_RATE = re.compile(r"\d{1,6}(?:\.\d{1,3})?", re.ASCII)


class Strength(Enum):
    """The strength of a constraint. None, where it is used, means not set: preferred, with the usual weight."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    IGNORE = "ignore"


class Constraints(NamedTuple):
    """The constraints that a pod requests beyond a number of GPUs. None: not set."""

    model: str | None = None  # a product, a short name or a glob, as written
    island: Strength | None = None
    interconnect: Interconnect | None = None  # NVLINK or NVSWITCH, at least
    numa: Strength | None = None
    nic: Strength | None = None  # an RDMA NIC on the NUMA node of each GPU
    max_pcie_distance: PcieDistance | None = None  # between any two of its GPUs
    min_vram_mib: int | None = None  # of each GPU
    vram_mib: int | None = None  # memory that the pod will use of a shared GPU
    min_gbps: float | None = None  # GB/s in both directions, of the ring through its GPUs
    workload: WorkloadType | None = None  # as annotated, or as detected
    isolation: Strength | None = None  # training and inference on different nodes
    spread: Strength | None = None  # PREFERRED or IGNORE: replicas of one owner on different nodes and islands
    parallel: int | None = None  # tensor-parallel degree: each group of this many GPUs, by index, in one island
    same_product: Strength | None = None  # all pods of the job on GPUs of one product; None: PREFERRED


class SiblingHardware(NamedTuple):
    """The product and driver that the other pods of a job run on."""

    product: str | None
    driver: str | None


class PodExtras(NamedTuple):
    """Labels and annotations that only extensions of the policy read, sorted by key."""

    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


class PodProfile(NamedTuple):
    """Everything that decides which nodes suit a pod. Equal profiles get equal decisions, so decisions are cached."""

    device_request: DeviceRequest = DeviceRequest()
    constraints: Constraints = Constraints()
    scavenger: bool = False  # by its priority class: prefers leftover GPUs and spot capacity
    sibling_hardware: SiblingHardware | None = None  # of training with other pods placed already
    extras: PodExtras | None = None  # None: no extension reads pods
    near_siblings: bool = False  # nodes near the other pods of the job score higher
    has_peers: bool = False  # pods of its gang, or placed pods of its job, with which it probably communicates

    def label(self, key: str) -> str | None:
        """Return a label that an extension reads; None: the pod does not have it."""
        return None if self.extras is None else dict(self.extras.labels).get(key)

    def annotation(self, key: str) -> str | None:
        """Return an annotation that an extension reads; None: the pod does not have it."""
        return None if self.extras is None else dict(self.extras.annotations).get(key)

    @property
    def gpus(self) -> int:
        """The number of whole GPUs that the pod holds."""
        return total_devices(self.device_request.whole_gpu_steps)

    @property
    def devices(self) -> int:
        """The number of devices of all kinds that the pod holds."""
        return sum(devices for _, devices in self.device_request.totals)

    @property
    def requires_shape(self) -> bool:
        """True if the pod has a required shape: a property of its set of GPUs that another pod could prevent."""
        constraints = self.constraints
        of_several = (
            constraints.island is Strength.REQUIRED
            or constraints.numa is Strength.REQUIRED
            or constraints.max_pcie_distance is not None
            or constraints.interconnect is not None
            or constraints.min_gbps is not None
            or constraints.parallel is not None
        )
        return (of_several and self.devices > 1) or (constraints.nic is Strength.REQUIRED and self.gpus > 0)

    @property
    def has_hard_constraints(self) -> bool:
        """True if another pod on the node could violate a requirement of the pod; Filter then returns one node."""
        constraints = self.constraints
        return (
            self.requires_shape
            or constraints.isolation is Strength.REQUIRED
            or constraints.vram_mib is not None
            or constraints.same_product is Strength.REQUIRED
        )

    @property
    def is_isolation_sensitive(self) -> bool:
        """True if the pod is training or inference, or has the annotation ``isolation``, unless it says ``ignore``."""
        isolation, workload = self.constraints.isolation, self.constraints.workload
        if isolation is Strength.IGNORE:
            return False
        return isolation is not None or workload in (WorkloadType.TRAINING, WorkloadType.INFERENCE)

    @property
    def wants_spread(self) -> bool:
        """True if replicas should be on different nodes: of inference, and of pods that ask for it."""
        spread = self.constraints.spread
        return spread is Strength.PREFERRED or (spread is None and self.constraints.workload is WorkloadType.INFERENCE)


class PodRequest(NamedTuple):
    """A pod, as far as placement needs it."""

    uid: str
    namespace: str
    name: str
    scheduler: str | None  # spec.schedulerName
    profile: PodProfile
    has_soft_preferences: bool = False  # Filter returns all nodes that fit
    owner: str | None = None  # UID of its controller
    detection: tuple[str, ...] = ()  # why it has its workload type, and what follows, for people to read
    job: str | None = None  # that it names by label or annotation (``job_key``)


class InvalidRequest(NamedTuple):
    """A pod with an invalid request."""

    reason: str  # quotes the key and the value; the same text for every node and call


class _MalformedError(Exception):
    """Carries the reason from a parser to ``parse_request``, which catches it."""


class ParsingPolicy(NamedTuple):
    """How pods are parsed: the detection rules in use, and the strength of the needs that they add."""

    rules: tuple[DetectionRule, ...] = DETECTION_RULES
    needs_strength: Strength = Strength.REQUIRED


DEFAULT_PARSING = ParsingPolicy()


def parse_request(pod: Pod, reading: ParsingPolicy = DEFAULT_PARSING) -> PodRequest | InvalidRequest:
    """Parse what a pod requests, and add what its workload type needs."""
    metadata, spec = pod.metadata, pod.spec
    try:
        requested = parse_device_request(spec)
        annotated = _constraints(metadata.labels or {}, metadata.annotations or {})
        parse_gang_annotations(metadata.annotations or {})  # for the planner, but invalid values are rejected here too
    except (_MalformedError, MalformedDeviceRequestError, MalformedGangError) as error:
        return InvalidRequest(str(error))
    if (
        requested.steps_by_resource
        and (reason := unknown_key_reason(metadata.labels or {}, metadata.annotations or {})) is not None
    ):
        return InvalidRequest(reason)
    found = detect_workload(pod, reading.rules) if requested.steps_by_resource else Detection()
    scavenger = spec.priority_class_name == SCAVENGER
    needs = _with_workload_needs(annotated, total_devices(requested.whole_gpu_steps), found, reading.needs_strength)
    profile = _shared_profile(PodProfile(requested, needs, scavenger))
    return PodRequest(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        spec.scheduler_name,
        profile,
        has_soft_preferences(spec),
        None if metadata.owner is None else metadata.owner.uid,
        found.reasons,
        job_key(metadata),
    )


@lru_cache(maxsize=1 << 12)
def _shared_profile(profile: PodProfile) -> PodProfile:
    """Return one object for all equal profiles: 100,000 pods have a few hundred different ones."""
    return profile


def _with_workload_needs(annotated: Constraints, gpus: int, found: Detection, demands: Strength) -> Constraints:
    """Return the constraints of the pod, with the needs of its workload type where the pod sets none."""
    constraints = annotated if annotated.workload is not None else annotated._replace(workload=found.workload)
    if gpus < 2 or annotated.island is not None or demands is Strength.IGNORE or not found.needs:
        return constraints
    degree = min(found.degree, gpus)
    whole = WorkloadNeed.ISLAND in found.needs or degree == gpus  # a group of several pods uses all GPUs of this pod
    if demands is Strength.PREFERRED or (not whole and gpus % degree):
        return constraints._replace(island=Strength.PREFERRED)
    if not whole:
        return constraints._replace(parallel=degree)
    parallel = WorkloadNeed.PARALLEL in found.needs and annotated.interconnect is None
    return constraints._replace(
        island=Strength.REQUIRED, interconnect=Interconnect.NVLINK if parallel else annotated.interconnect
    )


def _constraints(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Constraints:
    model = _model(labels, annotations)
    found = {
        field: parse(key, annotations[key.key]) for field, key, parse in _PARSED_ANNOTATIONS if key.key in annotations
    }
    return Constraints(model, **found)


def _model(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str | None:
    """A label cannot contain ``*``, so a glob is an annotation with the same key. Two different values are rejected."""
    found: dict[str, LabelKey] = {}
    for where in (labels, annotations):
        for key in (keys.POD_GPU_MODEL, keys.POD_GPU_MODEL_SHORT):
            if key.key in where:
                found.setdefault(where[key.key], key)
    if not found:
        return None
    (text, key), *others = found.items()
    if others:
        other, other_key = others[0]
        raise _MalformedError(malformed_text(other_key.key, other, f"the value of {key.key}: {text[:63]!r}"))
    if len(text) > 253 or _MODEL.fullmatch(text) is None:  # the maximum length of a name in Kubernetes
        raise _MalformedError(malformed_text(key.key, text, "a GPU product, a short name like A100, or a glob"))
    return text


def _one_of(accepted: Iterable[E]) -> Callable[[LabelKey, str], E]:
    by_text = {each.value: each for each in accepted}

    def parse(key: LabelKey, text: str) -> E:
        if text not in by_text:
            raise _MalformedError(malformed_text(key.key, text, _alternatives(list(by_text))))
        return by_text[text]

    return parse


def _memory(key: LabelKey, text: str) -> int:
    found = parse_mib(text)
    if found is None:
        raise _MalformedError(malformed_text(key.key, text, "an amount of memory like 40Gi"))
    return found


def _rate(key: LabelKey, text: str) -> float:
    if _RATE.fullmatch(text) is None or not float(text):
        raise _MalformedError(malformed_text(key.key, text, "GB/s as a plain number like 300"))
    return float(text)


def _alternatives(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


_STRENGTH = _one_of(Strength)
# Field of ``Constraints``, annotation, parser of its value.
_PARSED_ANNOTATIONS: tuple[tuple[str, LabelKey, Callable[[LabelKey, str], Any]], ...] = (
    ("island", keys.POD_ISLAND, _STRENGTH),
    ("interconnect", keys.POD_INTERCONNECT, _one_of((Interconnect.NVLINK, Interconnect.NVSWITCH))),
    ("numa", keys.POD_NUMA, _STRENGTH),
    ("nic", keys.POD_NIC, _STRENGTH),
    ("max_pcie_distance", keys.POD_MAX_PCIE_DISTANCE, _one_of(PCIE_LIMITS)),
    ("min_vram_mib", keys.POD_MIN_VRAM, _memory),
    ("vram_mib", keys.POD_VRAM, _memory),
    ("min_gbps", keys.POD_MIN_BANDWIDTH, _rate),
    ("workload", keys.POD_WORKLOAD, _one_of(WorkloadType)),
    ("isolation", keys.POD_ISOLATION, _STRENGTH),
    ("spread", keys.POD_SPREAD, _one_of((Strength.PREFERRED, Strength.IGNORE))),
    ("same_product", keys.POD_SAME_PRODUCT, _STRENGTH),
)
