"""Gangs for which a search for pods to evict has the same inputs: in dry-run mode they share its result. Pure.

No result is kept: it counts for the gangs that wait when the search begins. So it is as recent as a search for each of
them, also in what changes all the time: pods, nodes, the age of running work, forbidden units.

With ``mode: evict``, each gang is searched for by itself. Evictions never follow from the result for another gang, and
of many gangs, one soon finds pods that may be evicted from now on.

The check of the found pods is shared as well. It reads host ports and extended resources of the members, which are not
watched: those of the other gangs may differ. A dry run may be wrong there, but no pod is evicted.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from operator import attrgetter
from typing import NamedTuple

from scheduler_core.planner.gang.gang import Gang
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.leader.queue import QueuedGang
from scheduler_core.request.pod_request import InvalidRequest

_gang_inputs = attrgetter("name.namespace", "priority", "min_ready", "required_members")
_member_inputs = attrgetter(
    "gang_request.size",
    "gang_request.minimum",
    "gang_request.rank",
    "gang_request.required",
    "gang_request.preferred",
    "load",
    "blocked",
)


class SharingRules(NamedTuple):
    """Which gangs share a search, beside those with equal requests."""

    apart: Container[GangName] = ()  # gangs with a capacity hold, or that avoid nodes: their searches differ
    # Pods have anti-affinity: labels count, and those of two gangs always differ. So the last plan must have found
    # that their requests are equal.
    by_request_id: bool = False

    def allow(self, searched: QueuedGang, other: QueuedGang) -> bool:
        """Return whether a search for the first gang has the same inputs as one for the other gang."""
        if searched.gang.name in self.apart or other.gang.name in self.apart:
            return False
        if self.by_request_id and not _have_same_request_id(searched, other):
            return False
        return have_equal_requests(searched.gang, other.gang)


def have_equal_requests(one: Gang, other: Gang) -> bool:
    """Return whether two gangs differ in nothing that a search reads, except for anti-affinity.

    A gang with placed members differs from all others: these are not evicted for it, and it fits only near them.
    """
    if one.placed or other.placed or len(one.ready) != len(other.ready) or len(one.succeeded) != len(other.succeeded):
        return False
    if _gang_inputs(one) != _gang_inputs(other):
        return False
    return all(_inputs_of(own) == _inputs_of(its) for own, its in zip(one.ready, other.ready, strict=True))


def _inputs_of(member: Member) -> Hashable:
    request = member.request
    asked = request if isinstance(request, InvalidRequest) else (request.scheduler, request.namespace, request.profile)
    return _member_inputs(member), asked, member.rules and member.rules.key


def _have_same_request_id(one: QueuedGang, other: QueuedGang) -> bool:
    known, found = one.unfit_state, other.unfit_state
    if known is None or found is None or known.request_id is None:
        return False
    return known.request_id is found.request_id
