"""Clusters with gangs in one line, as they would have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeGpusUpdate, NodeUpdate, PodUpdate, ReservationUpdate
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.view import PlannerView
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.report.explain import GangQuestion, explain_gang
from scheduler_core.planner.report.listing import GangSummary, list_gangs
from scheduler_core.planner.report.model import GangExplanation
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.prospects import PlanRules
from scheduler_core.planner.report.read import GangSnapshot, PlannerLease
from scheduler_core.planner.settings import format_levels
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import PodRequest
from tests.scheduler_core.builders import NOW, request
from tests.scheduler_core.planner.gang.gang_pods import GATED, LLM
from tests.scheduler_core.planner.gang.gang_pods import member as plain
from tests.scheduler_core.planner.packing.plans import ledger as empty

CREATED = NOW - 720.0
RULES = PlanRules(BUILT_IN, LEVELS, lambda: False)


USUAL = format_levels(LEVELS)
NONE = empty(name="none")


def member(name: str, gpus: int = 4, state: str = GATED, /, **changed: Any) -> Member:
    """A member of LLM that asks for so many GPUs, twelve minutes old."""
    return plain(
        name, state, **{"request": request(gpus, name), "created": CREATED, "convention": "annotations", **changed}
    )


def crew(count: int, gpus: int = 4, state: str = GATED, /, **changed: Any) -> list[Member]:
    """Return ``count`` members with ranks from 0."""
    return [member(f"w-{rank}", gpus, state, **{"rank": rank, "size": count, **changed}) for rank in range(count)]


def seen(
    members: Iterable[Member] = (),
    nodes: Iterable[NodeRecord] = (),
    *,
    planned: Iterable[ReservationUpdate] = (),
    ledger: LedgerUpdate | None = None,
    labels: Mapping[str, str] | None = None,
    ends: Mapping[str, float] | None = None,
    unread: tuple[str, ...] = (),
    levels: str = USUAL,
    led: PlannerLease | None = None,
) -> GangSnapshot:
    """Return a snapshot of members, nodes and pods. ``ends``: of pods by name; ``labels``: of all nodes.

    There is a ledger, of a planner that goes by the usual levels, unless ``ledger`` is ``NONE``.
    """
    ledger = empty() if ledger is None else ledger
    said = ledger._replace(spec=replace(ledger.spec, levels=levels))
    view = PlannerView(BUILT_IN.node_policy, "", "")
    others = [
        PlannerPod(pod.uid, PodUpdate(pod.uid, pod, node.name), None, (ends or {}).get(pod.name))
        for node in nodes
        for pod in node.pods
    ]

    def node_seen(node: NodeRecord) -> NodeUpdate:
        rules = FullNode(metadata=Metadata(name=node.name, labels=dict(labels or {})))
        return NodeUpdate(node.name, node.machine, rules)

    batches: tuple[Batch[Any], ...] = (
        Batch(NodeUpdate, tuple(node_seen(each) for each in nodes), (), is_full_list=True),
        Batch(
            NodeGpusUpdate,
            tuple(NodeGpusUpdate(each.name, each.gpus) for each in nodes if each.gpus),
            (),
            is_full_list=True,
        ),
        Batch(PlannerPod, (*map(_candidate, members), *others), (), is_full_list=True),
        Batch(ReservationUpdate, tuple(planned), (), is_full_list=True),
        Batch(LedgerUpdate, () if ledger is NONE else (said,), (), is_full_list=True),
    )
    for batch in batches:
        view.apply_batch(batch, NOW)
    return GangSnapshot(view, unread, () if led is None else (led,))


def _candidate(member: Member) -> PlannerPod:
    asked = member.request
    if not isinstance(asked, PodRequest) or not asked.profile.devices:
        return PlannerPod(member.uid, None, member)
    pod = Occupant(member.uid, member.namespace, member.name, asked.profile)
    return PlannerPod(member.uid, PodUpdate(member.uid, pod, member.node), member)


def only(found: GangSnapshot, said: PlannerGangState | None = None) -> GangSummary:
    """Return the only listed gang; ``said``: its state in the planner."""
    (gang,) = list_gangs(found, NOW, {} if said is None else {LLM: said})
    return gang


def story(
    found: GangSnapshot,
    name: GangName = LLM,
    said: PlannerGangState | None = None,
    rules: PlanRules = RULES,
    **more: Any,
) -> GangExplanation:
    """Explain one gang. ``more``: ``opted_in``."""
    return explain_gang(found, GangQuestion(name, rules, said, **more), NOW)
