"""What the planner watches: pods, as what they hold and as members of gangs; nodes with their rules; sizes of gangs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from scheduler_core.gangs.member import Member
from scheduler_core.pods import Pod
from scheduler_core.request import PodRequest, Refused, read_request
from scheduler_core.sightings import Batch, PodSeen
from scheduler_core.watch import Sources


class Candidate(NamedTuple):
    """A pod, as what holds GPUs and as a member. Its key is its UID."""

    key: str
    seen: PodSeen | None  # None: it holds and wants no GPU, or has ended
    member: Member | None  # None: it belongs to no gang and no gate of ours holds it


def planner_sources(read: Callable[[Pod], PodRequest | Refused] = read_request) -> Sources:
    """What the planner watches: ``NodeSeen`` with rules, ``Candidate``, ``GpusSeen``, and the ``Declared`` kinds."""
    raise NotImplementedError


class Split(NamedTuple):
    """What each of those who keep something of pods takes."""

    pods: Batch[PodSeen]  # Knowledge
    members: Batch[Member]  # Roster


def split(batch: Batch[Candidate]) -> Split:
    """What ``Knowledge`` takes, and what the roster does."""
    raise NotImplementedError
