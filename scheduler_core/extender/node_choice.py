"""The nodes that Filter returns, by the ranking of a request and the pods in flight. Pure, except for a time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from math import inf
from typing import NamedTuple

from gputopo.labels.reasons import Reason
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.evaluation.evaluate import max_nodes, max_points_below_best
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.ranking import NodeRanking, PodRanking
from scheduler_core.evaluation.score import Score
from scheduler_core.evaluation.transient import may_fit_soon
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest


class FilterResult(NamedTuple):
    """The answer of Filter."""

    nodes: tuple[str, ...]  # best first
    rejected: Mapping[str, str]  # reason by node if no node suits, else empty
    single: bool = False  # ``nodes`` is one name because the pod has hard constraints
    may_fit_soon: bool = False  # no node suits now, but one may without an event that kube-scheduler sees
    unfinished: bool = False  # no evaluated node suits, but not all nodes are evaluated yet
    unchecked: frozenset[str] = frozenset()  # not considered: the check with the in-flight pods took too long


def choose_nodes(
    request: PodRequest,
    ranking: NodeRanking | PodRanking,
    names: AbstractSet[str],
    policy: Policy,
    in_flight: Sequence[AssumedPod],
    may_continue: Callable[[], bool] = lambda: True,
) -> FilterResult:
    """Return the best nodes that suit the pod wherever the in-flight pods go. ``may_continue``: with their check."""
    profile, blocked, unchecked = request.profile, list[str](), list[str]()
    to_check = names if profile.has_hard_constraints else ranking.with_commitments

    def suits(name: str) -> bool:
        if name not in to_check:
            return True
        found = fits_with_all(profile, ranking.snapshot, name, in_flight, ranking.evaluator, may_continue)
        if not found:
            (unchecked if found is None else blocked).append(name)
        return bool(found)

    best = ranking.best_nodes(names, request.uid)
    suitable = filter(suits, best) if in_flight and to_check else best
    within = max_points_below_best(request, policy)
    chosen = suitable if within == inf else _within_points(suitable, ranking.score_of, within)
    nodes = tuple(islice(chosen, max_nodes(request, policy)))
    if nodes:
        return FilterResult(nodes, {}, request.profile.has_hard_constraints, unchecked=frozenset(unchecked))
    checked = names - frozenset(unchecked) if unchecked else names
    rejected = ranking.rejections_of(checked).with_reasons(dict.fromkeys(blocked, Reason.RESERVED.value))
    if blocked or unchecked or may_fit_soon(profile, ranking.snapshot, rejected, ranking.uncertain_nodes(checked)):
        return FilterResult((), rejected, may_fit_soon=True, unchecked=frozenset(unchecked))
    return FilterResult((), rejected.as_dict())


def with_closed_nodes(
    result: FilterResult,
    request: PodRequest,
    ranking: NodeRanking | PodRanking,
    closed: AbstractSet[str],
    policy: Policy,
) -> FilterResult:
    """Return a rejection with the reasons of the closed nodes too. Closed nodes that suit may open soon."""
    suitable = frozenset(ranking.best_nodes(closed, request.uid))
    others = choose_nodes(request, ranking, closed - suitable, policy, ())
    rejected = {**result.rejected, **others.rejected, **dict.fromkeys(suitable, Reason.RESERVED.value)}
    return FilterResult((), rejected, may_fit_soon=result.may_fit_soon or others.may_fit_soon or bool(suitable))


def _within_points(best: Iterable[str], score: Callable[[str], Score | None], within: float) -> Iterator[str]:
    """Yield the nodes, given best first, that score at most ``within`` points below the first."""
    min_points = -inf
    for name in best:
        found = score(name)
        assert found is not None  # all these nodes fit
        if found.points < min_points:
            return
        min_points = max(min_points, found.points - within)
        yield name
