"""Plans that somebody deleted while their members were let go: written again, as the pods themselves say them. Pure.

A pod that was ungated is on the way to its node whatever became of the plan, and names that plan (annotation) and its
node (node affinity). Without a plan there is no deadline, and nothing takes such pods back.

A plan that is written again makes its pods count, so only pods are taken into it of which more than their own word says
that a planner ungated them: ``World.coming``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

from gputopo.crd.reservations import ReservationSpec, Seat
from scheduler_core.cache.events import ReservationSeen
from scheduler_core.planner.commit.actions import CreateReservation
from scheduler_core.planner.commit.controllers import replaced
from scheduler_core.planner.commit.state import World
from scheduler_core.planner.gang.conventions import is_alone
from scheduler_core.planner.gang.member import Member


def vanished(world: World) -> Iterator[CreateReservation]:
    """Under the names that their members bear. Single pods that nobody would make again are left to themselves."""
    if not world.coming:
        return
    plans = world.plans
    if plans is None:
        plans = {plan for each in world.reservations.values() for plan in plans_of(each)}
    lost: dict[tuple[str, str, str], dict[str, Member]] = {}
    coming = {each.uid for each in world.coming}
    for each in world.coming:
        name, gang = each.reservation or "", each.wanted.gang
        if (gang.namespace, name) in plans or (is_alone(gang) and ((each.uid, name) in plans or not replaced(each))):
            continue
        key = gang.namespace, name, "" if is_alone(gang) else gang.name
        if key not in lost:
            lost[key] = {one.uid: one for one in _siblings(world, each, coming)}
        lost[key][each.uid] = each
    for (namespace, name, gang_name), members in lost.items():
        yield CreateReservation(namespace, name, _spec(gang_name, members.values()))


def plans_of(reservation: ReservationSeen) -> tuple[tuple[str, str], ...]:
    """Under what its members look for it: namespace and name, or their UID and its name.

    A batch of single pods has those of any namespace. Written again it is one plan for each, of the same name.
    """
    spec, name = reservation.spec, reservation.name
    return ((reservation.namespace, name), *(() if spec.gang else ((seat.uid, name) for seat in spec.seats)))


def _siblings(world: World, member: Member, coming: Container[str]) -> Iterator[Member]:
    """Members that the same plan let go. A pin that is not proved is left out."""
    gang = world.gang(member.wanted.gang)
    of_plan = (each for each in (() if gang is None else gang.placed) if each.reservation == member.reservation)
    return (each for each in of_plan if each.node is not None or each.pin is None or each.uid in coming)


def _spec(gang: str, members: Iterable[Member]) -> ReservationSpec:
    """Where they are or are to go. What a plan knows beside that is lost."""
    seats = [Seat(each.uid, each.name, each.node or each.pin, each.devices, rank=each.wanted.rank) for each in members]
    plan = ReservationSpec(gang, tuple(sorted(seats, key=lambda each: each.name)))
    timeouts = [each.wanted.timeout_s for each in members if each.wanted.timeout_s is not None]
    return msgspec.structs.replace(plan, timeout_s=max(timeouts)) if timeouts else plan
