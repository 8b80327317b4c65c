"""The nearest miss: what would have to change for a pod to fit, smallest change first. Pure.

Every change that is told has been tried: the node, or the pod, is changed in thought and judged as Filter would. Only
the kind ``OBSTACLE`` promises nothing: it names a node where a good set is free and the device plugin may take another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, NamedTuple

from gputopo.labels.reasons import Reason
from gputopo.render.wording import gpu_names
from scheduler_core.allocation.best_set import MAX_EXACT_GPUS
from scheduler_core.allocation.gpu_sets import ExactSets, subsets
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import Snapshot
from scheduler_core.cache.staleness import Staleness, staleness
from scheduler_core.evaluation.evaluate import Evaluation, evaluate_state
from scheduler_core.evaluation.possible_gpus import candidate_sets, whole_gpu_outcome
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS, first_violation
from scheduler_core.explain.evictions import MAX_TRIALS, smallest_eviction
from scheduler_core.explain.gpu_wording import certainly_free, free_gpu_words, indices
from scheduler_core.explain.model import OBSTACLE, NearMiss
from scheduler_core.explain.requirements import (
    REQUIREMENT_WORDING,
    goal_words,
    hard_fields,
    quoted_requirement,
    without_requirement,
)
from scheduler_core.explain.what_if_changes import with_confirmation
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

_MOST_LOOKED_INTO = 64  # states searched for a good set that the device plugin may pass over
_WORD = re.compile(r"[a-z0-9]+")
_VRAM = ("min_vram_mib", "vram_mib")


class UnplacedCase(NamedTuple):
    """A pod that no node suits."""

    profile: PodProfile
    refused: Mapping[str, Reason]  # every node
    table: Snapshot
    policy: Policy
    now: float


class FitChecker:
    """Judges each state once for each profile."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[PodProfile, NodeState], Evaluation] = {}

    def state_fits(self, profile: PodProfile, state: NodeState) -> bool:
        """Whether a node in that state suits pods of that profile."""
        found = self._known.get((profile, state))
        if found is None:
            found = self._known[profile, state] = evaluate_state(profile, state, self._policy)
        return not isinstance(found, Reason)


def near_misses(case: UnplacedCase) -> tuple[NearMiss, ...]:
    """All that was found, smallest change first."""
    judge_ = FitChecker(case.policy)
    found = [_agent_change(case, judge_), _eviction_change(case, judge_), *_constraint_changes(case, judge_)]
    found += [_model_change(case, judge_), _memory_change(case, judge_), _plugin_change(case)]
    return tuple(change for change in found if change is not None)


def _agent_change(case: UnplacedCase, judge_: FitChecker) -> NearMiss | None:
    """A node whose agent has fallen silent."""
    states, known = case.table.states, case.table.records
    silent = sorted(name for name in case.refused if name in states and states[name].stale)[:MAX_TRIALS]
    fits = {
        name: known[name].gpus
        for name in silent
        if judge_.state_fits(case.profile, state_of(with_confirmation(known[name], case.now), case.now, case.policy))
    }
    if not fits:
        return None
    first, seen = next(iter(fits.items()))
    more = f" (and on {len(fits) - 1} more like it)" if len(fits) > 1 else ""
    if seen is not None and staleness(known[first], case.now, case.policy) is Staleness.SILENT:
        saw = f"if its agent still sees what it saw {_ago(seen.observed_at, case.now)}"
    else:
        saw = "if its agent confirms the topology that the Node carries"
    text = f"fits on {first}{more} {saw}: start it, or look at its log"
    return NearMiss(kind="agent", text=text, nodes=tuple(fits))


def _eviction_change(case: UnplacedCase, judge_: FitChecker) -> NearMiss | None:
    ending = smallest_eviction(
        case.profile,
        case.refused,
        case.table,
        case.now,
        case.policy,
        lambda state: judge_.state_fits(case.profile, state),
    )
    if ending is None:
        return None
    pods = tuple(f"{pod.namespace}/{pod.name}" for pod in ending.pods)
    last = pods[-1]
    who = f"pod {last} ends" if len(pods) == 1 else f"pods {', '.join(pods[:-1])} and {last} end"
    return NearMiss(
        kind="pods-end",
        text=f"{_node_memory_words(case, ending.node)}; {goal_words(case.profile)} after {who}",
        nodes=(ending.node,),
        pods=pods,
    )


def _constraint_changes(case: UnplacedCase, judge_: FitChecker) -> Iterator[NearMiss]:
    """Each required wish by itself; where none is enough, all of them together."""
    fields = [field for field in hard_fields(case.profile) if field not in ("model", *_VRAM)]
    alone = 0
    for field in fields:
        names = _suited(case, judge_, _without(case.profile, [field]), REQUIREMENT_WORDING[field].reasons)
        if names:
            alone += 1
            text = f"fits on {_counted(names)} without {quoted_requirement(case.profile, field)}"
            yield NearMiss(kind="wish", text=text, nodes=names, keys=(REQUIREMENT_WORDING[field].key.key,))
    if not alone and len(fields) > 1:
        names = _suited(case, judge_, _without(case.profile, fields), frozenset(Reason))
        if names:
            said = " and ".join(quoted_requirement(case.profile, field) for field in fields)
            keys = tuple(REQUIREMENT_WORDING[field].key.key for field in fields)
            yield NearMiss(kind="wishes", text=f"fits on {_counted(names)} without {said}", nodes=names, keys=keys)


