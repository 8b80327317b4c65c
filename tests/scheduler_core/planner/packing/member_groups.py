"""Gangs and clusters, in one line each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from random import Random
from typing import Any

import msgspec

from gputopo.crd.reservations import PlannedMember
from gputopo.kube.taints import Taint
from gputopo.model import NodeTopology
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.cache.kube_scheduler_filters import FullNode, FullNodeSpec, SchedulingRules
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, state_if
from scheduler_core.evaluation.evaluate import evaluate_state
from scheduler_core.evaluation.score import Score
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.packing.model import NodeView
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPodSpec, LabelSelector, PodAffinityTerm
from scheduler_core.request.node_load import ONE_POD, NodeLoad
from scheduler_core.request.pod import Metadata, Requirement
from scheduler_core.request.pod_request import PodRequest
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record, request

POLICY = Policy()
GANG = GangName("team", "llm")
KINDS = ("a100_bridged", "a100_bridged", "a6000_pair_and_one", "rtx4090", "v100_ring")
WISHES: tuple[dict[str, Any], ...] = ({}, {}, {"island": "required"}, {"numa": "required"}, {"min_bandwidth": "100"})
RACK = "cloud.provider.com/topology-rack"
BLOCK = "cloud.provider.com/topology-block"
CLIQUE = "gputopo.io/fabric"


def member(
    name: str,
    gpus: int = 1,
    *,
    size: int | None = None,
    minimum: int | None = None,
    rank: int | None = None,
    required: str | None = None,
    preferred: str | None = None,
    rules: SchedulingRules | None = None,
    role: str = "",
    refuses: str = "",
    **wishes: str,
) -> Member:
    """A gated pod of a gang. ``role``: a letter; ``refuses``: roles that may not share its node."""
    wanted = GangRequest(GANG, size, minimum, rank, None, required, preferred)
    return Member(
        uid=f"uid-{name}",
        namespace="team",
        name=name,
        version="1",
        gang_request=wanted,
        request=request(gpus, name, **wishes),
        created=NOW,
        rules=rules,
        labels={"role": role},
        anti_affinity=refusing(refuses),
    )


def refusing(roles: str) -> tuple[PodAffinityTerm, ...]:
    """PodAntiAffinity by host, one term per role."""
    return tuple(PodAffinityTerm(HOSTNAME, LabelSelector({"role": role})) for role in roles)


def quarrel(members: Iterable[Member], roles: Iterable[str] = ()) -> bool:
    """Return whether some members may not share a node. ``roles``: of other pods there, without anti-affinity."""
    those = list(members)
    rejected = [[term.label_selector.match_labels["role"] for term in each.anti_affinity] for each in those]  # type: ignore[union-attr,index]
    return any(
        other in rejected[at]
        for at in range(len(those))
        for other in (*roles, *((each.labels or {})["role"] for each in those if each is not those[at]))
    )


def crew(number: int, gpus: int = 1, **more: Any) -> list[Member]:
    """Members that differ only in name."""
    return [member(f"w-{at}", gpus, **more) for at in range(number)]


def view(
    *records: NodeRecord,
    labels: Mapping[str, Mapping[str, str]] | None = None,
    taints: Mapping[str, Iterable[Taint]] | None = None,
    policy: Policy = POLICY,
    others: Mapping[str, NodeLoad] | None = None,
) -> NodeView:
    """A view of these nodes. ``others``: of pods without GPUs, by node."""
    rules = {
        each.name: FullNode(
            metadata=Metadata(name=each.name, labels=dict((labels or {}).get(each.name, {}))),
            spec=FullNodeSpec(tuple((taints or {}).get(each.name, ()))),
        )
        for each in records
    }
    return NodeView(snapshot_of(records, NOW, policy), rules, lambda _: policy, others=others or {})


def selecting(**labels: str) -> SchedulingRules:
    """Scheduling rules of a pod with this nodeSelector."""
    return SchedulingRules(FullPodSpec(node_selector=labels))


def asked(each: Member) -> PodRequest:
    """The valid request of a member."""
    assert isinstance(each.request, PodRequest)
    return each.request


def occupants(members: Iterable[Member]) -> list[Occupant]:
    """The members as pods of a node."""
    return [Occupant(each.uid, each.namespace, each.name, asked(each).profile, load=each.load) for each in members]


def stands(table: ClusterSnapshot, name: str, coming: Iterable[Member], policy: Policy = POLICY) -> bool:
    """Return whether each member fits the node, whichever of the others are admitted before."""
    pods = occupants(coming)
    there = table.records[name].pods
    return all(
        isinstance(
            evaluate_state(
                pod.profile, state_if(table, name, (*there, *(each for each in pods if each != pod))), policy
            ),
            Score,
        )
        for pod in pods
    )


def by_node(seats: Iterable[PlannedMember], members: Iterable[Member]) -> dict[str, list[Member]]:
    """Members by node."""
    of = {each.uid: each for each in members}
    found: dict[str, list[Member]] = {}
    for seat in seats:
        if seat.node is not None:
            found.setdefault(seat.node, []).append(of[seat.uid])
    return found


def cluster(random: Random, nodes: int) -> list[NodeRecord]:
    """Small nodes in random states: with reported, unreported and ended pods."""
    return [node(f"n{at}", MACHINES[random.choice(KINDS)](), random) for at in range(nodes)]


def node(name: str, topology: NodeTopology, random: Random) -> NodeRecord:
    """Return a node in use, chosen at random."""
    size = len(topology.gpus)
    busy = random.sample(range(size), random.choice((0, 0, 0, 1, 2)))
    held = {"busy": busy} if busy else {}
    pods = [occupant("busy", len(busy))] if busy and random.random() < 0.8 else []
    if random.random() < 0.2 and len(busy) < size:
        pods.append(occupant("late", 1, **random.choice(WISHES)))
    found = record(name, topology, held=held if random.random() < 0.9 else None, pods=pods)
    found = msgspec.structs.replace(found, pods=tuple(each._replace(load=random_load(random)) for each in found.pods))
    return with_allocatable(
        found,
        cpu_milli=random.choice((None, None, 8000, 4000)),
        memory=random.choice((None, None, 4 << 30)),
        max_pods=random.choice((None, None, 3)),
    )


def with_allocatable(found: NodeRecord, **allocatable: int | None) -> NodeRecord:
    """The node with another ``cpu_milli``, ``memory``, ``storage`` or ``max_pods``."""
    return msgspec.structs.replace(found, machine=msgspec.structs.replace(found.machine, **allocatable))


def random_load(random: Random) -> NodeLoad:
    """Requests of a pod: mostly nothing."""
    return random.choice((ONE_POD, ONE_POD, NodeLoad(2000, pods=1), NodeLoad(3000, 1 << 30, pods=1)))


def random_others(random: Random, names: Iterable[str]) -> dict[str, NodeLoad]:
    """Requests of pods without GPUs on some of these nodes."""
    return {name: NodeLoad(random.choice((0, 2000, 5000)), 1 << 30, 0, 1) for name in names if random.random() < 0.3}


def ways(members: list[Member], names: list[str]) -> Iterable[dict[str, list[Member]]]:
    """All assignments of members to nodes; "" is none."""
    for chosen in product(names, repeat=len(members)):
        found: dict[str, list[Member]] = {}
        for one, name in zip(members, chosen, strict=True):
            found.setdefault(name, []).append(one)
        yield found


def _random_term(random: Random) -> PodAffinityTerm:
    labels = {key: random.choice("xy") for key in random.sample("abc", random.randint(0, 2))}
    expressions = (Requirement("a", "Exists"),) if random.random() < 0.3 else None
    selector = random.choice((LabelSelector(labels or None, expressions), LabelSelector(labels), None))
    namespaces, everywhere = random.choice((None, None, ("team", "else"))), random.random() < 0.2
    return PodAffinityTerm(HOSTNAME, selector, namespaces, LabelSelector() if everywhere else None)


def random_pod(random: Random, name: str) -> Member:
    """A pod with random labels, and perhaps terms of anti-affinity about them."""
    labels = {key: random.choice("xy") for key in random.sample("abc", random.randint(0, 3))}
    terms = tuple(_random_term(random) for _ in range(random.choice((0, 0, 1, 2))))
    return member(name)._replace(
        namespace=random.choice(("team", "else")),
        labels=None if random.random() < 0.1 else labels,
        anti_affinity=terms,
    )
