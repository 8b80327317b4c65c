"""Decisions as JSON lines, and the replay of a decision from its line. Pure.

A line has the inputs of a decision: the pod's request, the policy, and the states of the considered nodes. Nodes of
equal state share one state, and states share topologies, so a line is little longer than its node names. For nodes that
in-flight pods may go to, a line has the whole record, because a replay evaluates these pods again.

DecisionFormatError(ValueError)    a line is not a decision; the message quotes it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar, get_type_hints

import msgspec
from immutables import Map

from gputopo.model import NodeTopology
from gputopo.render.report import listed
from scheduler_core.allocation.gpu_sets import ExactSets, Sets, SomeSet
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node import NodeFacts
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.in_flight import is_affected
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

V = TypeVar("V")
FORMAT = 1
_PER_PAUSE = 64  # nodes or states that are encoded without a pause
_NO_FACTS = NodeFacts(topology=None, described=False, allocatable=())
_FIELDS = get_type_hints(NodeState)
_KEYS = dict(zip(NodeState.__struct_fields__, NodeState.__struct_encode_fields__, strict=True))
_SET_TAGS = {ExactSets: "OneOf", SomeSet: "AnyOf"}  # JSON keys of format 1
_CONVERTED = ("shape", "free", "unreserved")  # fields that need conversion


class DecisionFormatError(ValueError):
    """A line is not a decision."""


class DecisionLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A line; its field names are the JSON keys of format 1."""

    format: int
    at: float  # seconds since 1970
    pod: str  # namespace/name
    generation: int  # of the snapshot
    answer: tuple[str, ...]  # nodes, best first
    points: tuple[float | None, ...]  # of these nodes, 0 to 10
    refused: dict[str, tuple[str, ...]] = {}  # reason -> nodes, if no node passed
    request: PodRequest
    policy: Policy
    nodes: tuple[tuple[str, ...], ...]  # considered nodes, grouped in the order of ``states``
    unknown: tuple[str, ...] = ()  # considered nodes that the cache did not have
    states: tuple[dict[str, Any], ...]
    topologies: tuple[NodeTopology, ...]
    doubtful: tuple[AssumedPod, ...] = ()  # in-flight pods, and the nodes among ``nodes`` that they may go to
    records: dict[str, NodeRecord] = {}  # of the nodes of in-flight pods
    # Of a preemption: victims by offered node. ``states`` are those without the victims, and ``answer`` the kept nodes.
    victims: dict[str, tuple[str, ...]] | None = None
    dropped: dict[str, tuple[str, ...]] = {}  # cause -> offered nodes that were not evaluated


def encode_decision(record: DecisionRecord, pause: Callable[[], None] = lambda: None) -> bytes:
    """Return the line of a decision, with its newline. ``pause``: is called after each few milliseconds of work."""
    considered = record.considered
    by_state, unknown = _nodes_by_state(record, considered, pause)
    shapes = {
        each.shape: None for state in by_state for each in (state, state.unreserved) if each and each.shape is not None
    }
    indices = {shape: index for index, shape in enumerate(shapes)}
    in_flight = _relevant_in_flight(record, considered, pause)
    in_flight_nodes = {name: None for each in in_flight for name in sorted(each.nodes)}
    request = record.request
    line = DecisionLine(
        format=FORMAT,
        at=record.at,
        pod=f"{request.namespace}/{request.name}",
        generation=record.table.generation,
        answer=record.answer.nodes,
        points=() if record.victims is not None else tuple(_points(record)),
        refused=_nodes_by_reason(record.answer.rejected),
        request=request,
        policy=record.policy,
        nodes=tuple(map(tuple, by_state.values())),
        unknown=tuple(unknown),
        states=tuple(_encoded(_encode_state(state, indices)) for state in _with_pauses(by_state, pause)),
        topologies=tuple(_encoded(shape.topology) for shape in _with_pauses(shapes, pause)),
        doubtful=in_flight,
        records={name: _encoded(record.table.records[name]) for name in _with_pauses(in_flight_nodes, pause)},
        victims=None if record.victims is None else {name: each.uids for name, each in record.victims.items()},
        dropped=_nodes_by_reason({name: cause.value for name, cause in record.dropped.items()}),
    )
    return msgspec.json.encode(line) + b"\n"


def _encoded(value: object) -> Any:
    """Return the JSON of a part. The line as a whole would be encoded in one step, in which no other thread can run."""
    return msgspec.Raw(msgspec.json.encode(value))


def _points(record: DecisionRecord) -> Iterator[float | None]:
    return (None if score is None else score.points for score in record.scores)


def parse_decision(line: bytes) -> DecisionLine:
    """Return the decision of a line. Raises ``DecisionFormatError``."""
    try:
        found = msgspec.json.decode(line, type=DecisionLine)
    except (ValueError, RecursionError) as error:
        quoted = repr(line[:80].decode(errors="replace"))
        raise DecisionFormatError(f"not a decision of an extender ({error}): {quoted}") from error
    if found.format != FORMAT:
        raise DecisionFormatError(f"unknown decision format {found.format}, expected {FORMAT}")
    return found


