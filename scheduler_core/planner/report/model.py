"""The explanation of a gang, as values. Pure.

Names of pods are without their namespace, which is the gang's; elsewhere "namespace/name".
"""

from __future__ import annotations

import msgspec

from scheduler_core.explain.model import ReservedGpus
from scheduler_core.planner.report.listing import GangSummary


class MembersInState(msgspec.Struct, frozen=True, rename="camel"):
    """Members in the same state."""

    state: str  # "held by the gate gputopo.io/gang", "bound", "running", ...
    members: tuple[str, ...]  # by rank


class NodeMembers(msgspec.Struct, frozen=True, rename="camel"):
    """A node and its members of the gang."""

    node: str | None  # None: members without GPUs, whose nodes kube-scheduler chooses
    members: tuple[str, ...]
    ranks: tuple[int | None, ...]
    gpus: int


class GangPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A placement of the whole gang."""

    of: str  # "there": where its members are; "plan": as its reservation says; "now": where it would go
    stops: tuple[NodeMembers, ...]
    domain: str | None
    gbps: float | None  # inside the nodes
    network_gbps: float | None = None  # between the nodes: the slowest node; None: unknown, or one node
    network_source: str | None = None  # where it comes from, or why it is unknown; None: one node


class MissingReason(msgspec.Struct, frozen=True, rename="camel"):
    """Why members have no placement."""

    reason: str
    members: tuple[str, ...]


class NoPlacement(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why the gang does not fit now."""

    reason: str
    best: int  # members that would fit at once
    lacks: tuple[MissingReason, ...]


class GangEviction(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """All pods of some nodes, after whose end the gang would fit."""

    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    gpus: int
    at: str | None  # RFC 3339, by their deadlines; None: unknown


class GangExplanation(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Why a gang is where it is, or fits nowhere."""

    gang: GangSummary
    unplanned: str | None = None  # why no planner plans it
    required: str | None = None  # topology
    preferred: str | None = None
    timeout_seconds: float
    standing: tuple[MembersInState, ...] = ()
    absent_ranks: tuple[int, ...] = ()  # of missing members, if all others have ranks
    before: tuple[str, ...] = ()  # gangs before it in the queue, and single pods: "pod namespace/name"
    places: tuple[GangPlacement, ...] = ()
    unfit: NoPlacement | None = None
    never: NoPlacement | None = None  # why it does not fit these nodes even if all other pods end; None: it may fit
    kept: tuple[ReservedGpus, ...] = ()  # the gang would fit without any one of these reservations of others
    kept_together: bool = False  # it would fit only without all of them
    relief: GangEviction | None = None
    notes: tuple[str, ...] = ()
