"""A pod -> what it asks of placement. Pure; what cannot be understood is a value with a reason, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from gputopo.labels import keys
from gputopo.labels.keys import Key
from gputopo.labels.reasons import malformed
from gputopo.labels.workloads import SCAVENGER
from gputopo.model import Interconnect
from scheduler_core.request.device_request import Ask, MalformedAskError, read_ask, total
from scheduler_core.request.gang_annotations import MalformedGangError, read_said
from scheduler_core.request.pod import Pod, soft_preferences
from scheduler_core.request.quantity import mib
from scheduler_core.request.unknown_keys import unread
from scheduler_core.request.workload_type import RULES, Need, Recognised, Rule, Workload, recognise

T = TypeVar("T")
_MODEL = re.compile(r"[A-Za-z0-9 ._*?\[\]-]*[A-Za-z0-9*][A-Za-z0-9 ._*?\[\]-]*")
_RATE = re.compile(r"\d{1,6}(?:\.\d{1,3})?", re.ASCII)


class Wish(Enum):
    """How much a pod wants something. Nothing said is None: it is preferred, and weighs as usual."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    IGNORE = "ignore"


class Wishes(NamedTuple):
    """What a pod asks beyond a number of GPUs. None: nothing said."""

    model: str | None = None  # a product, a short name or a glob, as written
    island: Wish | None = None
    interconnect: Interconnect | None = None  # NVLINK or NVSWITCH, at least
    numa: Wish | None = None
    min_vram_mib: int | None = None  # of each GPU
    vram_mib: int | None = None  # a share of one GPU's memory that the pod will use
    min_gbps: float | None = None  # GB/s, both ways, of the ring through its GPUs
    workload: Workload | None = None  # what it says it is, or is recognised as
    isolation: Wish | None = None  # training and inference on different nodes
    spread: Wish | None = None  # PREFERRED or IGNORE: replicas of one owner on different nodes and islands
    parallel: int | None = None  # tensor-parallel degree: each group of so many GPUs, by index, in one island


class Like(NamedTuple):
    """What the other pods of a job run on."""

    product: str | None
    driver: str | None


class Profile(NamedTuple):
    """All that decides about a pod's nodes. Pods of one profile get the same answers, so answers are kept by it."""

    ask: Ask = Ask()
    wishes: Wishes = Wishes()
    scavenger: bool = False  # by its priority class: takes what is left over, and where it may end any time
    like: Like | None = None  # of training whose other pods are placed already

    @property
    def gpus(self) -> int:
        """Whole GPUs that the pod holds."""
        return total(self.ask.whole)

    @property
    def devices(self) -> int:
        """Devices of all kinds that the pod holds."""
        return sum(devices for _, devices in self.ask.totals)

    @property
    def shape_required(self) -> bool:
        """Whether something about the set of its GPUs must hold, which another pod could break."""
        wishes = self.wishes
        return (
            wishes.island is Wish.REQUIRED
            or wishes.numa is Wish.REQUIRED
            or wishes.interconnect is not None
            or wishes.min_gbps is not None
            or wishes.parallel is not None
        ) and self.devices > 1

    @property
    def must_hold(self) -> bool:
        """Whether something must hold that another pod on the node could break: then Filter answers one node."""
        wishes = self.wishes
        return self.shape_required or wishes.isolation is Wish.REQUIRED or wishes.vram_mib is not None


class PodRequest(NamedTuple):
    """A pod as placement sees it."""

    uid: str
    namespace: str
    name: str
    scheduler: str | None  # spec.schedulerName
    profile: Profile
    soft_preferences: bool = False  # has preferences of its own among nodes: deserves to see all that pass
    owner: str | None = None  # UID of what made it, and makes others like it
    recognised: tuple[str, ...] = ()  # why it is taken for what it is, and what follows, for people to read


class Refused(NamedTuple):
    """A pod that asks for something that cannot be understood."""

    reason: str  # quotes the key and the value; the same for every node and every call


class _MalformedError(Exception):
    """Carries the reason out of a parser to ``read_request``, the only one that catches it."""


class Reading(NamedTuple):
    """How pods are read: which rules count, and how strong what they demand is."""

    rules: tuple[Rule, ...] = RULES
    demands: Wish = Wish.REQUIRED


AS_BUILT = Reading()


