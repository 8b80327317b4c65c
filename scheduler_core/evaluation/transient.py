"""Refusals that will not stand: a node that does not suit now, and may in a moment, without anything that anybody sees.

kube-scheduler asks about a refused pod again when it hears of something, else after five minutes. It does not hear when
a kubelet names the GPUs that it gave out or an agent confirms a graph that has just changed, and it may hear of a pod's
end before we do. In these cases the answer is an
error instead of a refusal: then it asks again by itself, after one second and less often later. Pure.

So an error is only for what passes soon: the agent publishes within seconds, and a node whose agent is silent turns
stale. That a pod is refused for good is said with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.best_set import best_set
from scheduler_core.allocation.gpu_sets import AnyOf, OneOf, union
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.allocation.shared_gpus import Choice
from scheduler_core.cache.node_record import NodeRecord, is_held
from scheduler_core.cache.node_state import NodeState, word_of
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.evaluation.refusals import Refusals
from scheduler_core.evaluation.shape_rules import SHAPE, broken
from scheduler_core.request.pod_request import Profile, Wish

SOON = (
    "gputopo: no node suits yet, but one may as soon as it is known which GPUs other pods have just been given or have "
    "let go; trying again (see: gputopo why pod)"
)
_SHAPES = frozenset(reason.value for reason in SHAPE)
_PASSING = _SHAPES | {Reason.VRAM.value, Reason.UNKNOWN_TOPOLOGY.value}


def soon(profile: Profile, table: NodeTable, refused: Refusals, unsure: Iterable[str]) -> bool:
    """Whether one of the refused nodes may suit without an event that kube-scheduler hears of.

    ``unsure``: those of them of which not all GPUs are known to be free or held.
    """
    reasons = refused.reasons
    if any(_passing(table.records[name]) for name in refused.names(Reason.RESERVED.value)):
        return True
    if _behind(profile, table, refused.names(Reason.TOO_FEW_GPUS.value)):
        return True
    if reasons.isdisjoint(_PASSING):
        return False
    return any(
        (refused[name] in _SHAPES and _may_work_out(profile, table, name))
        or (refused[name] == Reason.UNKNOWN_TOPOLOGY.value and table.states[name].awaited)
        or (refused[name] == Reason.VRAM.value and _may_have_room(profile, table.states[name]))
        for name in unsure
    )


def is_unsure(state: NodeState) -> bool:
    """Whether it is not known of every GPU if it is free, or of a shared one what is on it, or how they are linked."""
    if state.awaited:
        return True
    shared = state.ledger
    shifting = shared is not None and (shared.unplaced or shared.passed or any(card.left for card in shared.cards))
    return bool(shifting) or state.unsettled is not None or isinstance(state.free, AnyOf)


def _passing(record: NodeRecord) -> bool:
    """Whether what another pod is to get there it will have soon. Room that is held for a gang is held for hours."""
    return not record.reserved or not all(map(is_held, record.reserved))


def _behind(profile: Profile, table: NodeTable, too_few: Iterable[str]) -> bool:
    """kube-scheduler counts too, and asks only about nodes with enough: where we count fewer, we know of less."""
    return any(
        table.states[name].count(resource) < wanted for name in too_few for resource, wanted in profile.ask.totals
    )


def _may_work_out(profile: Profile, table: NodeTable, name: str) -> bool:
    """Whether what the kubelet has yet to name can leave enough GPUs together; not whether it is likely."""
    state, record = table.states[name], table.records[name]
    word = None if state.stale else word_of(record)
    if state.shape is None or state.free is None or word is None:
        return False
    # Before it admits a pod the kubelet has something to tell that kube-scheduler hears of.
    admitted = (pod for pod in record.pods if pod.admitted)
    if all(word.settled.get(pod.uid, 0).bit_count() >= pod.profile.gpus for pod in admitted):
        return False
    among = state.free.among if isinstance(state.free, AnyOf) else union(state.free.masks)
    return any(_has_a_good_set(profile, state.shape, among & group) for group in _groups(profile, state.shape))


def _has_a_good_set(profile: Profile, shape: Shape, among: int) -> bool:
    """Whether the fastest set of these GPUs is what the pod requires."""
    best = best_set(shape, among, profile.gpus)
    return best is not None and broken(profile.wishes, shape, OneOf((best.mask,))) is None


def _may_have_room(profile: Profile, state: NodeState) -> bool:
    """Whether a shared GPU has room as far as is known, and the kubelet has yet to say of some pods which is theirs."""
    shared = state.ledger
    if state.stale or shared is None or shared.choice is Choice.UNKNOWN:
        return False
    share = profile.wishes.vram_mib or shared.default_mib
    return any(sum(card.shares) + share <= (card.memory_mib or 0) for card in shared.cards)


def _groups(profile: Profile, shape: Shape) -> Iterable[int]:
    """Sets of GPUs of which the pod's must all be members of one; roughly, where it must be in an island as well."""
    if profile.wishes.numa is Wish.REQUIRED:
        return {shape.on_numa(node, shape.whole) for node in shape.numa if node is not None}
    return shape.islands or ()