def replay_differences(line: DecisionLine) -> Iterator[str]:
    """Return how the decision differs when it is replayed. Raises ``DecisionFormatError``."""
    replayed = evaluate(line.request, _snapshot(line), _names(line), line.policy, line.doubtful)
    nodes = replayed.nodes if line.victims is None else tuple(sorted(replayed.scores))
    if nodes != line.answer:
        yield f"answered {_first_names(line.answer)}; now {_first_names(nodes)}"
        return
    points = tuple(score.points if (score := replayed.scores.get(name)) is not None else None for name in line.answer)
    if line.victims is None and points != line.points:
        yield f"points {line.points[:8]}; now {points[:8]}"
    before = {name: reason for reason, names in line.refused.items() for name in names}
    now = (
        {}
        if line.victims is None and replayed.nodes
        else {name: reason.value for name, reason in replayed.rejected.items()}
    )
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was rejected for {before.get(name)!r}; now for {now.get(name)!r}"


def _with_pauses(values: Iterable[V], pause: Callable[[], None]) -> Iterator[V]:
    for number, value in enumerate(values):
        if number % _PER_PAUSE == 0:
            pause()
        yield value


def _nodes_by_state(
    record: DecisionRecord, considered: AbstractSet[str], pause: Callable[[], None]
) -> tuple[dict[NodeState, list[str]], list[str]]:
    """Return the considered nodes by their states, and those that the cache does not have; both sorted by name.

    The names are sorted by state, because no other thread can run while 15,000 are sorted together.
    """
    groups: dict[NodeState | None, list[str]] = {None: []}
    state_of = record.table.states.get
    for name in _with_pauses(considered, pause):
        groups.setdefault(state_of(name), []).append(name)
    for names in _with_pauses(groups.values(), pause):
        names.sort()
    unknown = groups.pop(None)
    by_first_name = sorted(groups.items(), key=lambda group: group[1][0])
    return {state: names for state, names in by_first_name if state is not None}, unknown


def _nodes_by_reason(rejected: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for name, reason in rejected.items():
        groups.setdefault(reason, []).append(name)
    return {reason: tuple(names) for reason, names in groups.items()}


def _relevant_in_flight(
    record: DecisionRecord, considered: AbstractSet[str], pause: Callable[[], None]
) -> tuple[AssumedPod, ...]:
    """Return the in-flight pods that can change the decision, each with the nodes where it can."""
    profile, state_of = record.request.profile, record.table.states.get
    found = []
    for each in record.in_flight:
        pause()
        nodes = (name for name in each.nodes & considered if (state := state_of(name)) and is_affected(profile, state))
        found.append(AssumedPod(each.pod, frozenset(nodes), 0.0))
    return tuple(each for each in found if each.nodes)


def _names(line: DecisionLine) -> list[str]:
    return [*(name for names in line.nodes for name in names), *line.unknown]


def _snapshot(line: DecisionLine) -> ClusterSnapshot:
    shapes = [shape_of(topology) for topology in line.topologies]
    if len(line.nodes) != len(line.states):
        raise DecisionFormatError(f"{len(line.states)} states for {len(line.nodes)} groups of nodes")
    try:
        states = [_decode_state(state, shapes) for state in line.states]
    except (msgspec.ValidationError, LookupError, TypeError) as error:
        raise DecisionFormatError(f"invalid node state: {error}") from error
    by_name = {name: state for names, state in zip(line.nodes, states, strict=True) for name in names}
    # The states of the other nodes include their pods.
    records = {name: NodeRecord(name, _NO_FACTS) for name in by_name} | line.records
    return ClusterSnapshot(line.generation, Map(records), Map(by_name))


def _encode_state(state: NodeState, indices: Mapping[MachineShape, int]) -> dict[str, Any]:
    fields = {_KEYS[name]: getattr(state, name) for name in _FIELDS}
    fields["shape"] = None if state.shape is None else indices[state.shape]
    fields["free"] = None if state.free is None else {_SET_TAGS[type(state.free)]: list(state.free)}
    fields["open"] = None if state.unreserved is None else _encode_state(state.unreserved, indices)
    return fields


def _decode_state(fields: dict[str, Any], shapes: list[MachineShape]) -> NodeState:
    kinds = {name: kind for name, kind in _FIELDS.items() if name not in _CONVERTED}
    for name in ("busy_nics", "pending_nics", "extras", "proximity"):
        if _KEYS[name] not in fields:
            del kinds[name]  # a log of gputopo 0.1.0
    found = {name: msgspec.convert(fields[_KEYS[name]], kind) for name, kind in kinds.items()}
    index, free, unreserved = (fields.get(_KEYS[name]) for name in _CONVERTED)
    return NodeState(
        **found,
        shape=None if index is None else shapes[index],
        free=None if free is None else _decode_sets(free),
        unreserved=None if unreserved is None else _decode_state(unreserved, shapes),
    )


def _decode_sets(encoded: dict[str, Any]) -> Sets:
    if "OneOf" in encoded:
        return ExactSets(tuple(encoded["OneOf"][0]))
    return SomeSet(*encoded["AnyOf"])


def _first_names(names: tuple[str, ...]) -> str:
    return listed(names, 8) or "no node"
