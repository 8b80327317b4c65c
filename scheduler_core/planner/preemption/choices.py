"""Choices of a search: whole units, and single pods of elastic gangs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from scheduler_core.planner.preemption.model import EvictionUnit, VictimPod

Price = tuple[float, int, int]  # lost work, pods, deletion cost: the lowest is best


class Choice(NamedTuple):
    """Pods that may be evicted: all pods of a unit, or a single pod of an elastic gang."""

    unit: EvictionUnit
    pods: tuple[VictimPod, ...]

    def __hash__(self) -> int:
        """Return a hash of the first pod and the number of pods: those of a large gang would take long."""
        return hash((self.pods[0].uid, len(self.pods)))

    @property
    def is_whole(self) -> bool:
        """Return True if it is the whole unit."""
        return len(self.pods) == len(self.unit.pods)


class Pricing(NamedTuple):
    """The comparison of units: by money if it is known for all of them, else by GPU-hours; times the rule's price."""

    by_money: bool

    def price_of(self, choices: Iterable[Choice]) -> Price:
        """Return the price of choices that share no pod."""
        chosen = list(choices)
        lost = sum(each.unit.price * self._lost(pod) for each in chosen for pod in each.pods)
        pods = sum(len(each.pods) for each in chosen)
        return lost, pods, sum(each.unit.deletion_cost for each in chosen)

    def order_of(self, choice: Choice) -> tuple[Price, str]:
        """Return a sort key of choices, which is the same for equal choices only."""
        return self.price_of((choice,)), choice.pods[0].uid

    def _lost(self, pod: VictimPod) -> float:
        return (pod.cost or 0.0) if self.by_money else pod.gpu_hours


def pricing_of(units: Iterable[EvictionUnit]) -> Pricing:
    """Return how these units are compared."""
    return Pricing(all(each.cost is not None for each in units))


def choices_of(units: Iterable[EvictionUnit]) -> list[Choice]:
    """Return all choices: each unit, and each pod of an elastic gang."""
    found = []
    for unit in units:
        if not unit.only_spare:
            found.append(Choice(unit, unit.pods))
        if unit.spare and len(unit.pods) > 1:
            found += [Choice(unit, (pod,)) for pod in unit.pods if pod.devices and pod.is_spare]
    return found


def is_allowed(choices: Sequence[Choice]) -> bool:
    """Return whether no pod is chosen twice, and no gang loses more than its spare pods without losing all."""
    whole = Counter(each.unit.uid for each in choices if each.is_whole)
    single = Counter(each.unit.uid for each in choices if not each.is_whole)
    spare = {each.unit.uid: each.unit.spare for each in choices}
    return whole.keys().isdisjoint(single) and all(number <= spare[name] for name, number in single.items())


def normalised(choices: Iterable[Choice]) -> list[Choice]:
    """Return the choices with a whole gang, if it may be evicted, in place of more single pods than it can spare."""
    by_unit: dict[str, dict[Choice, None]] = {}
    for each in choices:
        by_unit.setdefault(each.unit.uid, {})[each] = None
    found: list[Choice] = []
    for chosen in by_unit.values():
        unit = next(iter(chosen)).unit
        is_whole = any(each.is_whole for each in chosen) or len(chosen) > unit.spare
        if is_whole and not unit.only_spare:
            found.append(Choice(unit, unit.pods))
        else:
            found += list(chosen)[: unit.spare] if unit.only_spare else list(chosen)
    return found


def pods_of(choices: Iterable[Choice]) -> list[VictimPod]:
    """Return the pods of the choices."""
    return [pod for each in choices for pod in each.pods]


def evicted_units(choices: Iterable[Choice]) -> tuple[EvictionUnit, ...]:
    """Return the units with the chosen pods only, by name."""
    pods: dict[str, list[VictimPod]] = {}
    units = {}
    for each in choices:
        units[each.unit.uid] = each.unit
        pods.setdefault(each.unit.uid, []).extend(each.pods)
    return tuple(unit._replace(pods=tuple(pods[uid])) for uid, unit in sorted(units.items(), key=_name_and_uid))


def _name_and_uid(unit: tuple[str, EvictionUnit]) -> tuple[str, str]:
    return unit[1].name, unit[0]


def on_nodes(choices: Iterable[Choice], used: Iterable[str | None]) -> list[Choice]:
    """Return the choices that free devices of these nodes; single pods in place of a gang that can spare them."""
    nodes, found = set(used), []
    for each in choices:
        there = [pod for pod in each.pods if pod.node in nodes and pod.devices]
        if there and len(there) <= each.unit.spare and all(pod.is_spare for pod in there):
            found += [Choice(each.unit, (pod,)) for pod in there]
        elif there:
            found.append(each)
    return found
