"""Input and result of the search of pods to evict. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from typing import NamedTuple

from gputopo.crd.reservations import HeldCapacity, PlannedEviction, PlannedMember, Preemption
from gputopo.render.wording import counted_noun, first_of
from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.packing.model import NodeView, PlanOptions
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.preemption import DEFAULT_PREEMPTION

MAX_IDLE_PODS = 512  # without GPUs, of one preemption: a reservation is one object of limited size


class VictimPod(NamedTuple):
    """A running pod that may be evicted, and the work that is lost with it."""

    uid: str
    namespace: str
    name: str
    node: str
    devices: tuple[tuple[str, int], ...] = ()  # by resource; (): a pod that requests only CPU and memory
    gpu_hours: float = 0.0  # GPUs x (time since the last checkpoint + restart + grace period)
    cost: float | None = None  # the same as money, in the unit of node-cost-per-hour; None: unknown
    grace_s: float = 30.0  # that an eviction gives it to end
    is_spare: bool = True  # it may be one of the ``EvictionUnit.spare`` pods; False: the others need it

    @property
    def device_count(self) -> int:
        """Return the number of devices that the eviction returns."""
        return sum(number for _, number in self.devices)


class EvictionUnit(NamedTuple):
    """Pods that are evicted together or not at all: a gang, or a single pod.

    Of an elastic gang, up to ``spare`` pods may be evicted while the others go on.
    """

    name: str  # NAMESPACE/NAME
    pods: tuple[VictimPod, ...]
    spare: int = 0
    rule: str = ""  # of the policy, which allows it
    reason: str = ""  # for people: "scavenger, last checkpoint 12 min ago"
    price: float = 1.0  # factor of the rule by which units are compared
    priority: int = 0
    # NAMESPACE/UID of the object that creates a single pod, else NAMESPACE/NAME: the same for replacements.
    key: str = ""
    deletion_cost: int = 0  # of equal units, the one with the lowest goes first
    only_spare: bool = False  # it has more pods than may be evicted in an hour: up to ``spare`` of them may be

    @property
    def uid(self) -> str:
        """Return the UID of its first pod: a gang and a pod may have one name."""
        return self.pods[0].uid

    @property
    def gpu_hours(self) -> float:
        """Return the work that is lost."""
        return sum(each.gpu_hours for each in self.pods)

    @property
    def cost(self) -> float | None:
        """Return the money that is lost; None: unknown for a pod."""
        return total_cost(self.pods)


class PreemptionTask(NamedTuple):
    """A gang that does not fit, and the pods that the policy allows to evict for it."""

    gang: Gang
    # The cluster without the gang's own hold and holds that it may ignore. All other reservations count as used.
    view: NodeView
    units: tuple[EvictionUnit, ...]
    options: PlanOptions
    policy: Policy  # for node states
    now: float  # seconds since 1970
    max_plans: int = DEFAULT_PREEMPTION.max_plans
    is_out_of_time: Callable[[], bool] = lambda: False  # called often
    ending: tuple[VictimPod, ...] = ()  # pods that terminate already: they count as gone
    has_all_units: bool = True  # False: there was no time to find the others


class PreemptionPlan(NamedTuple):
    """The cheapest units found that make the gang fit. Each of them is necessary."""

    gang: Gang
    units: tuple[EvictionUnit, ...]  # with the pods to evict only
    held: tuple[HeldCapacity, ...]  # what the gang will use, once free
    plans: int = 0  # that the planner made
    gave_up: bool = False  # the limit of plans or of time was reached
    exact: bool = False  # all cheaper sets were tried: none makes the gang fit
    seats: tuple[PlannedMember, ...] = ()  # of the gang, once the pods are gone

    @property
    def pods(self) -> tuple[VictimPod, ...]:
        """Return the pods to evict."""
        return tuple(pod for unit in self.units for pod in unit.pods)

    @property
    def gpu_hours(self) -> float:
        """Return the work that is lost."""
        return sum(each.gpu_hours for each in self.pods)

    @property
    def cost(self) -> float | None:
        """Return the money that is lost; None: unknown for a pod."""
        return total_cost(self.pods)

    @property
    def reason(self) -> str:
        """Return the result for people."""
        names = [each.name for each in self.units]
        text = f"evicts {counted_noun(len(self.pods), 'pod')} of {first_of(names)}"
        text += f"; {self.gpu_hours:.1f} GPU-hours of work are lost"
        return text + (f"; gave up after {counted_noun(self.plans, 'plan')}" if self.gave_up else "")

    def intent(self, timeout_s: float = DEFAULT_PREEMPTION.timeout_s) -> Preemption:
        """Return the intent for the spec of the capacity hold: all pods with GPUs, some of the others."""
        idle = [pod.uid for pod in self.pods if not pod.devices]
        left_alone = frozenset(idle[MAX_IDLE_PODS:])
        return Preemption(
            evictions=tuple(
                PlannedEviction(
                    pod.uid,
                    pod.namespace,
                    pod.name,
                    pod.node,
                    unit.name,
                    pod.device_count,
                    "" if unit.key == unit.name else unit.key,
                    ceil(pod.grace_s),
                )
                for unit in self.units
                for pod in unit.pods
                if pod.uid not in left_alone
            ),
            rule=", ".join(sorted({unit.rule for unit in self.units}))[:512],
            reason=self.reason,
            gpu_hours=round(self.gpu_hours, 3),
            cost=None if self.cost is None else round(self.cost, 2),
            timeout_s=timeout_s,
        )


class NoPreemption(NamedTuple):
    """No pod is evicted for the gang."""

    gang: Gang
    reason: str  # for people; stable while the cause is the same
    plans: int = 0
    gave_up: bool = False  # the limit of plans or of time was reached: a set may exist


def total_cost(pods: Iterable[VictimPod]) -> float | None:
    """Return the money of all pods; None: unknown for one of them."""
    costs = [each.cost for each in pods]
    known = [each for each in costs if each is not None]
    return sum(known) if len(known) == len(costs) else None
