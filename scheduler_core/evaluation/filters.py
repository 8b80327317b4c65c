"""Why a node does not suit a pod. Pure: each filter decides on what it is given, and a "no" is a value.

The kubelet chooses the GPUs, not we: so whatever must hold is judged by the worst that may come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import Prediction, predict_of
from scheduler_core.allocation.gpu_sets import OneOf, any_of, places, union
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.allocation.named_shares import fitting, left
from scheduler_core.allocation.occupancy import Turn, follow
from scheduler_core.allocation.shared_gpus import fits
from scheduler_core.cache.colocation import disturbed, unwelcome
from scheduler_core.cache.node_state import NodeState
from scheduler_core.evaluation.possible_gpus import Outcome, candidates, memories, outcomes, together
from scheduler_core.evaluation.shape_rules import broken
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.device_request import WHOLE, Ask
from scheduler_core.request.gpu_model import is_model
from scheduler_core.request.pod_request import Profile, Wish

Filter = Callable[[Profile, NodeState, Policy], Reason | None]


def enough(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Free healthy devices of each resource, as kube-scheduler counts, and a choice that the kubelet can make."""
    share = profile.wishes.vram_mib
    if node.obeys and node.shape is not None and share is not None and not profile.gpus:
        fits_on = fitting(node.shape, left(node.shape, node.free, node.promised), share)
        return _lacking(profile.ask, node) or (Reason.VRAM if next(fits_on, None) is None else None)
    return _lacking(profile.ask, node)


def model(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Every GPU that may come is of the model asked for."""
    wanted = profile.wishes.model
    if wanted is None:
        return None
    found = outcomes(profile.ask, node)
    if node.shape is None or not all(_is_model(node.shape, each, wanted) for each in found):
        return Reason.MODEL
    return None


def vram(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Every GPU, or MIG device, that may come has the memory asked for."""
    needed = max(profile.wishes.min_vram_mib or 0, profile.wishes.vram_mib or 0)
    if not needed:
        return None
    found = outcomes(profile.ask, node)
    if node.shape is None or not all(_has_memory(node.shape, each, needed) for each in found):
        return Reason.VRAM
    return None


def room(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Of GPUs that pods share: enough memory that nobody has claimed, on every one that may come."""
    replicas = 0 if node.ledger is None else dict(profile.ask.totals).get(node.ledger.resource, 0)
    if node.ledger is None or not replicas or fits(node.ledger, profile.wishes.vram_mib, replicas):
        return None
    return Reason.VRAM


def shape(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Island, interconnect, bandwidth and NUMA node, where required. One device has no shape."""
    if not profile.shape_required:
        return None
    found = together(profile.ask, node)
    if node.shape is None or found is None:
        return Reason.UNKNOWN_TOPOLOGY
    reason = broken(profile.wishes, node.shape, found.sets)
    return _first_wish(profile) if reason is None and found.may_crash else reason


def promises(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """What was promised to pods that the kubelet has not admitted yet holds, even if it admits this one first.

    Without a graph nobody can vouch for that: it was there when they were let in.
    """
    if not profile.gpus or not node.waiting:
        return None
    shape = node.shape
    if shape is not None and all(_kept(each, shape, found) for each, found in _forecasts(profile, shape, node)):
        return None
    return Reason.RESERVED


def isolation(profile: Profile, node: NodeState, _: Policy) -> Reason | None:
    """Training and inference apart, where one of them requires it."""
    required = profile.wishes.isolation is Wish.REQUIRED and disturbed(profile, node.company)
    return Reason.ISOLATION if required or unwelcome(profile, node.company) else None


def health(profile: Profile, node: NodeState, policy: Policy) -> Reason | None:
    """No degraded GPU may come, and none of a node that is not heard of any more, where policy says so."""
    if policy.stale is Handling.REFUSE and node.stale:
        return Reason.UNKNOWN_TOPOLOGY
    if policy.degraded is Handling.REFUSE and may_be_degraded(profile, node):
        return Reason.DEGRADED
    return None


FILTERS: tuple[Filter, ...] = (enough, model, vram, room, shape, promises, isolation, health)


def verdict(profile: Profile, node: NodeState, policy: Policy) -> Reason | None:
    """The first reason against the node; None: it suits. What planners keep there is one where no other is."""
    reason = _first(profile, node, policy)
    if reason is None or node.open is None:
        return reason
    return _first(profile, node.open, policy) or Reason.RESERVED


def _first(profile: Profile, node: NodeState, policy: Policy) -> Reason | None:
    return next((reason for each in FILTERS if (reason := each(profile, node, policy)) is not None), None)


def may_be_degraded(profile: Profile, node: NodeState) -> bool:
    """Whether one of the GPUs that may come is worse than it should be; without a graph any may be."""
    if node.shape is None or not node.shape.degraded:
        return node.degraded and not node.described
    degraded = node.shape.degraded
    return any(mask & degraded for each in outcomes(profile.ask, node) for mask in candidates(each.sets))


def _forecasts(profile: Profile, shape: Shape, node: NodeState) -> Iterator[tuple[Profile, Prediction]]:
    """What those may get who wait on the node, in every order in which the kubelet may admit them and the new pod."""
    open_, among = node.unsettled, shape.whole if node.free is None else node.free.among
    course = None
    if open_ is not None:
        course = follow(shape, open_._replace(turns=(*open_.turns, Turn(profile))), single_numa=node.single_numa)
        among = open_.start | union(open_.releases)
    if course is None:  # nobody can tell, or too much to follow: no set at all may break a promise
        yield from ((each, Prediction(any_of(among, each.gpus))) for each in node.waiting)
        return
    for free, admitted in course.admissions:
        if admitted in node.waiting:
            yield admitted, predict_of(shape, free, admitted.ask.whole, node.single_numa)


def _kept(promised: Profile, shape: Shape, found: Prediction) -> bool:
    """Whether a pod with a required shape has all that it asks of its GPUs, whichever of them it gets."""
    wishes, outcome = promised.wishes, Outcome(WHOLE, *found)
    if found.may_crash or broken(wishes, shape, found.sets) is not None:
        return False
    needed = max(wishes.min_vram_mib or 0, wishes.vram_mib or 0)
    return (wishes.model is None or _is_model(shape, outcome, wishes.model)) and (
        not needed or _has_memory(shape, outcome, needed)
    )


def _lacking(ask: Ask, node: NodeState) -> Reason | None:
    if any(node.count(resource) < wanted for resource, wanted in ask.totals):
        return Reason.TOO_FEW_GPUS
    if any(isinstance(each.sets, OneOf) and not each.sets.masks for each in outcomes(ask, node)):
        return Reason.NUMA if node.single_numa else Reason.TOO_FEW_GPUS
    return None


def _is_model(shape: Shape, outcome: Outcome, wanted: str) -> bool:
    products = {shape.gpus[place].product for mask in candidates(outcome.sets) for place in places(mask)}
    return all(product is not None and is_model(product, wanted) for product in products)


def _has_memory(shape: Shape, outcome: Outcome, needed: int) -> bool:
    """Unknown is not enough."""
    return all(size is not None and size >= needed for size in memories(shape, outcome))


def _first_wish(profile: Profile) -> Reason:
    """Why a node is refused whose device plugin may crash over this pod: no set at all comes of that."""
    wishes = profile.wishes
    if wishes.island is Wish.REQUIRED or wishes.parallel is not None:
        return Reason.ISLAND
    if wishes.interconnect is not None:
        return Reason.INTERCONNECT
    return Reason.NUMA if wishes.min_gbps is None else Reason.BANDWIDTH
