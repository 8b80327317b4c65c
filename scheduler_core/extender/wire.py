"""kube-scheduler's extender calls, v1 JSON: a body -> ``Arguments``, an answer -> a body. Pure.

The types of the protocol carry no JSON tags: keys come capitalised, as Go spells them, and kube-scheduler reads ours in
either case; so do we. The objects inside are ordinary Kubernetes JSON.

    WireError(ValueError)    what came is no extender call; the message quotes it and says what was expected
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
import orjson

from gputopo.process.decoding import decode, decoder
from scheduler_core.request.pod import Pod

_SHOWN = 80  # bytes of a body that an error quotes
_EXPECTED = 'expected what kube-scheduler sends to an extender: {"Pod": {...}, "NodeNames": [...], "Nodes": null}'


class InvalidCallError(ValueError):
    """What came is no extender call."""


class ExtenderArgs(NamedTuple):
    """``ExtenderArgs``: a pod, and the nodes that it may go to."""

    pod: Pod
    names: AbstractSet[str]
    cache_capable: bool = True  # nodeCacheCapable: nodes come, and are answered, as names alone


class _Metadata(msgspec.Struct, frozen=True):
    name: str


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _NodeList(msgspec.Struct, frozen=True):
    items: tuple[_Node, ...] | None = None


class _HostPriority(msgspec.Struct, gc=False, rename={"host": "Host", "score": "Score"}):
    """A quarter faster than a dict to orjson, which beats msgspec at all else that is answered."""

    host: str
    score: int


class _Body(msgspec.Struct, frozen=True, rename={"pod": "Pod", "names": "NodeNames", "nodes": "Nodes"}):
    """As kube-scheduler writes it: always all three keys."""

    pod: Pod | None
    names: set[str] | None  # straight into a set: a list and a look-up of each of its names cost more
    nodes: _NodeList | None


_BODY = decoder(_Body)
_KEYS = decoder(dict[str, msgspec.Raw])
_MEANINGS: dict[str, Any] = {"pod": Pod | None, "nodenames": set[str] | None, "nodes": _NodeList | None}


def parse_extender_args(body: bytes) -> ExtenderArgs:
    """What a call of Filter or Prioritize says. Raises ``WireError``."""
    try:
        read = _BODY(body)
    except msgspec.DecodeError as error:
        read = _in_any_case(body, error)
    pod = read.pod
    if pod is None:
        raise _not_a_call(body, "there is no Pod")
    if not pod.metadata.uid:
        raise _not_a_call(body, f"the pod {pod.metadata.name!r} has no metadata.uid")
    if read.names is not None:
        return ExtenderArgs(pod, read.names)
    if read.nodes is not None:
        return ExtenderArgs(pod, {each.metadata.name for each in read.nodes.items or ()}, cache_capable=False)
    raise _not_a_call(body, "there are neither NodeNames nor Nodes")


def filter_result(passing: Collection[str], refused: Mapping[str, str], *, cache_capable: bool = True) -> bytes:
    """``ExtenderFilterResult``: the nodes that suit, and why others do not, in texts that stay the same.

    Refused nodes are always FailedAndUnresolvableNodes: default preemption judges its victims without asking us.
    """
    nodes = None if cache_capable else {"items": [{"metadata": {"name": name}} for name in passing]}
    return orjson.dumps(
        {
            "Nodes": nodes,
            "NodeNames": list(passing) if cache_capable else None,
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": refused,
            "Error": "",
        }
    )


def filter_error(message: str) -> bytes:
    """The same with nothing but an error: kube-scheduler shows it at the pod, and tries again, later each time."""
    return orjson.dumps({"Error": message})


def host_priorities(pairs: Iterable[tuple[str, int]]) -> bytes:
    """``HostPriorityList``: whole scores from 0 to 10."""
    return msgspec.json.encode([_HostPriority(name, points) for name, points in pairs])


def _in_any_case(body: bytes, error: Exception) -> _Body:
    """The same from a body whose keys are spelled otherwise, or left out. Raises ``WireError``."""
    try:
        found = {key.lower(): raw for key, raw in _KEYS(body).items()}
        read = {key: decode(found[key], kind) for key, kind in _MEANINGS.items() if key in found}
    except msgspec.DecodeError:
        raise _not_a_call(body, str(error)) from error
    return _Body(read.get("pod"), read.get("nodenames"), read.get("nodes"))


def _not_a_call(body: bytes, why: str) -> InvalidCallError:
    return InvalidCallError(f"{why}; {_EXPECTED}; got {len(body)} bytes: {body[:_SHOWN]!r}")
