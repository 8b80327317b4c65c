"""Decide whether the NodeGpus of a node is stale: whether it confirms the link graph on the Node, and when. Pure.

While a NodeGpus is stale, the link graph is unknown (``node_state``): required shapes are rejected, and the policy may
reject or avoid the node (``evaluation.filters``, ``evaluation.score_hardware``).

``StalenessTimer`` knows when time alone changes the answer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import Enum
from math import inf

from gputopo.crd.nodegpus import NodeGpus
from gputopo.timestamps import parse_timestamp
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.policy.policy import Policy

MAX_CLOCK_AHEAD_S = 600.0  # a timestamp further ahead of our clock says nothing about the age of the observation
CONFIRMATION_GRACE_S = 30.0  # Node and ``NodeGpus`` are written within seconds of each other, but watched separately


class Staleness(Enum):
    """Why a link graph is not trusted: nothing confirms that the machine still matches the annotation."""

    SILENT = "silent"  # the last confirmation is too old
    UNCONFIRMED = "unconfirmed"  # there is no ``NodeGpus``
    HASH_MISMATCH = "other"  # its ``NodeGpus`` describes another graph than the Node
    CLOCK_AHEAD = "ahead"  # the time of the confirmation is far in the future


def is_stale(record: NodeRecord, now: float, policy: Policy) -> bool:
    """Return whether the link graph is not confirmed now. Facts from labels alone never become stale."""
    return staleness(record, now, policy) is not None


def staleness(record: NodeRecord, now: float, policy: Policy) -> Staleness | None:
    """Return why the link graph is not trusted; None: it is trusted, or the node has none."""
    if not record.machine.described:
        return None
    if record.gpus is None:
        return Staleness.UNCONFIRMED
    at = observed_at(record.gpus)
    if now > at + policy.stale_after_s:
        return Staleness.SILENT
    if at > now + MAX_CLOCK_AHEAD_S:
        return Staleness.CLOCK_AHEAD
    return None if hashes_match(record) else Staleness.HASH_MISMATCH


def hashes_match(record: NodeRecord) -> bool:
    """Return whether Node and ``NodeGpus`` describe the same graph, or the Node describes none."""
    facts, gpus = record.machine, record.gpus
    return not facts.described or (gpus is not None and gpus.content_hash == facts.topology_hash)


def mismatch_since(record: NodeRecord, before: NodeRecord, now: float) -> float | None:
    """Return since when the hashes of Node and ``NodeGpus`` differ; None: they match. ``before``: the former record."""
    if hashes_match(record):
        return None
    same_topology = before.machine.topology_hash == record.machine.topology_hash
    since = before.hash_mismatch_since
    return since if same_topology and since is not None else now


def staleness_changes(record: NodeRecord, policy: Policy) -> Iterator[float]:
    """Yield the times after which the node becomes stale or fresh without any event, in seconds since 1970."""
    if record.gpus is not None:
        at = observed_at(record.gpus)
        yield at + policy.stale_after_s
        yield at - MAX_CLOCK_AHEAD_S
    if record.hash_mismatch_since is not None:
        yield record.hash_mismatch_since + CONFIRMATION_GRACE_S


def observed_at(gpus: NodeGpus) -> float:
    """Return when the agent observed the GPUs, in seconds since 1970; a timestamp that cannot be parsed is long ago."""
    at = parse_timestamp(gpus.observed_at)
    return -inf if at is None else at


class StalenessTimer:
    """The times at which nodes become stale or fresh without any event. One time is kept for each node: the next."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, str]] = []  # a heap of times and nodes
        self._next: dict[str, float] = {}  # by node; an entry of the heap with another time no longer counts

    def __len__(self) -> int:
        return len(self._changes)

    def schedule(self, record: NodeRecord, policy: Policy, now: float) -> None:
        """Add the next change of a node. An earlier one that no longer applies stays, and costs one more evaluation."""
        at = min((each for each in staleness_changes(record, policy) if each >= now), default=inf)
        if at < self._next.get(record.name, inf):
            self._next[record.name] = at
            heapq.heappush(self._changes, (at, record.name))

    def pop_due(self, now: float) -> set[str]:
        """Remove the changes before now, and return their nodes: schedule these again."""
        due = set[str]()
        while self._changes and self._changes[0][0] < now:
            at, name = heapq.heappop(self._changes)
            if self._next.get(name) == at:
                del self._next[name]
                due.add(name)
        return due
