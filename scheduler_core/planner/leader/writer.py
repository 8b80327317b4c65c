"""Carries out what ``gangs.steps`` asks for: one call of the API server each, for any number of threads.

Nothing is retried here: what failed is asked for again, or something else is, once its consequences have been seen.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.reservations import LEDGER_KIND, RESERVATION_KIND
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.objects import ObjectMeta, PartialObject, PlacementLedger
from gputopo.kube.rbac import LEDGER_STATUS, LEDGERS, PODS, RESERVATION_STATUS, RESERVATIONS
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.cache.watch import ledger_update
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.actions import (
    Action,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    ProbeExtenderPod,
    ReleasePod,
    StripFinalizer,
    TouchPod,
    UngateAndPin,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.gang.member import Member


class WriteOutcome(Enum):
    """What became of a write."""

    DONE = "done"
    CONFLICT = "conflict"  # the object is not what it was worked out from
    GONE = "gone"  # there is no such object
    UNANSWERED = "away"  # no answer, or the API server is busy: it may have been done or not
    REFUSED = "refused"  # the API server does not take it
    DEPOSED = "deposed"  # not sent: another leads


class WriteAnswer(NamedTuple):
    """What the API server said."""

    write: Action
    outcome: WriteOutcome
    metadata: ObjectMeta | None = None  # of the object as it is then, where it is told
    ledger: LedgerUpdate | None = None  # as read again, after a write of it that was not done
    error: str = ""
    seconds: float = 0.0


class ActionExecutor:
    """Writes as one planner."""

    def __init__(self, kube: Kube, holds: Callable[[], bool], clock: Callable[[], float]) -> None:
        """``holds``: whether this planner leads, asked just before each write."""
        self._kube = kube
        self._holds = holds
        self._clock = clock

    def execute_action(self, what: Action) -> WriteAnswer:
        """Do it, unless another leads by now."""
        began = self._clock()
        if not self._holds():
            return WriteAnswer(what, WriteOutcome.DEPOSED)
        answer = self._attempt(what)
        if isinstance(what, CreateLedger | WriteLedger | DropRegistration) and answer.outcome is not WriteOutcome.DONE:
            answer = self._read_again(answer, what.key[1])
        return answer._replace(seconds=self._clock() - began)

    def get_ledger(self, name: str) -> LedgerUpdate | None:
        """The ledger as it is now, by quorum; None: there is none. Raises ``KubeError``."""
        try:
            return ledger_update(name, self._kube.get(LEDGERS, name, PlacementLedger))
        except NotFoundError:
            return None

    def _attempt(self, what: Action) -> WriteAnswer:
        try:
            return WriteAnswer(what, WriteOutcome.DONE, _SEND[type(what)](self._kube, what))
        except ConflictError as error:
            return WriteAnswer(what, WriteOutcome.CONFLICT, error=str(error))
        except NotFoundError as error:
            return WriteAnswer(what, WriteOutcome.GONE, error=str(error))
        except UnavailableError as error:
            return WriteAnswer(what, WriteOutcome.UNANSWERED, error=str(error))
        except KubeError as error:
            return WriteAnswer(what, WriteOutcome.REFUSED, error=str(error))

    def _read_again(self, answer: WriteAnswer, name: str) -> WriteAnswer:
        try:
            return answer._replace(ledger=self.get_ledger(name))
        except KubeError as error:
            return answer._replace(outcome=WriteOutcome.UNANSWERED, error=f"{answer.error}; {error}")


def _create_ledger(kube: Kube, what: CreateLedger) -> ObjectMeta:
    return kube.create(LEDGERS, _ledger({"name": what.name}, spec=what.spec))


def _write_ledger(kube: Kube, what: WriteLedger) -> ObjectMeta:
    return kube.replace(LEDGERS, _ledger(_identity(what.over), spec=what.spec))


def _drop_registration(kube: Kube, what: DropRegistration) -> ObjectMeta:
    return kube.replace(LEDGER_STATUS, _ledger(_identity(what.over), spec=what.over.spec, status=what.status))


def _create_reservation(kube: Kube, what: CreateReservation) -> ObjectMeta:
    metadata = {"name": what.name, "namespace": what.namespace}
    return kube.create(RESERVATIONS, _object(RESERVATIONS.api_version, RESERVATION_KIND, metadata, spec=what.spec))


def _write_status(kube: Kube, what: WriteStatus) -> ObjectMeta:
    of = what.of
    if what.unless_changed is not None:
        _unchanged(kube, what.unless_changed)
    identity = {"name": of.name, "namespace": of.namespace, "uid": of.key, "resourceVersion": of.version}
    # A field that is left out stays as it was: one that is to go is None.
    status = dict.fromkeys(what.status.__struct_encode_fields__) | msgspec.to_builtins(what.status)
    return kube.patch(RESERVATION_STATUS, {"metadata": identity, "status": status})


def _delete_reservation(kube: Kube, what: DeleteReservation) -> None:
    kube.delete(RESERVATIONS, ObjectMeta(what.of.name, what.of.key, what.of.namespace))


def _let_go(kube: Kube, what: UngateAndPin) -> ObjectMeta:
    return kube.patch(PODS, pod_patches.ungate_and_pin_patch(what.member, what.seat, what.reservation))


def _release(kube: Kube, what: ReleasePod) -> ObjectMeta:
    return kube.patch(PODS, pod_patches.ungate_patch(what.member))


def _touch(kube: Kube, what: TouchPod) -> ObjectMeta:
    return kube.patch(PODS, pod_patches.touch_patch(what.member, what.of))


def _strip(kube: Kube, what: StripFinalizer) -> ObjectMeta:
    """Only of a pod that may be deleted then: one that lost it and lived on would work, and its Job not count it."""
    member = what.member
    kube.delete(PODS, ObjectMeta(member.name, member.uid, member.namespace), only_ask=True)
    return kube.patch(PODS, pod_patches.strip_finalizer_patch(_versioned(kube, member), what.finalizer))


def _delete_pod(kube: Kube, what: DeletePod) -> None:
    """Only as it was seen: a watch that lags shows a pod as unbound that has its node and is at work by now."""
    member = what.member
    found = ObjectMeta(member.name, member.uid, member.namespace, member.version)
    kube.delete(PODS, found, unchanged=bool(member.version))


def _ask(kube: Kube, what: ProbeExtenderPod) -> ObjectMeta:
    """Raises ``NotFoundError``."""
    namespace, _, name = what.pod.partition("/")
    return kube.get(PODS, name, PartialObject, ListOptions(namespace, metadata_only=True)).metadata


_SEND: dict[type[Any], Callable[[Kube, Any], ObjectMeta | None]] = {
    CreateLedger: _create_ledger,
    WriteLedger: _write_ledger,
    DropRegistration: _drop_registration,
    CreateReservation: _create_reservation,
    WriteStatus: _write_status,
    DeleteReservation: _delete_reservation,
    UngateAndPin: _let_go,
    ReleasePod: _release,
    TouchPod: _touch,
    StripFinalizer: _strip,
    DeletePod: _delete_pod,
    ProbeExtenderPod: _ask,
}


def _unchanged(kube: Kube, member: Member) -> None:
    """That a pod is as it was seen. A watch that lags shows a gang as late which runs. Raises ``ConflictError``."""
    found = _versioned(kube, member._replace(version=""))
    if member.version and found.version != member.version:
        raise ConflictError(f"pod {member.namespace}/{member.name} is not as it was seen", {})


def _versioned(kube: Kube, member: Member) -> Member:
    """With the resource version of now, where the one that was seen was not kept (a kubelet writes it often)."""
    if member.version:
        return member
    found = kube.get(PODS, member.name, PartialObject, ListOptions(member.namespace, metadata_only=True)).metadata
    if found.uid != member.uid:
        raise NotFoundError(f"pod {member.namespace}/{member.name} is another one by now", kind_missing=False)
    return member._replace(version=found.resource_version)


def _ledger(metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    return _object(LEDGERS.api_version, LEDGER_KIND, metadata, **parts)


def _object(version: str, kind: str, metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    found = {name: msgspec.to_builtins(part) for name, part in parts.items()}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **found}


def _identity(ledger: LedgerUpdate) -> dict[str, Any]:
    return {"name": ledger.key, "uid": ledger.uid, "resourceVersion": ledger.version}
