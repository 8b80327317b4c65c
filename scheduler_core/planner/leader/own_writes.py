"""Own writes that no watch has shown yet: an older event must not undo an answered write. No I/O.

Watches lag behind the answers of the API server. Versions of objects decide which of the two is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from scheduler_core.cache.events import Batch, LedgerUpdate, ReservationUpdate
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.gang.pod_source import PlannerPod


class OwnWrite(NamedTuple):
    """An answered write of this planner."""

    version: int  # of the object
    at: float  # seconds since 1970


class OwnWrites:
    """Writes of pods and reservations in one term of leadership. Dicts are ordered: the oldest write first."""

    def __init__(self) -> None:
        self._pods: dict[str, OwnWrite] = {}  # by UID
        self._statuses: dict[str, OwnWrite] = {}  # by UID of the reservation
        self._created: dict[str, ReservationUpdate] = {}  # by UID
        self._creating: dict[tuple[str, str], str | None] = {}  # namespace, name: UID, once a watch has shown it
        self._deleted: set[str] = set()  # UIDs of reservations that a watch may still show
        self._missed: set[str] = set()  # created and deleted reservations that the last list did not show

    def oldest_at(self) -> float | None:
        """Return when the oldest of these writes was answered, in seconds since 1970."""
        oldest = (next(iter(each.values()), None) for each in (self._pods, self._statuses))
        return min((each.at for each in oldest if each is not None), default=None)

    def mark_creating(self, namespace: str, name: str) -> None:
        """Record that a create of this reservation was sent."""
        self._creating[namespace, name] = None

    def unmark_creating(self, namespace: str, name: str) -> str | None:
        """Record that a create was answered, or failed. Return the UID if a watch has shown the reservation already."""
        return self._creating.pop((namespace, name), None)

    def record_created(self, reservation: ReservationUpdate) -> None:
        """Record a created reservation."""
        self._created[reservation.key] = reservation

    def record_deleted(self, uid: str, *, is_known: bool) -> None:
        """Record the deletion of a reservation. ``is_known``: no watch has shown its end yet."""
        if is_known:
            self._deleted.add(uid)
        self._created.pop(uid, None)

    def record_status(self, uid: str, write: OwnWrite) -> None:
        """Record a written status of a reservation."""
        self._statuses.pop(uid, None)  # to move it to the end
        self._statuses[uid] = write

    def record_pod(self, uid: str, write: OwnWrite) -> None:
        """Record a written pod."""
        self._pods.pop(uid, None)  # to move it to the end
        self._pods[uid] = write

    def newest_pods(self, batch: Batch[PlannerPod], get_member: Callable[[str], Member | None]) -> Batch[PlannerPod]:
        """Return the batch with members as they were written, where that is newer."""
        for uid in batch.removed:
            self._pods.pop(uid, None)
        if batch.is_full_list:  # it does not name removed pods
            self._pods = {each.key: self._pods[each.key] for each in batch.updates if each.key in self._pods}
        return batch._replace(updates=tuple(self._newer_pod(each, get_member(each.key)) for each in batch.updates))

    def _newer_pod(self, update: PlannerPod, known: Member | None) -> PlannerPod:
        write = self._pods.get(update.key)
        version = "" if update.member is None else update.member.version
        if write is not None and known is not None and version and int(version) < write.version:
            return update._replace(member=known)
        self._pods.pop(update.key, None)
        return update

    def newest_reservations(
        self, batch: Batch[ReservationUpdate], known: Mapping[str, ReservationUpdate]
    ) -> tuple[Batch[ReservationUpdate], frozenset[str]]:
        """Return the batch with reservations as they were written, where that is newer.

        Also return the UIDs of reservations that the batch shows before their create was answered.
        """
        if batch.is_full_list:
            batch = batch._replace(removed=self._not_listed(batch))
        for uid in batch.removed:
            self._statuses.pop(uid, None)
            self._created.pop(uid, None)
            self._deleted.discard(uid)
        shown = [each for each in batch.updates if each.key not in self._deleted]
        unanswered = frozenset(each.key for each in shown if self._is_unanswered(each))
        newest = [self._newer_reservation(each, known) for each in shown]
        if batch.is_full_list:
            newest += self._created.values()
        return batch._replace(updates=tuple(newest)), unanswered

    def _is_unanswered(self, update: ReservationUpdate) -> bool:
        """Return True if a watch shows a new reservation before its create is answered."""
        name = (update.namespace, update.name)
        if self._creating.get(name, update.key) is not None:
            return False
        self._creating[name] = update.key
        return True

    def _newer_reservation(
        self, update: ReservationUpdate, known: Mapping[str, ReservationUpdate]
    ) -> ReservationUpdate:
        self._created.pop(update.key, None)
        write = self._statuses.get(update.key)
        if write is not None and int(update.version) < write.version:
            return known.get(update.key, update)
        self._statuses.pop(update.key, None)
        return update

    def _not_listed(self, batch: Batch[ReservationUpdate]) -> tuple[str, ...]:
        """Return the UIDs of written reservations that a full list proves to be gone: it does not name them.

        A list may have begun before a reservation was created. The next list cannot have.
        """
        shown = {each.key for each in batch.updates}
        missed = (self._created.keys() | self._deleted) - shown
        twice = missed & self._missed
        self._missed = missed - twice
        return tuple(twice | (self._statuses.keys() - shown - self._created.keys()))


def newest_ledgers(batch: Batch[LedgerUpdate], known: LedgerUpdate | None) -> Batch[LedgerUpdate]:
    """Return the batch with the ledger as it was written, where that is newer."""

    def newest(update: LedgerUpdate) -> LedgerUpdate:
        is_same = known is not None and update.key == known.key and update.uid == known.uid
        return known if known is not None and is_same and int(update.version) < int(known.version) else update

    return batch._replace(updates=tuple(map(newest, batch.updates)))