def _model_change(case: UnplacedCase, judge_: FitChecker) -> NearMiss | None:
    """The product most like the one asked for."""
    asked = case.profile.constraints.model
    if asked is None:
        return None
    products = {
        gpu.product
        for state in _states(case, frozenset({Reason.MODEL}))
        if state.shape is not None
        for gpu in state.shape.gpus
        if gpu.product is not None
    }
    for product in sorted(sorted(products), key=lambda each: _alike(each, asked), reverse=True):
        other = case.profile._replace(constraints=case.profile.constraints._replace(model=product))
        names = _suited(case, judge_, other, frozenset({Reason.MODEL}))
        if names:
            key = REQUIREMENT_WORDING["model"].key.key
            text = f"fits on {_counted(names)} with {key}: {product}"
            return NearMiss(kind="model", text=text, nodes=names, keys=(key,), value=product)
    return None


def _memory_change(case: UnplacedCase, judge_: FitChecker) -> NearMiss | None:
    """The most memory below what is asked for."""
    asked = {field: getattr(case.profile.constraints, field) for field in _VRAM if field in hard_fields(case.profile)}
    if not asked:
        return None
    reasons = frozenset({Reason.VRAM})
    sizes = {
        size
        for state in _states(case, reasons)
        if state.shape is not None
        for gpu in state.shape.gpus
        for size in (gpu.memory_mib, *(each.memory_mib for each in gpu.mig_devices))
        if size and size < max(asked.values())
    }
    for size in sorted(sizes, reverse=True):
        less: dict[str, Any] = {field: size for field, value in asked.items() if value > size}
        other = case.profile._replace(constraints=case.profile.constraints._replace(**less))
        names = _suited(case, judge_, other, reasons)
        if names:
            said = " and ".join(quoted_requirement(other, field) for field in less)
            was = " and ".join(REQUIREMENT_WORDING[field].value(asked[field]) for field in less)
            keys = tuple(REQUIREMENT_WORDING[field].key.key for field in less)
            text = f"fits on {_counted(names)} with {said} instead of {was}"
            return NearMiss(kind="memory", text=text, nodes=names, keys=keys, value=f"{size}Mi")
    return None


def _plugin_change(case: UnplacedCase) -> NearMiss | None:
    """A node where a good set is free, and another may be taken."""
    if not case.profile.shape_required:
        return None
    looked_into: set[NodeState] = set()
    for name in sorted(case.refused):
        if case.refused[name] not in SHAPE_REASONS:
            continue
        state = case.table.states[name]
        if state in looked_into or len(looked_into) == _MOST_LOOKED_INTO:
            continue
        looked_into.add(state)
        text = _passed_over_set(case.profile, state)
        if text is not None:
            return NearMiss(kind=OBSTACLE, text=f"{name} has {text}", nodes=(name,))
    return None


def _passed_over_set(profile: PodProfile, state: NodeState) -> str | None:
    """The good set there, and what may come instead; None where there is no good one that is surely free."""
    shape, found = state.shape, whole_gpu_outcome(profile.device_request, state)
    if shape is None or state.free is None or found is None or not state.described:
        return None
    good = _good_set(profile, shape, certainly_free(state.free))
    if good is None:
        return None
    free = f"{gpu_names(indices(shape, good))} free, which would do, but its device plugin"
    bad = next((mask for mask in candidate_sets(found.sets) if _breaks(profile, shape, mask)), None)
    if bad is None and not found.may_crash:
        return None
    if bad is None:
        return f"{free} may crash over {profile.gpus} GPUs of what is free (NVIDIA/go-gpuallocator#80)"
    names = gpu_names(indices(shape, bad))
    taken = names if isinstance(found.sets, ExactSets) else f"any {profile.gpus} of {names}"
    return f"{free} may take {taken} instead, and nothing that a pod can say decides that"


def _good_set(profile: PodProfile, shape: MachineShape, free: int) -> int | None:
    found = islice(subsets(free, profile.gpus), MAX_EXACT_GPUS)
    return next((mask for mask in found if not _breaks(profile, shape, mask)), None)


def _breaks(profile: PodProfile, shape: MachineShape, mask: int) -> bool:
    return first_violation(profile.constraints, shape, ExactSets((mask,))) is not None


def _states(case: UnplacedCase, reasons: frozenset[Reason]) -> set[NodeState]:
    states = case.table.states
    return {states[name] for name, reason in case.refused.items() if reason in reasons and name in states}


def _suited(case: UnplacedCase, judge_: FitChecker, profile: PodProfile, reasons: frozenset[Reason]) -> tuple[str, ...]:
    """The nodes refused for those reasons that suit another profile, by name."""
    states = case.table.states
    return tuple(
        sorted(
            name
            for name, reason in case.refused.items()
            if reason in reasons and name in states and judge_.state_fits(profile, states[name])
        )
    )


def _without(profile: PodProfile, fields: list[str]) -> PodProfile:
    wishes = profile.constraints
    for field in fields:
        wishes = without_requirement(wishes, field)
    return profile._replace(constraints=wishes)


def _node_memory_words(case: UnplacedCase, name: str) -> str:
    resource, wanted = case.profile.device_request.totals[0]
    return f"{name} has {free_gpu_words(case.table.states[name], resource, wanted, case.refused[name])}"


def _counted(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} nodes"


def _alike(product: str, asked: str) -> tuple[int, float]:
    """Words that both have, then letters."""
    one, other = product.casefold(), asked.casefold()
    return len(set(_WORD.findall(one)) & set(_WORD.findall(other))), SequenceMatcher(None, one, other).ratio()


def _ago(observed_at: str, now: float) -> str:
    try:
        seconds = now - datetime.fromisoformat(observed_at).timestamp()
    except ValueError:
        return "at a time that cannot be read"
    for unit, length in (("days", 86400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds / 60:.0f} minutes ago"
