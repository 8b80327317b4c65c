"""The campaign: hostile values in every field of the objects of one tenant, and the answers for another tenant.

Run all: ``make campaign``; every N-th value: ``python -m tests.campaign.attacks N``. It prints the table of
docs/testing.md, and ends with 1 if a value stopped, misled or delayed another tenant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from time import thread_time
from typing import Any, NamedTuple

from agent.allocation.node_resource_topology import NodeResourceTopology
from gputopo.kube import rbac
from gputopo.kube.heartbeats import HeartbeatLease
from gputopo.kube.objects import PartialPod, PlacementReservation
from gputopo.kube.rbac import Resource
from scheduler_core.cache.events import HeartbeatUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.planner.commit.budgets import DisruptionBudget
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES
from scheduler_core.planner.gang.volume_sources import VOLUME_SOURCES
from scheduler_core.request.full_pod import FullPod
from tests.campaign.commands import command_faults
from tests.campaign.fields import Hostile, hostile_objects
from tests.campaign.preemption import agent_answer, budget_answer, running_pod, search_answer
from tests.campaign.programs import EXTENDER, PLANNER, Json, extender_answer, node, node_gpus, placed_gangs, pod
from tests.campaign.random_objects import stopped_programs
from tests.scheduler_core.builders import OBSERVED

_FOE = {"pool": "foe"}
_SEEDS = 2_000  # of random objects
_LISTED = 200  # objects of one list
_LONG_S = 0.02
_SLOW_S = 0.25  # CPU for one object of at most 400 KB, on a watch and in one answer
Ask = Callable[[dict[type[Any], list[bytes]]], object]


class Attack(NamedTuple):
    """Objects of one kind with hostile fields, and the question of another tenant."""

    name: str
    update: type[Any]  # the kind of update, whose source decodes the objects
    decoded: type[Any]
    base: Json
    ask: Ask
    answer: object  # of the other tenant
    is_first: bool = False  # the hostile pod may be placed first, before the other tenant's


class Tally(NamedTuple):
    """The result of an attack."""

    attack: str
    tried: int
    faults: tuple[str, ...]  # field, value and answer
    slowest_s: float  # CPU beyond that of the object without the hostile value
    slowest: str


def attacks() -> Iterator[Attack]:
    """Yield the attacks on the extender, then on the planner."""
    calm = extender_answer({})
    for name, spec in (("pending", {}), ("bound", {"nodeName": "foe-0"})):
        base = pod("h", "foe", 1, **spec)
        yield Attack(f"extender: Pod, {name}", PodUpdate, EXTENDER[PodUpdate].kind, base, extender_answer, calm)
    for program, sources, ask, answer in (
        ("extender", EXTENDER, extender_answer, calm),
        ("planner", PLANNER, placed_gangs, ("llm",)),
    ):
        for kind, base in ((NodeUpdate, node("foe-0", _FOE)), (NodeGpusUpdate, node_gpus("foe-0"))):
            what = sources[kind].resource.plural
            yield Attack(f"{program}: {what}", kind, sources[kind].kind, base, ask, answer)
    for name, priority in (("last", -5), ("first", 100)):
        base = pod("h", "foe", 1, "foe", priority=priority, nodeSelector=_FOE)
        base["metadata"]["annotations"]["gputopo.io/gang-size"] = "1"
        yield Attack(
            f"planner: Pod, {name} in the queue",
            PlannerPod,
            PLANNER[PlannerPod].kind,
            base,
            placed_gangs,
            ("llm",),
            priority > 0,
        )
    for kind in {source.kind: kind for kind, source in SIZE_SOURCES.items()}.values():
        source = SIZE_SOURCES[kind]
        owner = {"metadata": {"name": "h", "namespace": "foe", "uid": "foe-h"}}
        yield Attack(f"planner: {source.kind.__name__}", kind, source.kind, owner, placed_gangs, ("llm",))
    for kind, source in VOLUME_SOURCES.items():
        made = {"metadata": {"name": "h", "namespace": "foe", "uid": "foe-h"}}
        yield Attack(f"planner: {source.kind.__name__}", kind, source.kind, made, placed_gangs, ("llm",))
    for program, ask, answer in (("extender", extender_answer, calm), ("planner", placed_gangs, ("llm",))):
        yield Attack(
            f"{program}: PlacementReservation", ReservationUpdate, PlacementReservation, _reservation(), ask, answer
        )
    lease = {"metadata": {"name": "foe-0", "namespace": "gputopo-agent"}, "spec": {"renewTime": OBSERVED}}
    yield Attack("extender: Lease of another node", HeartbeatUpdate, HeartbeatLease, lease, extender_answer, calm)
    yield from _preemption_attacks()


def _reservation() -> Json:
    """A reservation that no ledger lists, with pods of others to evict. Only a planner may create one."""
    eviction = {"uid": "team-w-0", "namespace": "team", "name": "w-0", "node": "a", "unit": "team/llm", "gpus": 4}
    spec = {
        "gang": "h",
        "held": [{"node": "a", "gpus": 8}],
        "seats": [{"name": "h", "uid": "foe-h", "node": "b", "gpus": {"nvidia.com/gpu": 8}}],
        "preemption": {"evictions": [eviction], "rule": "r"},
    }
    return {"metadata": {"name": "h", "namespace": "foe", "uid": "foe-r"}, "spec": spec, "status": {"state": "Held"}}


def _preemption_attacks() -> Iterator[Attack]:
    """Yield the attacks on the search of pods to evict, and on what it reads."""
    victim = running_pod("foe", "foe-0")
    yield Attack("preemption: Pod, running", PlannerPod, PLANNER[PlannerPod].kind, victim, search_answer, answer=True)
    for kind in {source.kind: kind for kind, source in SIZE_SOURCES.items()}.values():
        source = SIZE_SOURCES[kind]
        owner = {"metadata": {"name": "h", "namespace": "foe", "uid": "foe-job"}}
        yield Attack(f"preemption: {source.kind.__name__}", kind, source.kind, owner, search_answer, answer=True)
    budget = {"metadata": {"name": "h", "namespace": "foe"}, "spec": {"selector": {"matchLabels": {"app": "x"}}}}
    yield Attack(
        "preemption: PodDisruptionBudget", DisruptionBudget, DisruptionBudget, budget, budget_answer, answer=set()
    )
    yield Attack(
        "agent: NodeResourceTopology",
        NodeResourceTopology,
        NodeResourceTopology,
        {"attributes": [{"name": "topologyManagerPolicy", "value": "none"}]},
        agent_answer,
        answer=True,
    )


def run_attack(attack: Attack, step: int = 1) -> Tally:
    """Try every ``step``-th value of the attack."""
    usual = min(_ask(attack, _text(attack.base))[1] for _ in range(5))
    faults: list[str] = []
    slowest = (0.0, "")
    tried = 0
    for each in hostile_objects(attack.decoded, attack.base, step):
        tried += 1
        found, seconds = _ask(attack, each.text)
        if seconds - usual > _LONG_S:  # again, without what else the machine did
            seconds = min(_ask(attack, each.text)[1] for _ in range(3))
        slowest = max(slowest, (seconds - usual, f"{each.field}: {each.value}"))
        if found != attack.answer and not (_may_be_first(attack, each) and _is_one_gang(found)):
            faults.append(f"{each.field}: {each.value}: {found!r:.300}")
    return Tally(attack.name, tried, tuple(faults), *slowest)


def _may_be_first(attack: Attack, hostile: Hostile) -> bool:
    """Return whether the hostile pod may be placed first: by its priority."""
    return attack.is_first or (attack.update is PlannerPod and hostile.field in ("spec", "spec.priority"))


def _is_one_gang(found: object) -> bool:
    return isinstance(found, tuple) and len(found) == 1


def _ask(attack: Attack, text: bytes) -> tuple[object, float]:
    before = thread_time()
    try:
        found = attack.ask({attack.update: [text]})
    except Exception as error:  # noqa: BLE001  what an attack must not cause
        found = error
    return found, thread_time() - before


def _text(base: Json) -> bytes:
    return json.dumps(base).encode()


class CommandAttack(NamedTuple):
    """Objects of one kind, as the commands list them, with hostile fields."""

    name: str
    resource: Resource
    decoded: type[Any]
    base: Json


def command_attacks() -> tuple[CommandAttack, ...]:
    """Return the attacks on the commands."""
    running = pod("h", "foe", 1, "foe", nodeName="foe-0") | {"status": {"phase": "Running"}}
    unreported = pod("h", "foe", 1, nodeName="no-agent") | {"status": {"phase": "Running"}}
    owner = {"metadata": {"name": "h", "namespace": "foe", "uid": "foe-h"}}
    return (
        CommandAttack("Pod", rbac.PODS, FullPod, running),
        CommandAttack("Pod on a node without agent", rbac.PODS, PartialPod, unreported),
        CommandAttack("Node", rbac.NODES, EXTENDER[NodeUpdate].kind, node("h", {})),
        CommandAttack("NodeGpus", rbac.NODE_GPUS, EXTENDER[NodeGpusUpdate].kind, node_gpus("h")),
        CommandAttack("PlacementReservation", rbac.RESERVATIONS, PlacementReservation, _reservation()),
        *(
            CommandAttack(f"{each.resource.plural}.{each.resource.version}", each.resource, each.kind, owner)
            for each in (*SIZE_SOURCES.values(), *VOLUME_SOURCES.values())
        ),
    )


def run_command_attack(attack: CommandAttack, step: int = 1) -> Tally:
    """Let the commands list every ``step``-th hostile object, under different names."""
    found = hostile_objects(attack.decoded, attack.base, step)
    texts = [each.text.replace(b'"h"', b'"h-%d"' % at, 1) for at, each in enumerate(found)]
    faults = [
        fault
        for start in range(0, len(texts), _LISTED)
        for fault in command_faults(attack.resource, texts[start : start + _LISTED])
    ]
    return Tally(attack.name, len(texts), tuple(faults), 0.0, "")


def run_random_objects(step: int = 1) -> Tally:
    """Try every ``step``-th seed of ``random_objects``."""
    seeds = range(0, _SEEDS, step)
    found = ((seed, stopped_programs(Random(seed))) for seed in seeds)
    faults = [f"seed {seed}: {name}: {error!r:.300}" for seed, stopped in found for name, error in stopped.items()]
    return Tally("random Nodes, NodeGpus and Pods", len(seeds), tuple(faults), 0.0, "")


def main() -> None:
    """Run every attack with every value, and print the table."""
    wrong, step = 0, int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print("| objects | values | stopped or misled | slowest, CPU | its value |\n|---|---|---|---|---|")
    runs = [partial(run_attack, each, step) for each in attacks()]
    runs += [partial(run_command_attack, each, step) for each in command_attacks()]
    for run in (*runs, partial(run_random_objects, step)):
        found = run()
        wrong += len(found.faults) + (found.slowest_s > _SLOW_S)
        slowest = f"{found.slowest_s * 1000:.0f} ms | `{found.slowest}`" if found.slowest else " | "
        print(f"| {found.attack} | {found.tried} | {len(found.faults)} | {slowest} |", flush=True)
        for fault in found.faults[:20]:
            print(f"    {fault}", file=sys.stderr, flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
