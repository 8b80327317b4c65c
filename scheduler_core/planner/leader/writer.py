"""Executes actions: one call of the API server each, on any number of threads.

Nothing is retried here: ``reconcile`` asks again, or asks for something else, when the consequences have been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec

from gputopo.crd.reservations import LEDGER_KIND, RESERVATION_KIND
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.objects import ObjectMeta, PartialObject, PlacementLedger
from gputopo.kube.rbac import (
    LEDGER_STATUS,
    LEDGERS,
    POD_TEMPLATES,
    PODS,
    PROVISIONING_REQUESTS,
    RESERVATION_STATUS,
    RESERVATIONS,
)
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.cache.watch import ledger_update
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.actions import (
    Action,
    CheckBudgets,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    EndPod,
    EvictPod,
    LedgerAction,
    ProbeExtenderPod,
    ReleasePod,
    RequestNodes,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.leader.budget_reads import check_budgets
from scheduler_core.planner.leader.eviction_trials import evict_pod, find_refused_evictions
from scheduler_core.planner.leader.resource_fit_reads import find_shortages

T = TypeVar("T")
_TRIES = 4  # of a write of a pod that somebody edits all the time


class WriteOutcome(Enum):
    """Outcome of a write."""

    DONE = "done"
    CONFLICT = "conflict"  # the object has changed
    GONE = "gone"  # the object does not exist
    UNANSWERED = "unanswered"  # no answer, or the API server is busy: the object may have been written or not
    REFUSED = "refused"  # the API server rejects it
    DEPOSED = "deposed"  # not sent: another planner leads


class WriteAnswer(NamedTuple):
    """Answer of the API server."""

    write: Action
    outcome: WriteOutcome
    metadata: ObjectMeta | None = None  # of the written object, where the API server returns it
    ledger: LedgerUpdate | None = None  # as read again after a failed write of it
    error: str = ""
    seconds: float = 0.0
    blocked: Mapping[str, str] = {}  # of ``CheckBudgets``: units that may not be evicted, and why
    forbidden: frozenset[str] = frozenset()  # of ``CheckBudgets``: UIDs of further pods that may not be evicted
    insufficient_nodes: frozenset[str] = frozenset()  # of ``CheckBudgets``: as ``Shortages.nodes``


class ActionExecutor:
    """Writes in the name of one planner."""

    def __init__(self, kube: Kube, is_leader: Callable[[], bool], clock: Callable[[], float]) -> None:
        """``is_leader``: called just before each write."""
        self._kube = kube
        self._is_leader = is_leader
        self._clock = clock

    def execute_action(self, action: Action) -> WriteAnswer:
        """Send a write, unless this planner does not lead any more."""
        began = self._clock()
        if not self._is_leader():
            return WriteAnswer(action, WriteOutcome.DEPOSED)
        answer = self._attempt(action)
        if isinstance(action, LedgerAction) and answer.outcome is not WriteOutcome.DONE:
            answer = self._read_again(answer, action.key[1])
        return answer._replace(seconds=self._clock() - began)

    def get_ledger(self, name: str) -> LedgerUpdate | None:
        """Return the ledger by a consistent read; None: it does not exist. Raises ``KubeError``."""
        try:
            return ledger_update(name, self._kube.get(LEDGERS, name, PlacementLedger))
        except NotFoundError:
            return None

    def _attempt(self, action: Action) -> WriteAnswer:
        try:
            if isinstance(action, CheckBudgets):
                return self._check_evictions(action)
            return WriteAnswer(action, WriteOutcome.DONE, _SEND[type(action)](self._kube, action))
        except ConflictError as error:
            return WriteAnswer(action, WriteOutcome.CONFLICT, error=str(error))
        except NotFoundError as error:
            return WriteAnswer(action, WriteOutcome.GONE, error=str(error))
        except UnavailableError as error:
            return WriteAnswer(action, WriteOutcome.UNANSWERED, error=str(error))
        except KubeError as error:
            return WriteAnswer(action, WriteOutcome.REFUSED, error=str(error))

    def _check_evictions(self, action: CheckBudgets) -> WriteAnswer:
        """Return what forbids the evictions: the first kind of reasons that is found. Raises ``KubeError``."""
        blocked, forbidden = check_budgets(self._kube, action)
        insufficient = frozenset[str]()
        if not blocked:
            blocked, insufficient = find_shortages(self._kube, action)
        if not blocked and action.dry_run_for is None:
            blocked = find_refused_evictions(self._kube, action.evictions)
        return WriteAnswer(
            action, WriteOutcome.DONE, blocked=blocked, forbidden=forbidden, insufficient_nodes=insufficient
        )

    def _read_again(self, answer: WriteAnswer, name: str) -> WriteAnswer:
        try:
            return answer._replace(ledger=self.get_ledger(name))
        except KubeError as error:
            return answer._replace(outcome=WriteOutcome.UNANSWERED, error=f"{answer.error}; {error}")


def _create_ledger(kube: Kube, action: CreateLedger) -> ObjectMeta:
    return kube.create(LEDGERS, _ledger({"name": action.name}, spec=action.spec))


def _write_ledger(kube: Kube, action: WriteLedger) -> ObjectMeta:
    return kube.replace(LEDGERS, _ledger(_identity(action.ledger), spec=action.spec))


def _drop_registration(kube: Kube, action: DropRegistration) -> ObjectMeta:
    return kube.replace(LEDGER_STATUS, _ledger(_identity(action.ledger), spec=action.ledger.spec, status=action.status))


def _create_reservation(kube: Kube, action: CreateReservation) -> ObjectMeta:
    metadata = {"name": action.name, "namespace": action.namespace}
    return kube.create(RESERVATIONS, _object(RESERVATIONS.api_version, RESERVATION_KIND, metadata, spec=action.spec))


def _write_status(kube: Kube, action: WriteStatus) -> ObjectMeta:
    of = action.reservation
    if action.unless_bound is not None:
        _check_unbound(kube, action.unless_bound)
    identity = {"name": of.name, "namespace": of.namespace, "uid": of.key, "resourceVersion": of.version}
    # An omitted field is kept by the API server; None removes it.
    status = dict.fromkeys(action.status.__struct_encode_fields__) | msgspec.to_builtins(action.status)
    return kube.patch(RESERVATION_STATUS, {"metadata": identity, "status": status})


def _delete_reservation(kube: Kube, action: DeleteReservation) -> None:
    kube.delete(RESERVATIONS, ObjectMeta(action.reservation.name, action.reservation.key, action.reservation.namespace))


def _ungate_and_pin(kube: Kube, action: UngateAndPin) -> ObjectMeta:
    return kube.patch(PODS, pod_patches.ungate_and_pin_patch(action.member, action.seat, action.reservation))


def _release_pod(kube: Kube, action: ReleasePod) -> ObjectMeta:
    return kube.patch(PODS, pod_patches.ungate_patch(action.member))


def _touch_pod(kube: Kube, action: TouchPod) -> ObjectMeta:
    """Touch a pod, whatever its present version is: only that the version moves counts."""

    def touch(member: Member) -> ObjectMeta:
        return kube.patch(PODS, pod_patches.touch_patch(member, action.reservation_uid))

    return _with_present_version(
        lambda: touch(action.member), lambda: touch(_versioned(kube, action.member._replace(version="")))
    )


def _strip_finalizer(kube: Kube, action: StripFinalizer) -> ObjectMeta:
    """Remove a finalizer of a pod, if the pod can be deleted then: else it would run on, and its Job not count it."""
    member = action.member
    kube.delete(PODS, ObjectMeta(member.name, member.uid, member.namespace), only_ask=True)
    return kube.patch(PODS, pod_patches.strip_finalizer_patch(_versioned(kube, member), action.finalizer))


def _delete_pod(kube: Kube, action: DeletePod) -> None:
    """Delete a pod. If the watch, which may lag, shows it as unbound, it is deleted only if it is unbound."""
    member = action.member
    if not member.version:
        kube.delete(PODS, ObjectMeta(member.name, member.uid, member.namespace))
        return
    found = ObjectMeta(member.name, member.uid, member.namespace, member.version)
    _with_present_version(
        lambda: kube.delete(PODS, found, unchanged=True),
        lambda: kube.delete(PODS, _check_unbound(kube, member), unchanged=True),
    )


def _probe_extender_pod(kube: Kube, action: ProbeExtenderPod) -> ObjectMeta:
    """Read a pod of an extender. Raises ``NotFoundError``."""
    namespace, _, name = action.pod.partition("/")
    return kube.get(PODS, name, PartialObject, ListOptions(namespace, metadata_only=True)).metadata


class _TemplatePod(msgspec.Struct, frozen=True):
    """A pod as the template of others."""

    spec: dict[str, Any]


def _request_nodes(kube: Kube, action: RequestNodes) -> ObjectMeta:
    """Create the templates, then the request that names them. Raises ``ConflictError`` if the request exists."""
    namespace, owner = action.gang.namespace, action.owner
    owners = [{"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}]
    pod_sets = []
    for at, (pod, count) in enumerate(action.groups):
        spec = kube.get(PODS, pod, _TemplatePod, ListOptions(namespace)).spec
        metadata = {"name": f"{action.name}-{at}", "namespace": namespace, "ownerReferences": owners}
        template = {"spec": {key: value for key, value in spec.items() if key != "schedulingGates"}}
        body = {"apiVersion": POD_TEMPLATES.api_version, "kind": "PodTemplate", "metadata": metadata}
        with suppress(ConflictError):  # from an earlier attempt
            kube.create(POD_TEMPLATES, {**body, "template": template})
        pod_sets.append({"podTemplateRef": {"name": metadata["name"]}, "count": count})
    return kube.create(
        PROVISIONING_REQUESTS,
        {
            "apiVersion": PROVISIONING_REQUESTS.api_version,
            "kind": "ProvisioningRequest",
            "metadata": {"name": action.name, "namespace": namespace, "ownerReferences": owners},
            "spec": {"provisioningClassName": action.provisioning_class, "podSets": pod_sets},
        },
    )


_SEND: dict[type[Any], Callable[[Kube, Any], ObjectMeta | None]] = {
    CreateLedger: _create_ledger,
    WriteLedger: _write_ledger,
    DropRegistration: _drop_registration,
    CreateReservation: _create_reservation,
    WriteStatus: _write_status,
    DeleteReservation: _delete_reservation,
    UngateAndPin: _ungate_and_pin,
    ReleasePod: _release_pod,
    TouchPod: _touch_pod,
    StripFinalizer: _strip_finalizer,
    DeletePod: _delete_pod,
    EndPod: _delete_pod,
    EvictPod: lambda kube, action: evict_pod(kube, action.eviction),
    RequestNodes: _request_nodes,
    ProbeExtenderPod: _probe_extender_pod,
}


class _PodNode(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None


class _PresentPod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: _PodNode = _PodNode()


def _check_unbound(kube: Kube, member: Member) -> ObjectMeta:
    """Return the metadata of a pod. Raise ``ConflictError`` if it is bound: a lagging watch shows a gang as late.

    Other changes are allowed: constant edits of the pods of a gang would keep their GPUs for ever.
    """
    found = kube.get(PODS, member.name, _PresentPod, ListOptions(member.namespace))
    _check_same_pod(found.metadata, member)
    if found.spec.node_name:
        raise ConflictError(f"pod {member.namespace}/{member.name} is bound", {})
    return found.metadata


def _check_same_pod(found: ObjectMeta, member: Member) -> None:
    """Raise ``NotFoundError`` if another pod has the name."""
    if found.uid != member.uid:
        raise NotFoundError(f"pod {member.namespace}/{member.name} was replaced by another pod", kind_missing=False)


def _with_present_version(write: Callable[[], T], write_again: Callable[[], T]) -> T:
    """Write a pod by its observed version; if it has changed, a few times by its present version."""
    try:
        return write()
    except ConflictError as changed:
        for _ in range(_TRIES):
            with suppress(ConflictError):
                return write_again()
        raise changed from None


def _versioned(kube: Kube, member: Member) -> Member:
    """Return the member with its present resource version, where no version was kept (kubelets write pods often)."""
    if member.version:
        return member
    found = kube.get(PODS, member.name, PartialObject, ListOptions(member.namespace, metadata_only=True)).metadata
    _check_same_pod(found, member)
    return member._replace(version=found.resource_version)


def _ledger(metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    return _object(LEDGERS.api_version, LEDGER_KIND, metadata, **parts)


def _object(version: str, kind: str, metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    found = {name: msgspec.to_builtins(part) for name, part in parts.items()}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **found}


def _identity(ledger: LedgerUpdate) -> dict[str, Any]:
    return {"name": ledger.key, "uid": ledger.uid, "resourceVersion": ledger.version}
