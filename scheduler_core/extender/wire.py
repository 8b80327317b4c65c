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
from scheduler_core.request.pod import Pod

_QUOTED = 80  # bytes of a body that an error quotes
_EXPECTED = 'expected a call of kube-scheduler: {"Pod": {...}, "NodeNames": [...], "Nodes": null}'


class InvalidCallError(ValueError):
    """A body is not an extender call."""


class ExtenderArgs(NamedTuple):
    """The arguments of a call: a pod, and the nodes that it may go to."""

    pod: Pod
    names: AbstractSet[str]
    cache_capable: bool = True  # nodeCacheCapable: the call and its answer have node names only


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...] | None = None


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


def _not_a_call(body: bytes, reason: str) -> InvalidCallError:
    return InvalidCallError(f"{reason}; {_EXPECTED}; got {len(body)} bytes: {body[:_QUOTED]!r}")