def read_request(pod: Pod, reading: Reading = AS_BUILT) -> PodRequest | Refused:
    """What a pod asks for, and what follows from what it is."""
    metadata, spec = pod.metadata, pod.spec
    try:
        ask = read_ask(spec)
        said = _wishes(metadata.labels or {}, metadata.annotations or {})
        read_said(metadata.annotations or {})  # the planner's to follow; what nobody can follow is refused here too
    except (_MalformedError, MalformedAskError, MalformedGangError) as error:
        return Refused(str(error))
    if ask.programs and (reason := unread(metadata.labels or {}, metadata.annotations or {})) is not None:
        return Refused(reason)
    found = recognise(pod, reading.rules) if ask.programs else Recognised()
    scavenger = spec.priority_class_name == SCAVENGER
    profile = Profile(ask, _with_needs(said, total(ask.whole), found, reading.demands), scavenger)
    return PodRequest(
        metadata.uid,
        metadata.namespace,
        metadata.name,
        spec.scheduler_name,
        profile,
        soft_preferences(spec),
        None if metadata.owner is None else metadata.owner.uid,
        found.reasons,
    )


def _with_needs(said: Wishes, gpus: int, found: Recognised, demands: Wish) -> Wishes:
    """What the pod says, and what its rules add where it says nothing."""
    wishes = said if said.workload is not None else said._replace(workload=found.workload)
    if gpus < 2 or said.island is not None or demands is Wish.IGNORE or not found.needs:
        return wishes
    degree = min(found.degree, gpus)
    whole = Need.ISLAND in found.needs or degree == gpus  # a group that needs more than one pod fills this one
    if demands is Wish.PREFERRED or (not whole and gpus % degree):
        return wishes._replace(island=Wish.PREFERRED)
    if not whole:
        return wishes._replace(parallel=degree)
    parallel = Need.PARALLEL in found.needs and said.interconnect is None
    return wishes._replace(island=Wish.REQUIRED, interconnect=Interconnect.NVLINK if parallel else said.interconnect)


def _wishes(labels: Mapping[str, str], annotations: Mapping[str, str]) -> Wishes:
    def said(key: Key, parse: Callable[[Key, str], T]) -> T | None:
        return None if key.key not in annotations else parse(key, annotations[key.key])

    return Wishes(
        model=_model(labels, annotations),
        island=said(keys.POD_ISLAND, _one_of(Wish)),
        interconnect=said(keys.POD_INTERCONNECT, _interconnect),
        numa=said(keys.POD_NUMA, _one_of(Wish)),
        min_vram_mib=said(keys.POD_MIN_VRAM, _memory),
        vram_mib=said(keys.POD_VRAM, _memory),
        min_gbps=said(keys.POD_MIN_BANDWIDTH, _rate),
        workload=said(keys.POD_WORKLOAD, _one_of(Workload)),
        isolation=said(keys.POD_ISOLATION, _one_of(Wish)),
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
        raise _MalformedError(malformed(other_key.key, other, f"what {key.key} says: {text[:63]!r}"))
    if len(text) > 253 or _MODEL.fullmatch(text) is None:  # the longest name in Kubernetes
        raise _MalformedError(malformed(key.key, text, "a GPU product, a short name like A100, or a glob"))
    return text


def _one_of(words: type[Any]) -> Callable[[Key, str], Any]:
    def parse(key: Key, text: str) -> Any:
        try:
            return words(text)
        except ValueError:
            raise _MalformedError(malformed(key.key, text, _or([word.value for word in words]))) from None

    return parse


def _interconnect(key: Key, text: str) -> Interconnect:
    accepted = (Interconnect.NVLINK, Interconnect.NVSWITCH)
    for each in accepted:
        if each.value == text:
            return each
    raise _MalformedError(malformed(key.key, text, _or([each.value for each in accepted])))


def _spread(key: Key, text: str) -> Wish:
    if text not in (Wish.PREFERRED.value, Wish.IGNORE.value):
        raise _MalformedError(malformed(key.key, text, _or([Wish.PREFERRED.value, Wish.IGNORE.value])))
    return Wish(text)


def _memory(key: Key, text: str) -> int:
    found = mib(text)
    if found is None:
        raise _MalformedError(malformed(key.key, text, "an amount of memory like 40Gi"))
    return found


def _rate(key: Key, text: str) -> float:
    if _RATE.fullmatch(text) is None or not float(text):
        raise _MalformedError(malformed(key.key, text, "GB/s as a plain number like 300"))
    return float(text)


def _or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"
