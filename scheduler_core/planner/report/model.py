"""What there is to tell about a gang, as values. ``text`` and ``document`` print them; nothing here decides. Pure.

Names of pods are without their namespace, which is the gang's; elsewhere "namespace/name".
"""

from __future__ import annotations

import msgspec

from scheduler_core.planner.report.listing import GangSummary


class MembersInState(msgspec.Struct, frozen=True, rename="camel"):
    """Members of which the same can be said."""

    state: str  # "held by the gate gputopo.io/gang", "bound", "running", ...
    members: tuple[str, ...]  # by rank


class NodeMembers(msgspec.Struct, frozen=True, rename="camel"):
    """A node, and who goes there."""

    node: str | None  # None: members without GPUs, of which kube-scheduler chooses the nodes
    members: tuple[str, ...]
    ranks: tuple[int | None, ...]
    gpus: int


class GangPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Where all go."""

    of: str  # "there": where its members are; "plan": as its reservation says; "now": where it would go
    stops: tuple[NodeMembers, ...]
    domain: str | None
    gbps: float | None


class MissingReason(msgspec.Struct, frozen=True, rename="camel"):
    """What members without a place are missing."""

    reason: str
    members: tuple[str, ...]


class NoPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why it has no place now."""

    reason: str
    best: int  # members that would fit at once
    lacks: tuple[MissingReason, ...]


class BlockingReservation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A reservation of others without which it would fit, alone or with others."""

    gang: str | None  # "namespace/name"; None: of pods that are planned one by one, or one of them
    reservation: str  # "namespace/name"
    phase: str
    until: str | None  # RFC 3339
    gpus: int
    nodes: tuple[str, ...]


class GangEviction(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Pods whose end would make it fit: all that are on those nodes."""

    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    gpus: int
    at: str | None  # RFC 3339, by their deadlines; None: nobody can say


class GangExplanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a gang is where it is, or is nowhere."""

    gang: GangSummary
    unplanned: str | None = None  # why nobody plans it: no planner works
    required: str | None = None  # topology
    preferred: str | None = None
    timeout_seconds: float
    standing: tuple[MembersInState, ...] = ()
    absent_ranks: tuple[int, ...] = ()  # of members that have not come, where ranks tell
    before: tuple[str, ...] = ()  # gangs of the queue whose turn is first, and single pods: "pod namespace/name"
    places: tuple[GangPlacement, ...] = ()
    unfit: NoPlacement | None = None
    kept: tuple[BlockingReservation, ...] = ()  # any one of them is in the way
    kept_together: bool = False  # only all of them are
    relief: GangEviction | None = None
    notes: tuple[str, ...] = ()
