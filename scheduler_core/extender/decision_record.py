"""A decision as a line of JSON, and the same decision made again from that line. Pure.

A line has what a decision was made from: the pod's request, the policy, and the states of the nodes that were asked
about. Nodes in the same state share one, and states share topologies, so a line is little longer than its names. Of
nodes that other pods may have been on their way to it has the whole record, since what follows from those pods is
worked out anew.

DocumentError(ValueError)    a line is no decision; the message quotes it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

import msgspec
from immutables import Map

from gputopo.model import NodeTopology
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.in_flight import is_affected
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

FORMAT = 1
_UNTOLD = NodeFacts(topology=None, described=False, allocatable=())
_FIELDS = get_type_hints(NodeState)
_KEYS = dict(zip(NodeState.__struct_fields__, NodeState.__struct_encode_fields__, strict=True))
_SET_TAGS = {ExactSets: "OneOf", SomeSet: "AnyOf"}  # of format 1
_MADE = ("shape", "free", "unreserved")  # fields that are no plain values


class DecisionFormatError(ValueError):
    """A line is no decision."""


class DecisionLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line."""

    format: int
    at: float  # seconds since 1970
    pod: str  # namespace/name
    generation: int  # of the node table
    answer: tuple[str, ...]  # nodes, best first
    points: tuple[float | None, ...]  # of those, 0 to 10
    refused: dict[str, tuple[str, ...]] = {}  # reason -> nodes, where none passed
    request: PodRequest
    policy: Policy
    nodes: tuple[tuple[str, ...], ...]  # names asked about, by the place of their state in ``states``
    unknown: tuple[str, ...] = ()  # names asked about that nobody knew
    states: tuple[dict[str, Any], ...]
    topologies: tuple[NodeTopology, ...]
    doubtful: tuple[AssumedPod, ...] = ()  # other pods, and where among ``nodes`` they may have been on their way to
    records: dict[str, NodeRecord] = {}  # of those nodes


def encode_decision(record: DecisionRecord) -> bytes:
    """A line, with its end."""
    known = _by_state(record)
    shapes = {
        each.shape: None for state in known for each in (state, state.unreserved) if each and each.shape is not None
    }
    places = {shape: place for place, shape in enumerate(shapes)}
    doubtful = _doubtful(record)
    request = record.request
    line = DecisionLine(
        format=FORMAT,
        at=record.at,
        pod=f"{request.namespace}/{request.name}",
        generation=record.table.generation,
        answer=record.answer.nodes,
        points=tuple(None if score is None else score.points for score in record.scores),
        refused=_by_reason(record.answer.rejected),
        request=request,
        policy=record.policy,
        nodes=tuple(map(tuple, known.values())),
        unknown=tuple(sorted(name for name in record.considered if name not in record.table.states)),
        states=tuple(_encode_state(state, places) for state in known),
        topologies=tuple(shape.topology for shape in shapes),
        doubtful=doubtful,
        records={name: record.table.records[name] for each in doubtful for name in sorted(each.nodes)},
    )
    return msgspec.json.encode(line) + b"\n"


def parse_decision(line: bytes) -> DecisionLine:
    """A line. Raises ``DocumentError``."""
    try:
        found = msgspec.json.decode(line, type=DecisionLine)
    except (ValueError, RecursionError) as error:
        raise DecisionFormatError(f"this is no decision ({error}): {line[:80]!r}") from error
    if found.format != FORMAT:
        raise DecisionFormatError(f"this decision is of format {found.format}, and {FORMAT} is read: {line[:80]!r}")
    return found


def replay_differences(line: DecisionLine) -> Iterator[str]:
    """What is decided otherwise when the decision is made again. Raises ``DocumentError``."""
    made = evaluate(line.request, _table(line), _names(line), line.policy, line.doubtful)
    if made.nodes != line.answer:
        yield f"answered {_some(line.answer)}; now {_some(made.nodes)}"
        return
    points = tuple(score.points if (score := made.scores.get(name)) is not None else None for name in line.answer)
    if points != line.points:
        yield f"points {line.points[:8]}; now {points[:8]}"
    refused = {name: reason for reason, names in line.refused.items() for name in names}
    failed = {} if made.nodes else {name: reason.value for name, reason in made.rejected.items()}
    for name in sorted(refused.keys() | failed.keys()):
        if refused.get(name) != failed.get(name):
            yield f"{name} was refused for {refused.get(name)!r}; now for {failed.get(name)!r}"


def _by_state(record: DecisionRecord) -> dict[NodeState, list[str]]:
    """The nodes that were asked about and are known, in order, by their states."""
    groups: dict[NodeState, list[str]] = {}
    for name in sorted(record.considered):
        state = record.table.states.get(name)
        if state is not None:
            groups.setdefault(state, []).append(name)
    return groups


def _by_reason(failed: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for name, reason in failed.items():
        groups.setdefault(reason, []).append(name)
    return {reason: tuple(names) for reason, names in groups.items()}


def _doubtful(record: DecisionRecord) -> tuple[AssumedPod, ...]:
    """Those that decide something, as far as they do."""
    profile, state_of = record.request.profile, record.table.states.get
    found = []
    for each in record.in_flight:
        among = each.nodes & record.considered
        nodes = (name for name in among if (state := state_of(name)) and is_affected(profile, state))
        found.append(AssumedPod(each.pod, frozenset(nodes), 0.0))
    return tuple(each for each in found if each.nodes)


def _names(line: DecisionLine) -> list[str]:
    return [*(name for names in line.nodes for name in names), *line.unknown]


def _table(line: DecisionLine) -> Snapshot:
    shapes = [shape_of(topology) for topology in line.topologies]
    if len(line.nodes) != len(line.states):
        raise DecisionFormatError(f"{len(line.states)} states for {len(line.nodes)} groups of nodes")
    try:
        states = [_decode_state(state, shapes) for state in line.states]
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        raise DecisionFormatError(f"a state cannot be read: {error}") from error
    by_name = {name: state for names, state in zip(line.nodes, states, strict=True) for name in names}
    # What is on nodes that nobody was on the way to is in their states.
    records = {name: NodeRecord(name, _UNTOLD) for name in by_name} | line.records
    return Snapshot(line.generation, Map(records), Map(by_name))


def _encode_state(state: NodeState, places: Mapping[MachineShape, int]) -> dict[str, Any]:
    fields = {_KEYS[name]: getattr(state, name) for name in _FIELDS}
    fields["shape"] = None if state.shape is None else places[state.shape]
    fields["free"] = None if state.free is None else {_SET_TAGS[type(state.free)]: list(state.free)}
    fields["open"] = None if state.unreserved is None else _encode_state(state.unreserved, places)
    return fields


def _decode_state(fields: dict[str, Any], shapes: list[MachineShape]) -> NodeState:
    found = {name: msgspec.convert(fields[_KEYS[name]], kind) for name, kind in _FIELDS.items() if name not in _MADE}
    place, free, unreserved = (fields.get(_KEYS[name]) for name in _MADE)
    return NodeState(
        **found,
        shape=None if place is None else shapes[place],
        free=None if free is None else _sets(free),
        unreserved=None if unreserved is None else _decode_state(unreserved, shapes),
    )


def _sets(written: dict[str, Any]) -> Sets:
    if "OneOf" in written:
        return ExactSets(tuple(written["OneOf"][0]))
    return SomeSet(*written["AnyOf"])


def _some(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"{', '.join(names[:8]) or 'no node'}{more}"
