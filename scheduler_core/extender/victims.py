"""``preemptVerb``: the nodes on which kube-scheduler may preempt, because the pod then gets what it requires. Pure.

kube-scheduler's default preemption counts devices. It chooses victims that leave enough GPUs by number, perhaps from
two islands, deletes them, and the pod still waits. So each node that it offers is evaluated without its victims, as
Filter will evaluate it: with the worst outcome of the device plugin, reservations, capacity holds and in-flight pods.
Nodes that fail are dropped, and victims are never changed: kube-scheduler proved its own filters with exactly these.

Dropped as well are nodes whose victims kube-scheduler could not delete as it expects (without victims, or with pods of
other nodes, as a PodGroup of Kubernetes 1.37 may have), nodes whose victims are unknown here, nodes whose victims are a
part of a gang: the rest of the gang would lose its work too, and nodes with victims that the policy protects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice
from time import thread_time
from typing import NamedTuple

import msgspec

from gputopo.labels.reasons import Reason
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import evaluate, spread_hash
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest

MAX_S = 0.1  # of CPU time: a call blocks all scheduling
_AT_ONCE = 16  # nodes that are evaluated before the time is checked


# Returns the snapshot as it will be when pods (UIDs by node) have ended.
TableAfter = Callable[[Mapping[str, Collection[str]]], ClusterSnapshot]


class DropCause(Enum):
    """The causes for which a node is dropped before it is evaluated."""

    NO_VICTIMS = "kube-scheduler named no victim"
    UNKNOWN_VICTIM = "a victim is unknown, or requests no GPU"
    OTHER_NODE = "a victim is on another node"
    PART_OF_GANG = "the victims are a part of a gang"
    PROTECTED = "the policy protects a victim"
    UNSETTLED = "pods that another extender accepted may be on their way to the node"
    OUT_OF_TIME = "not evaluated in time"


class NodeVictims(NamedTuple):
    """The pods of one node that kube-scheduler would delete for another pod."""

    uids: tuple[str, ...]
    budget_violations: int = 0  # PodDisruptionBudgets that would be violated


class PreemptionResult(NamedTuple):
    """The answer to kube-scheduler's preemption, node by node."""

    kept: Mapping[str, NodeVictims]
    dropped: Mapping[str, DropCause]
    rejected: Mapping[str, str]  # reason by node: without the victims the pod would not fit either


def plausible_nodes(
    offered: Mapping[str, NodeVictims],
    pods: Mapping[str, PodUpdate],
    is_protected: Callable[[PodUpdate], bool] = lambda _: False,
    *,
    for_gpus: bool,
) -> tuple[dict[str, NodeVictims], dict[str, DropCause]]:
    """Return the nodes whose victims kube-scheduler can delete without harm to others, and the causes of dropped nodes.

    ``pods``: all GPU pods by UID. ``for_gpus``: the preempting pod requests GPUs; else victims may be any pods.
    """
    whole = _is_whole_gang(offered, pods)
    kept, dropped = {}, {}
    for node, victims in offered.items():
        cause = _drop_cause(node, victims, pods, for_gpus=for_gpus)
        if cause is None and not whole(victims):
            cause = DropCause.PART_OF_GANG
        if cause is None and any(is_protected(pod) for uid in victims.uids if (pod := pods.get(uid)) is not None):
            cause = DropCause.PROTECTED
        if cause is None:
            kept[node] = victims
        else:
            dropped[node] = cause
    return kept, dropped


def _drop_cause(node: str, victims: NodeVictims, pods: Mapping[str, PodUpdate], *, for_gpus: bool) -> DropCause | None:
    if not victims.uids:
        return DropCause.NO_VICTIMS
    known = [pod for uid in victims.uids if (pod := pods.get(uid)) is not None]
    if any(pod.node != node for pod in known):
        return DropCause.OTHER_NODE
    return DropCause.UNKNOWN_VICTIM if for_gpus and len(known) < len(victims.uids) else None


def _is_whole_gang(offered: Mapping[str, NodeVictims], pods: Mapping[str, PodUpdate]) -> Callable[[NodeVictims], bool]:
    """Return a function that returns whether the victims of a node contain each of their gangs as a whole."""
    named = {pod.gang for each in offered.values() for uid in each.uids if (pod := pods.get(uid)) is not None}
    gangs = named - {None}
    sizes = Counter(pod.gang for pod in pods.values() if pod.gang in gangs) if gangs else Counter[str | None]()

    def is_whole(victims: NodeVictims) -> bool:
        found = Counter(pod.gang for uid in set(victims.uids) if (pod := pods.get(uid)) is not None)
        return all(gang is None or count == sizes[gang] for gang, count in found.items())

    return is_whole


class _Evaluated(NamedTuple):
    """The nodes without their victims, evaluated."""

    table: ClusterSnapshot
    evaluated: frozenset[str]
    fitting: tuple[str, ...]
    rejected: Mapping[str, str]  # reason by node


def fits_after_eviction(
    request: PodRequest,
    tables: Sequence[TableAfter],
    offered: Mapping[str, NodeVictims],
    in_flight: Sequence[AssumedPod],
    policy: Policy,
) -> _Evaluated:
    """Evaluate the nodes without their victims, for as long as one call may take.

    ``tables``: to try one after the other: with all capacity holds, then without those that the pod ignores.
    """
    until = thread_time() + MAX_S
    found, evaluated, rejected = tables[0]({}), set[str](), dict[str, str]()
    for names in _in_turns(offered, found.generation):
        if evaluated and thread_time() > until:
            break
        left: Collection[str] = names
        for table in tables:
            after = table({name: frozenset(offered[name].uids) for name in left})
            reasons = evaluate(request, after, left, policy, in_flight).rejected
            found = _with_nodes_of(found, after, left)
            rejected = {name: reason for name, reason in rejected.items() if name not in left}
            rejected |= {name: reason.value for name, reason in reasons.items()}
            left = [name for name, reason in reasons.items() if reason is Reason.RESERVED]
        evaluated |= set(names)
    fitting = tuple(sorted(evaluated - rejected.keys()))
    return _Evaluated(found, frozenset(evaluated), fitting, rejected)


def _with_nodes_of(snapshot: ClusterSnapshot, other: ClusterSnapshot, names: Collection[str]) -> ClusterSnapshot:
    """Return the snapshot with these nodes as the other one has them."""
    known = [name for name in names if name in other.states]
    return msgspec.structs.replace(
        snapshot,
        records=snapshot.records.update({name: other.records[name] for name in known}),
        states=snapshot.states.update({name: other.states[name] for name in known}),
    )


def _in_turns(names: Collection[str], turn: int) -> Iterator[tuple[str, ...]]:
    """Yield the names in groups, in an order that depends on ``turn``, so that no node is always last."""
    ordered = iter(sorted(names, key=lambda name: (spread_hash(f"{turn}/{name}"), name)))
    while group := tuple(islice(ordered, _AT_ONCE)):
        yield group
