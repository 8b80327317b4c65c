"""Near misses: what would have to change for a pod to fit, smallest change first. Pure.

Every change that is reported was tried: the node or the pod is changed and evaluated as Filter would. Only the kind
``OBSTACLE`` is no change: it names a node where a suitable set is free and the device plugin may take another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import islice
from typing import Any

from gputopo.labels.reasons import Reason
from gputopo.render.report import age_words
from gputopo.render.wording import counted_noun, gpu_names
from gputopo.timestamps import parse_timestamp
from scheduler_core.allocation.best_set import MAX_EXACT_GPUS
from scheduler_core.allocation.gpu_sets import ExactSets, certainly_free, subsets
from scheduler_core.allocation.machine_shape import MachineShape
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.cache.staleness import Staleness, staleness
from scheduler_core.evaluation.evaluate import Evaluation, evaluate_state
from scheduler_core.evaluation.possible_gpus import candidate_sets, whole_gpu_outcome
from scheduler_core.evaluation.shape_rules import SHAPE_REASONS, first_violation
from scheduler_core.explain.evictions import MAX_TRIALS, smallest_eviction
from scheduler_core.explain.gpu_wording import free_gpu_words
from scheduler_core.explain.model import OBSTACLE, NearMiss
from scheduler_core.explain.requirements import (
    WORDING,
    goal_words,
    hard_fields,
    quoted_field,
    without_requirement,
)
from scheduler_core.explain.what_if_changes import with_confirmation
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile

_MAX_STATES = 64  # searched for a suitable set that the device plugin may not take
_WORD = re.compile(r"[a-z0-9]+")
_VRAM = ("min_vram_mib", "vram_mib")


class NearMissSearch:
    """Searches the near misses of a pod that fits no node. Evaluates each state once for each profile."""

    def __init__(
        self, profile: PodProfile, refused: Mapping[str, Reason], table: ClusterSnapshot, policy: Policy, now: float
    ) -> None:
        """``refused``: every node, with its reason."""
        self._profile = profile
        self._refused = refused
        self._table = table
        self._policy = policy
        self._now = now
        self._verdicts: dict[tuple[PodProfile, NodeState], Evaluation] = {}

    def find_near_misses(self) -> tuple[NearMiss, ...]:
        """Return the near misses, smallest change first."""
        found = [self._agent_change(), self._eviction_change(), *self._constraint_changes()]
        found += [self._model_change(), self._memory_change(), self._obstacle()]
        return tuple(change for change in found if change is not None)

    def _agent_change(self) -> NearMiss | None:
        """Return the change that a silent agent reports again."""
        states, records = self._table.states, self._table.records
        silent = sorted(name for name in self._refused if name in states and states[name].stale)[:MAX_TRIALS]
        fits = {name: records[name] for name in silent if self._fits(self._profile, self._confirmed(name))}
        if not fits:
            return None
        first, record = next(iter(fits.items()))
        more = f" (and on {counted_noun(len(fits) - 1, 'more node')} like it)" if len(fits) > 1 else ""
        condition = "if its agent confirms the topology that the Node carries"
        if record.gpus is not None and staleness(record, self._now, self._policy) is Staleness.SILENT:
            observed_at = parse_timestamp(record.gpus.observed_at)
            when = "at an invalid time" if observed_at is None else f"{age_words(self._now - observed_at)} ago"
            condition = f"if its agent still reports what it reported {when}"
        text = f"fits on {first}{more} {condition}: start the agent, or check its log"
        return NearMiss(kind="agent", text=text, nodes=tuple(fits))

    def _confirmed(self, name: str) -> NodeState:
        return state_of(with_confirmation(self._table.records[name], self._now), self._now, self._policy)

    def _eviction_change(self) -> NearMiss | None:
        """Return the change that the fewest pods end."""
        found = smallest_eviction(
            self._profile,
            self._refused,
            self._table,
            self._now,
            self._policy,
            lambda state: self._fits(self._profile, state),
        )
        if found is None:
            return None
        pods = tuple(f"{pod.namespace}/{pod.name}" for pod in found.pods)
        ends = f"pod {pods[0]} ends" if len(pods) == 1 else f"pods {', '.join(pods[:-1])} and {pods[-1]} end"
        resource, devices = self._profile.device_request.totals[0]
        free = free_gpu_words(self._table.states[found.node], resource, devices, self._refused[found.node])
        text = f"{found.node} has {free}; {goal_words(self._profile)} after {ends}"
        return NearMiss(kind="pods-end", text=text, nodes=(found.node,), pods=pods)

    def _constraint_changes(self) -> Iterator[NearMiss]:
        """Yield each required constraint that is enough alone; where none is, all of them together."""
        fields = [field for field in hard_fields(self._profile) if field not in ("model", *_VRAM)]
        alone = [self._without("wish", [field], WORDING[field].reasons) for field in fields]
        yield from (change for change in alone if change is not None)
        if not any(alone) and len(fields) > 1 and (change := self._without("wishes", fields, frozenset(Reason))):
            yield change

    def _without(self, kind: str, fields: list[str], reasons: frozenset[Reason]) -> NearMiss | None:
        constraints = self._profile.constraints
        for field in fields:
            constraints = without_requirement(constraints, field)
        words = " and ".join(quoted_field(self._profile, field) for field in fields)
        return self._changed(kind, self._profile._replace(constraints=constraints), fields, reasons, f"without {words}")

    def _model_change(self) -> NearMiss | None:
        """Return the product most like the one that the pod requires."""
        model = self._profile.constraints.model
        if model is None:
            return None
        reasons = frozenset({Reason.MODEL})
        products = {gpu.product for shape in self._shapes(reasons) for gpu in shape.gpus if gpu.product is not None}
        for product in sorted(sorted(products), key=lambda each: _likeness(each, model), reverse=True):
            other = self._profile._replace(constraints=self._profile.constraints._replace(model=product))
            words = f"with {WORDING['model'].key.key}: {product}"
            if change := self._changed("model", other, ["model"], reasons, words, product):
                return change
        return None

    def _memory_change(self) -> NearMiss | None:
        """Return the largest memory size below the required one."""
        required = {
            field: getattr(self._profile.constraints, field) for field in _VRAM if field in hard_fields(self._profile)
        }
        if not required:
            return None
        reasons = frozenset({Reason.VRAM})
        sizes = {
            size
            for shape in self._shapes(reasons)
            for gpu in shape.gpus
            for size in (gpu.memory_mib, *(each.memory_mib for each in gpu.mig_devices))
            if size and size < max(required.values())
        }
        for size in sorted(sizes, reverse=True):
            less: dict[str, Any] = {field: size for field, value in required.items() if value > size}
            other = self._profile._replace(constraints=self._profile.constraints._replace(**less))
            now = " and ".join(quoted_field(other, field) for field in less)
            before = " and ".join(WORDING[field].value(required[field]) for field in less)
            words = f"with {now} instead of {before}"
            if change := self._changed("memory", other, list(less), reasons, words, f"{size}Mi"):
                return change
        return None

    def _changed(
        self,
        kind: str,
        profile: PodProfile,
        fields: list[str],
        reasons: frozenset[Reason],
        words: str,
        value: str | None = None,
    ) -> NearMiss | None:
        """Return the change to another profile, if a node that is refused for one of these reasons fits it then."""
        states = self._table.states
        names = tuple(
            sorted(
                name
                for name, reason in self._refused.items()
                if reason in reasons and name in states and self._fits(profile, states[name])
            )
        )
        if not names:
            return None
        where = names[0] if len(names) == 1 else f"{len(names)} nodes"
        keys = tuple(WORDING[field].key.key for field in fields)
        return NearMiss(kind=kind, text=f"fits on {where} {words}", nodes=names, keys=keys, value=value)

    def _obstacle(self) -> NearMiss | None:
        """Return a node where a suitable set is free and the device plugin may take another."""
        if not self._profile.requires_shape:
            return None
        tried: set[NodeState] = set()
        for name in sorted(name for name, reason in self._refused.items() if reason in SHAPE_REASONS):
            state = self._table.states[name]
            if state in tried or len(tried) == _MAX_STATES:
                continue
            tried.add(state)
            text = _passed_over_set(self._profile, state)
            if text is not None:
                return NearMiss(kind=OBSTACLE, text=f"{name} has {text}", nodes=(name,))
        return None

    def _fits(self, profile: PodProfile, state: NodeState) -> bool:
        verdict = self._verdicts.get((profile, state))
        if verdict is None:
            verdict = self._verdicts[profile, state] = evaluate_state(profile, state, self._policy)
        return not isinstance(verdict, Reason)

    def _shapes(self, reasons: frozenset[Reason]) -> set[MachineShape]:
        """Return the shapes of the nodes that are refused for one of these reasons."""
        states = self._table.states
        names = (name for name, reason in self._refused.items() if reason in reasons and name in states)
        return {shape for name in names if (shape := states[name].shape) is not None}


def _passed_over_set(profile: PodProfile, state: NodeState) -> str | None:
    """Return the suitable set there and the set that may come instead; None without a suitable, certainly free set."""
    shape, found = state.shape, whole_gpu_outcome(profile.device_request, state)
    if shape is None or state.free is None or found is None or not state.described:
        return None
    good = _good_set(profile, shape, certainly_free(state.free))
    if good is None:
        return None
    bad = next((mask for mask in candidate_sets(found.sets) if _breaks(profile, shape, mask)), None)
    if bad is None and not found.may_crash:
        return None
    free = f"{gpu_names(shape.indices(good))} free, which satisfy the request, but its device plugin"
    if bad is None:
        return f"{free} may crash on {profile.gpus} of the free GPUs (NVIDIA/go-gpuallocator#80)"
    names = gpu_names(shape.indices(bad))
    taken = names if isinstance(found.sets, ExactSets) else f"any {profile.gpus} of {names}"
    return f"{free} may take {taken} instead, and no setting of the pod decides that"


def _good_set(profile: PodProfile, shape: MachineShape, free: int) -> int | None:
    found = islice(subsets(free, profile.gpus), MAX_EXACT_GPUS)
    return next((mask for mask in found if not _breaks(profile, shape, mask)), None)


def _breaks(profile: PodProfile, shape: MachineShape, mask: int) -> bool:
    return first_violation(profile.constraints, shape, ExactSets((mask,))) is not None


def _likeness(product: str, model: str) -> tuple[int, float]:
    """Return how many words both have, then how similar their letters are."""
    one, other = product.casefold(), model.casefold()
    return len(set(_WORD.findall(one)) & set(_WORD.findall(other))), SequenceMatcher(None, one, other).ratio()
