"""Patches of pods: ungate and pin, ungate, touch, strip a finalizer. Pure: bodies of JSON merge patches (RFC 7396).

Each patch carries the UID and the resource version that it was computed from: the API server refuses it once the pod
has changed (409) or was recreated under the same name (422: the UID is immutable).

Source: KEP-3838. While a pod is gated, its required node affinity may be set where it has none, and existing terms may
get further requirements; a term without requirements, which matches no node, must stay as it is.
"""

from __future__ import annotations

from typing import Any

from gputopo.crd.reservations import PlannedMember
from gputopo.labels import keys
from gputopo.labels.gate import remove_gate_patch
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.pod import NODE_NAME, RequiredTerm, RequiredTerms, Requirement

Body = dict[str, Any]


def ungate_and_pin_patch(member: Member, seat: PlannedMember, reservation: str) -> Body:
    """Return the patch that removes our gate and pins the pod to its node by node affinity, for kube-scheduler."""
    rank = {} if seat.rank is None else {keys.POD_GANG_RANK.key: str(seat.rank)}
    body = _body(member, {"annotations": {**rank, keys.POD_RESERVATION.key: reservation}})
    body["spec"] = ungate_patch(member)["spec"]
    if seat.node is not None:
        terms = pinned_terms(member.terms, seat.node)
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        body["spec"]["affinity"] = {"nodeAffinity": required}
    return body


def ungate_patch(member: Member) -> Body:
    """Return the patch that removes our gate and changes nothing else."""
    return remove_gate_patch(_identity(member), member.gates)


def touch_patch(member: Member, reservation: str) -> Body:
    """Return the patch that moves the resource version, by an annotation that names the rolled back reservation."""
    return _body(member, {"annotations": {keys.POD_ROLLED_BACK.key: reservation}})


def strip_finalizer_patch(member: Member, finalizer: str) -> Body:
    """Return the patch that removes a finalizer."""
    return _body(member, {"finalizers": [each for each in member.finalizers if each != finalizer]})


def pinned_terms(terms: RequiredTerms | None, node: str) -> list[Body]:
    """Return ``nodeSelectorTerms`` that allow this node only, and only if the pod's own terms allow it."""
    pin = {"key": NODE_NAME, "operator": "In", "values": [node]}
    found = () if terms is None else terms.node_selector_terms or ()
    return [_narrowed(each, pin) for each in found] or [{"matchFields": [pin]}]


def _narrowed(term: RequiredTerm, pin: Body) -> Body:
    expressions = [_requirement(each) for each in term.match_expressions or ()]
    fields = [_requirement(each) for each in term.match_fields or ()]
    if expressions or fields:
        fields.append(pin)
    return {name: each for name, each in (("matchExpressions", expressions), ("matchFields", fields)) if each}


def _requirement(each: Requirement) -> Body:
    values = {} if each.values is None else {"values": list(each.values)}
    return {"key": each.key, "operator": each.operator, **values}


def _body(member: Member, metadata: Body) -> Body:
    return {"metadata": _identity(member) | metadata}


def _identity(member: Member) -> dict[str, str]:
    return {
        "name": member.name,
        "namespace": member.namespace,
        "uid": member.uid,
        "resourceVersion": member.version,
    }
