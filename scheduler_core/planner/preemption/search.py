"""Search of the cheapest pods to evict so that a gang fits. Pure.

In each placement domain, the cheapest by device counts first: remove the best choices until the planner places the
gang, put back what can be spared, the most expensive first, then try all cheaper sets as far as the limits allow. Only
a set that the planner itself has proved is a result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from gputopo.render.wording import counted_noun
from scheduler_core.planner.packing.holdings import holdings_of
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.planner.preemption.choices import (
    Choice,
    Price,
    Pricing,
    choices_of,
    evicted_units,
    is_allowed,
    normalised,
    on_nodes,
    pods_of,
    pricing_of,
)
from scheduler_core.planner.preemption.domains import SearchDomain, search_domains, slot_demand
from scheduler_core.planner.preemption.model import NoPreemption, PreemptionPlan, PreemptionTask, VictimPod
from scheduler_core.planner.preemption.proof import FitProof

FITS_ALREADY = "the gang fits without evictions"
NO_UNITS = "the policy allows no running pod to be evicted for the gang"
NEVER_FITS = "the gang does not fit, even without all pods that may be evicted for it"
MAX_SETS = 5_000  # of choices that one search compares
_DIGITS = 6  # of prices that are compared: sums in another order differ in the last digits


class _Best(NamedTuple):
    price: Price
    choices: list[Choice]
    domain: SearchDomain


def search_preemption(task: PreemptionTask) -> PreemptionPlan | NoPreemption:
    """Return the cheapest units found that make the gang fit, or why none is evicted."""
    demand = slot_demand(task.gang)
    if demand is None or (not (task.units or task.ending) and task.has_all_units):
        return NoPreemption(task.gang, NO_UNITS)
    pricing = pricing_of(task.units)
    search = _PreemptionSearch(task, pricing)
    for domain in search_domains(task, choices_of(task.units), pricing, demand):
        if search.fits_already(domain):
            return NoPreemption(task.gang, FITS_ALREADY, search.proof.plans)
        search.try_domain(domain)
    return search.result()


class _PreemptionSearch:
    """The best choices so far. For one search."""

    def __init__(self, task: PreemptionTask, pricing: Pricing) -> None:
        self.proof = FitProof(task)
        self._task, self._pricing = task, pricing
        self._best: _Best | None = None
        self._sets = 0
        self._is_exact = True

    def fits_already(self, domain: SearchDomain) -> bool:
        """Return whether the gang fits the domain without evictions."""
        return domain.may_suffice(()) and self.proof.plan_on(domain.nodes, ()) is not None

    def try_domain(self, domain: SearchDomain) -> None:
        """Search a domain, if it may be cheaper than the best so far."""
        if self._best is not None and domain.bound > self._best.price[0] + 10**-_DIGITS:
            return
        if self.proof.is_over:
            self._is_exact = False
            return
        found = self._first_fit(domain)
        if found is not None:
            self._keep_if_cheaper(self._without_spare(*found, domain), domain)
        self._try_cheaper(domain)
        self._is_exact = self._is_exact and domain.is_whole

    def result(self) -> PreemptionPlan | NoPreemption:
        """Return the best choices, proved once more on their own."""
        gave_up, plans = self.proof.is_over or not self._task.has_all_units, self.proof.plans
        final = None if self._best is None else self.proof.confirm(self._best.domain.nodes, pods_of(self._best.choices))
        if self._best is None or final is None:
            reason = f"gave up after {counted_noun(plans, 'plan')}" if gave_up else NEVER_FITS
            return NoPreemption(self._task.gang, reason, plans, gave_up)
        held = holdings_of(final, self._task.gang.ready, self._task.view.table)
        units, exact = evicted_units(self._best.choices), self._is_exact and not gave_up
        return PreemptionPlan(self._task.gang, units, held, plans, gave_up, exact, final.seats)

    def _keep_if_cheaper(self, choices: list[Choice], domain: SearchDomain) -> None:
        price = self._pricing.price_of(choices)
        if self._best is None or _rounded(price) < _rounded(self._best.price):
            self._best = _Best(price, choices, domain)

    def _plan(self, choices: Sequence[Choice], domain: SearchDomain) -> GangPlan | None:
        return self.proof.plan_on(domain.nodes, pods_of(choices)) if domain.may_suffice(choices) else None

    def _first_fit(self, domain: SearchDomain) -> tuple[list[Choice], GangPlan] | None:
        """Return the shortest run of the first choices that makes the gang fit, by doubling and bisecting."""
        order = domain.choices
        low, high = 0, min(1, len(order))
        while (plan := self._plan(chosen := normalised(order[:high]), domain)) is None:
            if high == len(order) or self.proof.is_over:
                return None
            low, high = high + 1, min(2 * high, len(order))
        best = chosen, plan
        while low < high and not self.proof.is_over:
            middle = (low + high) // 2
            chosen = normalised(order[:middle])
            found = self._plan(chosen, domain)
            low, high = (middle + 1, high) if found is None else (low, middle)
            best = best if found is None else (chosen, found)
        return best

    def _without_spare(self, choices: list[Choice], plan: GangPlan, domain: SearchDomain) -> list[Choice]:
        """Return the choices that are needed: put back those away from used nodes, then one after the other."""
        kept = self._on_used_nodes(choices, plan, domain)
        while (fewer := self._without_first_spare(kept, domain)) is not None:
            kept = fewer
        return kept

    def _without_first_spare(self, kept: list[Choice], domain: SearchDomain) -> list[Choice] | None:
        """Return the choices without the most expensive one that can be spared; None: all are needed."""
        for each in sorted(kept, key=self._pricing.order_of, reverse=True):
            fewer = [one for one in kept if one != each]
            found = self._plan(fewer, domain)
            if found is None and each.is_whole and each.unit.spare:
                fewer += [Choice(each.unit, (pod,)) for pod in self._spare_pods(each, domain)]
                found = self._plan(fewer, domain)
            if found is not None:
                return self._on_used_nodes(fewer, found, domain)
        return None

    def _spare_pods(self, choice: Choice, domain: SearchDomain) -> list[VictimPod]:
        inside = [pod for pod in choice.unit.pods if pod.node in domain.free and pod.devices and pod.is_spare]
        return sorted(inside, key=lambda pod: (pod.gpu_hours, pod.uid))[: choice.unit.spare]

    def _on_used_nodes(self, choices: list[Choice], plan: GangPlan, domain: SearchDomain) -> list[Choice]:
        """Return the choices on nodes that the plan uses: the others free devices that it does not need."""
        fewer = on_nodes(choices, (seat.node for seat in plan.seats))
        return fewer if fewer == choices or self._plan(fewer, domain) is not None else choices

    def _try_cheaper(self, domain: SearchDomain) -> None:
        """Try sets of choices in order of their price, up to that of the best so far."""
        for price, chosen in self._by_price(domain.choices):
            if self._best is not None and _rounded(price) >= _rounded(self._best.price):
                return
            if self._sets >= MAX_SETS or self.proof.is_over:
                self._is_exact = False
                return
            self._sets += 1
            if is_allowed(chosen) and self._plan(chosen, domain) is not None:
                self._keep_if_cheaper(chosen, domain)
                return

    def _by_price(self, choices: Sequence[Choice]) -> Iterator[tuple[Price, list[Choice]]]:
        """Yield all sets of choices, the cheapest first."""
        order = sorted(choices, key=self._pricing.order_of)
        prices = [self._pricing.price_of((each,)) for each in order]
        heap: list[tuple[Price, tuple[int, ...]]] = [(prices[0], (0,))] if order else []
        while heap:
            price, places = heappop(heap)
            yield price, [order[at] for at in places]
            last = places[-1]
            if last + 1 < len(order):
                more = prices[last + 1]
                longer = price[0] + more[0], price[1] + more[1], price[2] + more[2]
                heappush(heap, (longer, (*places, last + 1)))
                less = prices[last]
                other = longer[0] - less[0], longer[1] - less[1], longer[2] - less[2]
                heappush(heap, (other, (*places[:-1], last + 1)))


def _rounded(price: Price) -> Price:
    return round(price[0], _DIGITS), price[1], price[2]
