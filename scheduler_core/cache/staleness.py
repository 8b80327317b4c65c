"""Whether the graph of a node is to be gone by: who confirms it, and when that was. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import inf

from gputopo.crd.nodegpus import NodeGpus
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.policy.policy import Policy

MAX_CLOCK_AHEAD_S = 600.0  # a clock further ahead of ours than that says nothing about the age of what it stamps
CONFIRMATION_GRACE_S = 30.0  # Node and ``NodeGpus`` are written within seconds of each other, and come over two watches


class Staleness(Enum):
    """Why a graph is not gone by: nobody confirms now that the machine is still as the annotation says."""

    SILENT = "silent"  # confirmed too long ago
    UNCONFIRMED = "unconfirmed"  # there is no ``NodeGpus``
    OTHER = "other"  # its ``NodeGpus`` speaks of another graph than the Node carries
    AHEAD = "ahead"  # confirmed at a time that is far from having come


def is_stale(record: NodeRecord, now: float, policy: Policy) -> bool:
    """Whether nobody vouches for the graph now. What labels alone tell, whoever wrote them, does not age."""
    return staleness(record, now, policy) is not None


def staleness(record: NodeRecord, now: float, policy: Policy) -> Staleness | None:
    """Why the graph is not gone by; None: it is, or there is none."""
    if not record.machine.described:
        return None
    if record.gpus is None:
        return Staleness.UNCONFIRMED
    if now > fresh_until(record.gpus, policy):
        return Staleness.SILENT
    if observed_at(record.gpus) > now + MAX_CLOCK_AHEAD_S:
        return Staleness.AHEAD
    return None if hashes_match(record) else Staleness.OTHER


def hashes_match(record: NodeRecord) -> bool:
    """Whether Node and ``NodeGpus`` speak of one graph; where the Node carries none, there is nothing to confirm."""
    machine, gpus = record.machine, record.gpus
    return not machine.described or (gpus is not None and gpus.content_hash == machine.topology_hash)


def staleness_changes(record: NodeRecord, policy: Policy) -> Iterable[float]:
    """After which moments time alone makes the node stale or fresh, in seconds since 1970."""
    if record.gpus is not None:
        yield fresh_until(record.gpus, policy)
        yield observed_at(record.gpus) - MAX_CLOCK_AHEAD_S
    if record.parted is not None:
        yield record.parted + CONFIRMATION_GRACE_S


def fresh_until(gpus: NodeGpus, policy: Policy) -> float:
    """When the observation becomes too old, in seconds since 1970."""
    return observed_at(gpus) + policy.stale_after_s


def observed_at(gpus: NodeGpus) -> float:
    """Return when the agent observed the GPUs, in seconds since 1970; a timestamp that cannot be parsed is long ago."""
    at = parse_timestamp(gpus.observed_at)
    return -inf if at is None else at
