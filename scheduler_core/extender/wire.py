"""kube-scheduler's extender calls, v1 JSON: body -> ``ExtenderArgs``, answer -> body. Pure.

The Go types of the protocol have no JSON tags: keys are capitalised, as the Go fields are. kube-scheduler reads keys in
any case, and so does this module. The objects inside are ordinary Kubernetes JSON.

    InvalidCallError(ValueError)    a body is not an extender call; the message quotes it and says what is expected
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
import orjson

from gputopo.process.decoding import decode, decoder
from scheduler_core.extender.victims import NodeVictims
from scheduler_core.request.pod import Pod

_QUOTED = 80  # bytes of a body that an error quotes
_EXPECTED = 'expected a call of kube-scheduler: {"Pod": {...}, "NodeNames": [...], "Nodes": null}'

_EXPECTED_PREEMPTION = (
    'expected a preemption call of kube-scheduler: {"Pod": {...}, "NodeNameToMetaVictims": {"node": {"Pods": '
    '[{"UID": "..."}], "NumPDBViolations": 0}}}'
)
_VICTIM_KEYS = ("nodenametometavictims", "nodenametovictims")


class InvalidCallError(ValueError):
    """A body is not an extender call."""


class ExtenderArgs(NamedTuple):
    """The arguments of a call: a pod, and the nodes that it may go to."""

    pod: Pod
    names: AbstractSet[str]
    cache_capable: bool = True  # nodeCacheCapable: the call and its answer have node names only


class PreemptionArgs(NamedTuple):
    """The arguments of a preemption call: a pod, and the victims on each node that kube-scheduler considers."""

    pod: Pod
    victims: Mapping[str, NodeVictims]  # by node


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str


class _NamedNode(msgspec.Struct, frozen=True):
    metadata: _NodeMetadata


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_NamedNode, ...] | None = None


class _HostPriority(msgspec.Struct, gc=False, rename={"host": "Host", "score": "Score"}):
    """Encoded by msgspec, a quarter faster than dicts by orjson; orjson is faster for all other answers."""

    host: str
    score: int


class _Body(msgspec.Struct, frozen=True, rename={"pod": "Pod", "names": "NodeNames", "nodes": "Nodes"}):
    """A body as kube-scheduler writes it: always all three keys."""

    pod: Pod | None
    names: set[str] | None  # decoding into a set is faster than a list and lookups
    nodes: _NodeList | None


_BODY = decoder(_Body)
_KEYS = decoder(dict[str, msgspec.Raw])
_POD: Any = Pod | None
_VICTIMS: Any = dict[str, dict[str, Any] | None] | None
_KEY_TYPES: dict[str, Any] = {"pod": Pod | None, "nodenames": set[str] | None, "nodes": _NodeList | None}


def parse_extender_args(body: bytes) -> ExtenderArgs:
    """Return the arguments of a Filter or Prioritize call. Raises ``InvalidCallError``."""
    try:
        call = _BODY(body)
    except msgspec.DecodeError as error:
        call = _decode_any_case(body, error)
    pod = call.pod
    if pod is None:
        raise _not_a_call(body, "Pod is missing")
    if not pod.metadata.uid:
        raise _not_a_call(body, f"the pod {pod.metadata.name!r} has no metadata.uid")
    if call.names is not None:
        return ExtenderArgs(pod, call.names)
    if call.nodes is not None:
        return ExtenderArgs(pod, {each.metadata.name for each in call.nodes.items or ()}, cache_capable=False)
    raise _not_a_call(body, "NodeNames and Nodes are missing")


def filter_result(passing: Collection[str], rejected: Mapping[str, str], *, cache_capable: bool = True) -> bytes:
    """Return an ``ExtenderFilterResult``: the suitable nodes, or the reason of each rejected node.

    Rejected nodes are always FailedAndUnresolvableNodes: default preemption chooses victims without the extender.
    """
    nodes = None if cache_capable else {"items": [{"metadata": {"name": name}} for name in passing]}
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": list(passing) if cache_capable else None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": rejected,
            "Error": "",
        }
    )


def parse_preemption_args(body: bytes) -> PreemptionArgs:
    """Return the arguments of a preemption call. Raises ``InvalidCallError``."""
    try:
        raw = {key.lower(): value for key, value in _KEYS(body).items()}
        pod = decode(raw["pod"], _POD) if "pod" in raw else None
        named, full = (decode(raw[key], _VICTIMS) if key in raw else None for key in _VICTIM_KEYS)
    except msgspec.DecodeError as error:
        raise _not_a_call(body, str(error), _EXPECTED_PREEMPTION) from error
    if pod is None or not pod.metadata.uid:
        raise _not_a_call(body, "Pod, or its metadata.uid, is missing", _EXPECTED_PREEMPTION)
    if named is None and full is None:
        raise _not_a_call(body, "NodeNameToMetaVictims and NodeNameToVictims are missing", _EXPECTED_PREEMPTION)
    return PreemptionArgs(pod, {node: _victims(body, each) for node, each in (named or full or {}).items()})


def preemption_result(kept: Mapping[str, NodeVictims]) -> bytes:
    """Return an ``ExtenderPreemptionResult``: the nodes that kube-scheduler may choose from, with all their victims.

    kube-scheduler reads ``NodeNameToMetaVictims`` only, whatever it sent.
    """
    nodes = {
        name: {"Pods": [{"UID": uid} for uid in each.uids], "NumPDBViolations": each.budget_violations}
        for name, each in kept.items()
    }
    return orjson.dumps({"NodeNameToMetaVictims": nodes})


def filter_error(message: str) -> bytes:
    """Return a result with an error, which kube-scheduler shows at the pod; it retries the pod with back-off."""
    return orjson.dumps({"Error": message})


def host_priorities(pairs: Iterable[tuple[str, int]]) -> bytes:
    """Return a ``HostPriorityList``: integer scores from 0 to 10."""
    return msgspec.json.encode([_HostPriority(name, points) for name, points in pairs])


def _decode_any_case(body: bytes, error: Exception) -> _Body:
    """Decode a body whose keys have another case or are missing. Raises ``InvalidCallError``."""
    try:
        raw_values = {key.lower(): raw for key, raw in _KEYS(body).items()}
        values = {key: decode(raw_values[key], kind) for key, kind in _KEY_TYPES.items() if key in raw_values}
    except msgspec.DecodeError:
        raise _not_a_call(body, str(error)) from error
    return _Body(values.get("pod"), values.get("nodenames"), values.get("nodes"))


def _victims(body: bytes, each: Mapping[str, Any] | None) -> NodeVictims:
    """Return the victims of one node; their UIDs are in ``Pods[].UID`` or in ``Pods[].metadata.uid``."""
    fields = _lower(each or {})
    pods, violations = fields.get("pods") or [], fields.get("numpdbviolations") or 0
    if not isinstance(pods, list) or not isinstance(violations, int):
        raise _not_a_call(body, "Pods is not a list, or NumPDBViolations not a number", _EXPECTED_PREEMPTION)
    uids = []
    for pod in pods:
        values = _lower(pod)
        uid = values.get("uid") or _lower(values.get("metadata")).get("uid")
        if not uid or not isinstance(uid, str):
            raise _not_a_call(body, "a victim has no UID", _EXPECTED_PREEMPTION)
        uids.append(uid)
    return NodeVictims(tuple(uids), violations)


def _lower(fields: object) -> dict[str, Any]:
    """Return the fields with lower-case keys; {} for anything but an object."""
    return {key.lower(): value for key, value in fields.items()} if isinstance(fields, dict) else {}


def _not_a_call(body: bytes, reason: str, expected: str = _EXPECTED) -> InvalidCallError:
    return InvalidCallError(f"{reason}; {expected}; got {len(body)} bytes: {body[:_QUOTED]!r}")
