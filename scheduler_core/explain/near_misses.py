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
from scheduler_core.allocation.best_set import EXACT
from scheduler_core.allocation.gpu_sets import OneOf, subsets
from scheduler_core.allocation.machine_shape import Shape
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import NodeTable
from scheduler_core.cache.staleness import Staleness, staleness
from scheduler_core.evaluation.evaluate import Verdict, judge
from scheduler_core.evaluation.possible_gpus import candidates, together
from scheduler_core.evaluation.shape_rules import SHAPE, broken
from scheduler_core.explain.evictions import MOST_TRIALS, smallest_ending
from scheduler_core.explain.gpu_wording import free_words, indices, surely_free
from scheduler_core.explain.model import OBSTACLE, Change
from scheduler_core.explain.requirements import SAID, goal, hard, quoted, softened
from scheduler_core.explain.what_if_changes import confirmed
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import Profile

_MOST_LOOKED_INTO = 64  # states searched for a good set that the device plugin may pass over
_WORD = re.compile(r"[a-z0-9]+")
_VRAM = ("min_vram_mib", "vram_mib")


class Case(NamedTuple):
    """A pod that no node suits."""

    profile: Profile
    refused: Mapping[str, Reason]  # every node
    table: NodeTable
    policy: Policy
    now: float


class Judge:
    """Judges each state once for each profile."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._known: dict[tuple[Profile, NodeState], Verdict] = {}

    def suits(self, profile: Profile, state: NodeState) -> bool:
        """Whether a node in that state suits pods of that profile."""
        found = self._known.get((profile, state))
        if found is None:
            found = self._known[profile, state] = judge(profile, state, self._policy)
        return not isinstance(found, Reason)


def nearest(case: Case) -> tuple[Change, ...]:
    """All that was found, smallest change first."""
    judge_ = Judge(case.policy)
    found = [_agent(case, judge_), _endings(case, judge_), *_wishes(case, judge_)]
    found += [_model(case, judge_), _memory(case, judge_), _plugin(case)]
    return tuple(change for change in found if change is not None)


def _agent(case: Case, judge_: Judge) -> Change | None:
    """A node whose agent has fallen silent."""
    states, known = case.table.states, case.table.records
    silent = sorted(name for name in case.refused if name in states and states[name].stale)[:MOST_TRIALS]
    fits = {
        name: known[name].gpus
        for name in silent
        if judge_.suits(case.profile, state_of(confirmed(known[name], case.now), case.now, case.policy))
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
    return Change(kind="agent", text=text, nodes=tuple(fits))


def _endings(case: Case, judge_: Judge) -> Change | None:
    ending = smallest_ending(
        case.profile, case.refused, case.table, case.now, case.policy, lambda state: judge_.suits(case.profile, state)
    )
    if ending is None:
        return None
    pods = tuple(f"{pod.namespace}/{pod.name}" for pod in ending.pods)
    last = pods[-1]
    who = f"pod {last} ends" if len(pods) == 1 else f"pods {', '.join(pods[:-1])} and {last} end"
    return Change(
        kind="pods-end",
        text=f"{_has(case, ending.node)}; {goal(case.profile)} after {who}",
        nodes=(ending.node,),
        pods=pods,
    )


def _wishes(case: Case, judge_: Judge) -> Iterator[Change]:
    """Each required wish by itself; where none is enough, all of them together."""
    fields = [field for field in hard(case.profile) if field not in ("model", *_VRAM)]
    alone = 0
    for field in fields:
        names = _suited(case, judge_, _without(case.profile, [field]), SAID[field].reasons)
        if names:
            alone += 1
            text = f"fits on {_counted(names)} without {quoted(case.profile, field)}"
            yield Change(kind="wish", text=text, nodes=names, keys=(SAID[field].key.key,))
    if not alone and len(fields) > 1:
        names = _suited(case, judge_, _without(case.profile, fields), frozenset(Reason))
        if names:
            said = " and ".join(quoted(case.profile, field) for field in fields)
            keys = tuple(SAID[field].key.key for field in fields)
            yield Change(kind="wishes", text=f"fits on {_counted(names)} without {said}", nodes=names, keys=keys)


def _model(case: Case, judge_: Judge) -> Change | None:
    """The product most like the one asked for."""
    asked = case.profile.wishes.model
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
        other = case.profile._replace(wishes=case.profile.wishes._replace(model=product))
        names = _suited(case, judge_, other, frozenset({Reason.MODEL}))
        if names:
            key = SAID["model"].key.key
            text = f"fits on {_counted(names)} with {key}: {product}"
            return Change(kind="model", text=text, nodes=names, keys=(key,), value=product)
    return None


def _memory(case: Case, judge_: Judge) -> Change | None:
    """The most memory below what is asked for."""
    asked = {field: getattr(case.profile.wishes, field) for field in _VRAM if field in hard(case.profile)}
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
        other = case.profile._replace(wishes=case.profile.wishes._replace(**less))
        names = _suited(case, judge_, other, reasons)
        if names:
            said = " and ".join(quoted(other, field) for field in less)
            was = " and ".join(SAID[field].value(asked[field]) for field in less)
            keys = tuple(SAID[field].key.key for field in less)
            text = f"fits on {_counted(names)} with {said} instead of {was}"
            return Change(kind="memory", text=text, nodes=names, keys=keys, value=f"{size}Mi")
    return None


def _plugin(case: Case) -> Change | None:
    """A node where a good set is free, and another may be taken."""
    if not case.profile.shape_required:
        return None
    looked_into: set[NodeState] = set()
    for name in sorted(case.refused):
        if case.refused[name] not in SHAPE:
            continue
        state = case.table.states[name]
        if state in looked_into or len(looked_into) == _MOST_LOOKED_INTO:
            continue
        looked_into.add(state)
        text = _passed_over(case.profile, state)
        if text is not None:
            return Change(kind=OBSTACLE, text=f"{name} has {text}", nodes=(name,))
    return None


def _passed_over(profile: Profile, state: NodeState) -> str | None:
    """The good set there, and what may come instead; None where there is no good one that is surely free."""
    shape, found = state.shape, together(profile.ask, state)
    if shape is None or state.free is None or found is None or not state.described:
        return None
    good = _good_set(profile, shape, surely_free(state.free))
    if good is None:
        return None
    free = f"{gpu_names(indices(shape, good))} free, which would do, but its device plugin"
    bad = next((mask for mask in candidates(found.sets) if _breaks(profile, shape, mask)), None)
    if bad is None and not found.may_crash:
        return None
    if bad is None:
        return f"{free} may crash over {profile.gpus} GPUs of what is free (NVIDIA/go-gpuallocator#80)"
    names = gpu_names(indices(shape, bad))
    taken = names if isinstance(found.sets, OneOf) else f"any {profile.gpus} of {names}"
    return f"{free} may take {taken} instead, and nothing that a pod can say decides that"


def _good_set(profile: Profile, shape: Shape, free: int) -> int | None:
    found = islice(subsets(free, profile.gpus), EXACT)
    return next((mask for mask in found if not _breaks(profile, shape, mask)), None)


def _breaks(profile: Profile, shape: Shape, mask: int) -> bool:
    return broken(profile.wishes, shape, OneOf((mask,))) is not None


def _states(case: Case, reasons: frozenset[Reason]) -> set[NodeState]:
    states = case.table.states
    return {states[name] for name, reason in case.refused.items() if reason in reasons and name in states}


def _suited(case: Case, judge_: Judge, profile: Profile, reasons: frozenset[Reason]) -> tuple[str, ...]:
    """The nodes refused for those reasons that suit another profile, by name."""
    states = case.table.states
    return tuple(
        sorted(
            name
            for name, reason in case.refused.items()
            if reason in reasons and name in states and judge_.suits(profile, states[name])
        )
    )


def _without(profile: Profile, fields: list[str]) -> Profile:
    wishes = profile.wishes
    for field in fields:
        wishes = softened(wishes, field)
    return profile._replace(wishes=wishes)


def _has(case: Case, name: str) -> str:
    resource, wanted = case.profile.ask.totals[0]
    return f"{name} has {free_words(case.table.states[name], resource, wanted, case.refused[name])}"


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
