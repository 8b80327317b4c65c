"""Refusals that will not stand: a node that does not suit now, and may in a moment, without anything that anybody sees.

kube-scheduler asks about a refused pod again when it hears of something, else after five minutes. It does not hear when
a kubelet names the GPUs that it gave out, and it may hear of a pod's end before we do. In these cases the answer is an
error instead of a refusal: then it asks again by itself, after one second and less often later. Pure.

So an error is only for what passes soon: the agent publishes within seconds, and a node whose agent is silent turns
stale. That a pod is refused for good is said with its reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputopo.labels.reasons import Reason
from scheduler_core.nodes import NodeState, NodeTable, word_of
from scheduler_core.request import Profile, Wish
from scheduler_core.sets import AnyOf, union
from scheduler_core.shapes import Shape

SOON = (
    "gputopo: no node suits yet, but one may as soon as it is known which GPUs other pods have just been given or have "
    "let go; trying again (see: gputopo why pod)"
)
_SHAPES = frozenset(each.value for each in (Reason.ISLAND, Reason.INTERCONNECT, Reason.BANDWIDTH, Reason.NUMA))


def soon(profile: Profile, table: NodeTable, refused: Mapping[str, str], unsure: Iterable[str]) -> bool:
    """Whether one of the refused nodes may suit without an event that kube-scheduler hears of.

    ``unsure``: those of them of which not all GPUs are known to be free or held.
    """
    reasons = set(refused.values())
    if Reason.RESERVED.value in reasons:  # for a pod that is on its way
        return True
    if Reason.TOO_FEW_GPUS.value in reasons and _behind(profile, table, refused):
        return True
    return not reasons.isdisjoint(_SHAPES) and any(
        refused[name] in _SHAPES and _may_work_out(profile, table, name) for name in unsure
    )


def is_unsure(state: NodeState) -> bool:
    """Whether it is not known of every GPU if it is free."""
    return state.unsettled is not None or isinstance(state.free, AnyOf)


def _behind(profile: Profile, table: NodeTable, refused: Mapping[str, str]) -> bool:
    """kube-scheduler counts too, and asks only about nodes with enough: where we count fewer, we know of less."""
    return any(
        table.states[name].count(resource) < wanted
        for name, reason in refused.items()
        if reason == Reason.TOO_FEW_GPUS.value
        for resource, wanted in profile.ask.totals
    )


def _may_work_out(profile: Profile, table: NodeTable, name: str) -> bool:
    """Whether what the kubelet has yet to name can leave enough GPUs together; not whether it is likely."""
    state, record = table.states[name], table.records[name]
    word = None if state.stale else word_of(record)
    if state.shape is None or state.free is None or word is None:
        return False
    if all(word.settled.get(pod.uid, 0).bit_count() >= pod.profile.gpus for pod in record.pods):
        return False
    among = state.free.among if isinstance(state.free, AnyOf) else union(state.free.masks)
    return any((among & group).bit_count() >= profile.gpus for group in _groups(profile, state.shape))


def _groups(profile: Profile, shape: Shape) -> Iterable[int]:
    """The GPUs among which all of the pod's must be, roughly: what is required beyond that is not looked at."""
    if profile.wishes.numa is Wish.REQUIRED:
        return {shape.on_numa(node, shape.whole) for node in shape.numa if node is not None}
    return shape.islands or ()
