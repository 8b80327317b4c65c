"""Clusters with gangs in one line, as they would have been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import Batch, GpusSeen, LedgerSeen, NodeSeen, PodSeen, ReservationSeen
from scheduler_core.cache.kube_scheduler_filters import StockNode
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import Candidate
from scheduler_core.planner.leader.view import View
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.report.explain import About, tell
from scheduler_core.planner.report.listing import GangSeen, gangs_of
from scheduler_core.planner.report.model import GangStory
from scheduler_core.planner.report.planner_page import Said
from scheduler_core.planner.report.prospects import Rules
from scheduler_core.planner.report.read import Led, Seen
from scheduler_core.planner.settings import spelled
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import PodRequest
from tests.scheduler_core.builders import NOW, request
from tests.scheduler_core.planner.gang.gang_pods import GATED, LLM
from tests.scheduler_core.planner.gang.gang_pods import member as plain
from tests.scheduler_core.planner.packing.plans import ledger as empty

CREATED = NOW - 720.0
RULES = Rules(BUILT_IN, LEVELS, lambda: False)


USUAL = spelled(LEVELS)
NONE = empty(name="none")


def member(name: str, gpus: int = 4, state: str = GATED, /, **changed: Any) -> Member:
    """A member of LLM that asks for so many GPUs, twelve minutes old."""
    return plain(name, state, **{"request": request(gpus, name), "created": CREATED, "by": "annotations", **changed})


def crew(count: int, gpus: int = 4, state: str = GATED, /, **changed: Any) -> list[Member]:
    """As many, of ranks 0 and on."""
    return [member(f"w-{rank}", gpus, state, **{"rank": rank, "size": count, **changed}) for rank in range(count)]


def seen(
    members: Iterable[Member] = (),
    nodes: Iterable[NodeRecord] = (),
    *,
    planned: Iterable[ReservationSeen] = (),
    ledger: LedgerSeen | None = None,
    labels: Mapping[str, str] | None = None,
    ends: Mapping[str, float] | None = None,
    unread: tuple[str, ...] = (),
    levels: str = USUAL,
    led: Led | None = None,
) -> Seen:
    """What was read: members, and nodes with the pods on them. ``ends``: of pods by name; ``labels``: of all nodes.

    There is a ledger, of a planner that goes by the usual levels, unless ``ledger`` is ``NONE``.
    """
    ledger = empty() if ledger is None else ledger
    said = ledger._replace(spec=replace(ledger.spec, levels=levels))
    view = View(BUILT_IN.common, "", "")
    others = [
        Candidate(pod.uid, PodSeen(pod.uid, pod, node.name), None, (ends or {}).get(pod.name))
        for node in nodes
        for pod in node.pods
    ]

    def node_seen(node: NodeRecord) -> NodeSeen:
        rules = StockNode(metadata=Metadata(name=node.name, labels=dict(labels or {})))
        return NodeSeen(node.name, node.machine, rules)

    batches: tuple[Batch[Any], ...] = (
        Batch(NodeSeen, tuple(node_seen(each) for each in nodes), (), complete=True),
        Batch(GpusSeen, tuple(GpusSeen(each.name, each.gpus) for each in nodes if each.gpus), (), complete=True),
        Batch(Candidate, (*map(_candidate, members), *others), (), complete=True),
        Batch(ReservationSeen, tuple(planned), (), complete=True),
        Batch(LedgerSeen, () if ledger is NONE else (said,), (), complete=True),
    )
    for batch in batches:
        view.take(batch, NOW)
    return Seen(view, unread, () if led is None else (led,))


def _candidate(member: Member) -> Candidate:
    asked = member.request
    if not isinstance(asked, PodRequest) or not asked.profile.devices:
        return Candidate(member.uid, None, member)
    pod = Occupant(member.uid, member.namespace, member.name, asked.profile)
    return Candidate(member.uid, PodSeen(member.uid, pod, member.node), member)


def only(found: Seen, said: Said | None = None) -> GangSeen:
    """The one gang that is listed; ``said``: of it by the planner."""
    (gang,) = gangs_of(found, NOW, {} if said is None else {LLM: said})
    return gang


def story(found: Seen, name: GangName = LLM, said: Said | None = None, rules: Rules = RULES, **more: Any) -> GangStory:
    """Of one gang. ``more``: ``opted_in``."""
    return tell(found, About(name, rules, said, **more), NOW)
