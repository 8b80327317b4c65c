"""Random small clusters with running gangs, elastic gangs and single pods, and a gang that may need evictions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from random import Random

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import with_records
from scheduler_core.explain.what_if_changes import after_evictions
from scheduler_core.planner.packing.model import GangPlan
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.planner.preemption.choices import Choice, Price, choices_of, is_allowed, pods_of, pricing_of
from scheduler_core.planner.preemption.model import EvictionUnit, PreemptionTask, VictimPod
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import RACK, crew, view
from tests.scheduler_core.planner.preemption.tasks import task

_KINDS = ("a100_bridged", "a6000_pair_and_one", "v100_ring", "rtx4090", "hgx_h100")
_WISHES: tuple[dict[str, str], ...] = ({}, {}, {"island": "required"}, {"numa": "required"})


def random_task(random: Random, nodes: int, most_choices: int = 1_000) -> PreemptionTask:
    """A task on so many nodes. Some pods are protected, and some are not reported by the kubelet yet."""
    pods: list[VictimPod] = []
    records = [_node(f"n{at}", random, pods) for at in range(nodes)]
    units = _units(random, [each for each in pods if random.random() < 0.85])
    while len(choices_of(units)) > most_choices:
        units.pop()
    members = random.randint(1, 3)
    required = "rack" if random.random() < 0.3 else None
    wishes = random.choice(_WISHES)
    gang = crew(members, random.choice((1, 2, 2, 4, 4)), size=members, required=required, **wishes)
    racks = {each.name: {RACK: random.choice(("r1", "r2"))} for each in records}
    return task(gang, units, *records, view=view(*records, labels=racks))


def _node(name: str, random: Random, pods: list[VictimPod]) -> NodeRecord:
    topology = MACHINES[random.choice(_KINDS)]()
    left = list(range(len(topology.gpus)))
    random.shuffle(left)
    held: dict[str, list[int]] = {}
    late: list[Occupant] = []
    while left and random.random() < 0.9:
        number = min(len(left), random.choice((1, 1, 2, 4)))
        pod = f"{name}-p{len(held) + len(late)}"
        taken, left = left[:number], left[number:]
        if random.random() < 0.05:
            late.append(occupant(pod, number))
        else:
            held[pod] = taken
        hours = random.choice((0.0, 0.1, 1.0, random.uniform(0, 20)))
        pods.append(VictimPod(f"uid-{pod}", "team", pod, name, (("nvidia.com/gpu", number),), hours))
    running = [occupant(pod, len(gpus), admitted=True) for pod, gpus in held.items()]
    return record(name, topology, pods=[*running, *late], held=held)


def _units(random: Random, pods: list[VictimPod]) -> list[EvictionUnit]:
    """Group the pods: single pods, gangs of two to four, some of them elastic."""
    left = random.sample(pods, len(pods))
    units: list[EvictionUnit] = []
    while left:
        size = random.choice((1, 1, 1, 2, 3, 4))
        chosen, left = left[:size], left[size:]
        spare = random.randint(0, len(chosen) - 1) if random.random() < 0.4 else 0
        units.append(
            EvictionUnit(f"team/u{len(units)}", tuple(chosen), spare, price=random.choice((1.0, 1.0, 0.5, 3.0)))
        )
    return units


def fits_without(asked: PreemptionTask, pods: Iterable[VictimPod]) -> bool:
    """Return whether the planner places the gang on the cluster if these pods, and no others, are gone."""
    gone: dict[str, set[str]] = {}
    for pod in pods:
        gone.setdefault(pod.node, set()).add(pod.uid)
    table = asked.view.table
    changed = [
        after_evictions(table.records[name], [each for each in table.records[name].pods if each.uid in uids])
        for name, uids in gone.items()
    ]
    seen = asked.view._replace(table=with_records(table, changed, NOW, Policy()))
    return isinstance(plan_gang(asked.gang.ready, seen, asked.options), GangPlan)


def cheapest(asked: PreemptionTask) -> Price | None:
    """The price of the cheapest choices that are enough, of all; None: none are."""
    choices, pricing = choices_of(asked.units), pricing_of(asked.units)
    best: Price | None = None
    for number in range(len(choices) + 1):
        for chosen in combinations(choices, number):
            price = pricing.price_of(chosen)
            if (best is None or price[:3] < best[:3]) and is_allowed(chosen) and fits_without(asked, pods_of(chosen)):
                best = price
    return best


def price_of(asked: PreemptionTask, units: Iterable[EvictionUnit]) -> Price:
    """The price of the evicted units."""
    return pricing_of(asked.units).price_of(Choice(each, each.pods) for each in units)
