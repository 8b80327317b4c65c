"""Carries out what ``gangs.steps`` asks for: one call of the API server each, for any number of threads.

Nothing is retried here: what failed is asked for again, or something else is, once its consequences have been seen.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from gputopo.crd.reservations import LEDGER_KIND, RESERVATION_KIND
from gputopo.kube.client import Kube, Query
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.objects import Metadata, Partial, PlacementLedger
from gputopo.kube.rbac import LEDGER_STATUS, LEDGERS, PODS, RESERVATION_STATUS, RESERVATIONS
from scheduler_core.cache.events import LedgerSeen
from scheduler_core.cache.watch import ledger_seen
from scheduler_core.planner.commit import pod_patches
from scheduler_core.planner.commit.actions import (
    AskForPod,
    CreateLedger,
    CreateReservation,
    DeletePod,
    DeleteReservation,
    DropRegistration,
    LetGo,
    Release,
    StripFinalizer,
    Touch,
    Write,
    WriteLedger,
    WriteStatus,
)
from scheduler_core.planner.gang.member import Member


class Outcome(Enum):
    """What became of a write."""

    DONE = "done"
    CONFLICT = "conflict"  # the object is not what it was worked out from
    GONE = "gone"  # there is no such object
    AWAY = "away"  # no answer, or the API server is busy: it may have been done or not
    REFUSED = "refused"  # the API server does not take it
    DEPOSED = "deposed"  # not sent: another leads


class Answer(NamedTuple):
    """What the API server said."""

    write: Write
    outcome: Outcome
    metadata: Metadata | None = None  # of the object as it is then, where it is told
    ledger: LedgerSeen | None = None  # as read again, after a write of it that was not done
    error: str = ""
    seconds: float = 0.0


class Writer:
    """Writes as one planner."""

    def __init__(self, kube: Kube, holds: Callable[[], bool], clock: Callable[[], float]) -> None:
        """``holds``: whether this planner leads, asked just before each write."""
        self._kube = kube
        self._holds = holds
        self._clock = clock

    def write(self, what: Write) -> Answer:
        """Do it, unless another leads by now."""
        began = self._clock()
        if not self._holds():
            return Answer(what, Outcome.DEPOSED)
        answer = self._attempt(what)
        if isinstance(what, CreateLedger | WriteLedger | DropRegistration) and answer.outcome is not Outcome.DONE:
            answer = self._read_again(answer, what.key[1])
        return answer._replace(seconds=self._clock() - began)

    def ledger(self, name: str) -> LedgerSeen | None:
        """The ledger as it is now, by quorum; None: there is none. Raises ``KubeError``."""
        try:
            return ledger_seen(name, self._kube.get(LEDGERS, name, PlacementLedger))
        except NotFoundError:
            return None

    def _attempt(self, what: Write) -> Answer:
        try:
            return Answer(what, Outcome.DONE, _SEND[type(what)](self._kube, what))
        except ConflictError as error:
            return Answer(what, Outcome.CONFLICT, error=str(error))
        except NotFoundError as error:
            return Answer(what, Outcome.GONE, error=str(error))
        except UnavailableError as error:
            return Answer(what, Outcome.AWAY, error=str(error))
        except KubeError as error:
            return Answer(what, Outcome.REFUSED, error=str(error))

    def _read_again(self, answer: Answer, name: str) -> Answer:
        try:
            return answer._replace(ledger=self.ledger(name))
        except KubeError as error:
            return answer._replace(outcome=Outcome.AWAY, error=f"{answer.error}; {error}")


def _create_ledger(kube: Kube, what: CreateLedger) -> Metadata:
    return kube.create(LEDGERS, _ledger({"name": what.name}, spec=what.spec))


def _write_ledger(kube: Kube, what: WriteLedger) -> Metadata:
    return kube.replace(LEDGERS, _ledger(_identity(what.over), spec=what.spec))


def _drop_registration(kube: Kube, what: DropRegistration) -> Metadata:
    return kube.replace(LEDGER_STATUS, _ledger(_identity(what.over), spec=what.over.spec, status=what.status))


def _create_reservation(kube: Kube, what: CreateReservation) -> Metadata:
    metadata = {"name": what.name, "namespace": what.namespace}
    return kube.create(RESERVATIONS, _object(RESERVATIONS.api_version, RESERVATION_KIND, metadata, spec=what.spec))


def _write_status(kube: Kube, what: WriteStatus) -> Metadata:
    of = what.of
    if what.unless_changed is not None:
        _unchanged(kube, what.unless_changed)
    identity = {"name": of.name, "namespace": of.namespace, "uid": of.key, "resourceVersion": of.version}
    # A field that is left out stays as it was: one that is to go is None.
    status = dict.fromkeys(what.status.__struct_encode_fields__) | msgspec.to_builtins(what.status)
    return kube.patch(RESERVATION_STATUS, {"metadata": identity, "status": status})


def _delete_reservation(kube: Kube, what: DeleteReservation) -> None:
    kube.delete(RESERVATIONS, Metadata(what.of.name, what.of.key, what.of.namespace))


def _let_go(kube: Kube, what: LetGo) -> Metadata:
    return kube.patch(PODS, pod_patches.let_go(what.member, what.seat, what.reservation))


def _release(kube: Kube, what: Release) -> Metadata:
    return kube.patch(PODS, pod_patches.release(what.member))


def _touch(kube: Kube, what: Touch) -> Metadata:
    return kube.patch(PODS, pod_patches.touch(what.member, what.of))


def _strip(kube: Kube, what: StripFinalizer) -> Metadata:
    """Only of a pod that may be deleted then: one that lost it and lived on would work, and its Job not count it."""
    member = what.member
    kube.delete(PODS, Metadata(member.name, member.uid, member.namespace), only_ask=True)
    return kube.patch(PODS, pod_patches.strip(_versioned(kube, member), what.finalizer))


def _delete_pod(kube: Kube, what: DeletePod) -> None:
    """Only as it was seen: a watch that lags shows a pod as unbound that has its node and is at work by now."""
    member = what.member
    found = Metadata(member.name, member.uid, member.namespace, member.version)
    kube.delete(PODS, found, unchanged=bool(member.version))


def _ask(kube: Kube, what: AskForPod) -> Metadata:
    """Raises ``NotFoundError``."""
    namespace, _, name = what.pod.partition("/")
    return kube.get(PODS, name, Partial, Query(namespace, metadata_only=True)).metadata


_SEND: dict[type[Any], Callable[[Kube, Any], Metadata | None]] = {
    CreateLedger: _create_ledger,
    WriteLedger: _write_ledger,
    DropRegistration: _drop_registration,
    CreateReservation: _create_reservation,
    WriteStatus: _write_status,
    DeleteReservation: _delete_reservation,
    LetGo: _let_go,
    Release: _release,
    Touch: _touch,
    StripFinalizer: _strip,
    DeletePod: _delete_pod,
    AskForPod: _ask,
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
    found = kube.get(PODS, member.name, Partial, Query(member.namespace, metadata_only=True)).metadata
    if found.uid != member.uid:
        raise NotFoundError(f"pod {member.namespace}/{member.name} is another one by now", kind_missing=False)
    return member._replace(version=found.resource_version)


def _ledger(metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    return _object(LEDGERS.api_version, LEDGER_KIND, metadata, **parts)


def _object(version: str, kind: str, metadata: dict[str, Any], **parts: msgspec.Struct) -> dict[str, Any]:
    found = {name: msgspec.to_builtins(part) for name, part in parts.items()}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **found}


def _identity(ledger: LedgerSeen) -> dict[str, Any]:
    return {"name": ledger.key, "uid": ledger.uid, "resourceVersion": ledger.version}
