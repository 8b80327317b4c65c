"""What a node is like for members that may come: all that decides what follows once they are there. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler_core.allocation.gpu_sets import OneOf
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import NodeState, word_of

_ROUNDED_UP = 999  # an ask for CPU is in whole cores: so much less it may be


class Cpu(NamedTuple):
    """Of a node. Pods without GPUs are not known, so there may be less."""

    milli: int | None
    asked: int = 0
    asking: int = 0  # pods

    def holds(self, asks: Sequence[int]) -> bool:
        """Whether there is enough for those too, for all that is known. Not enough is said only where it is sure."""
        if self.milli is None:
            return True
        others = [each for each in asks if each]
        return self.asked + sum(others) - _ROUNDED_UP * (self.asking + len(others)) <= self.milli


class Ground(NamedTuple):
    """All of a node that decides what follows once members are on it."""

    state: NodeState
    released: tuple[int, ...] | None  # what pods let go that the kubelet still names; None: nobody asks the kubelet
    cpu: Cpu
    name: str = ""  # of a node that is like no other


def ground_of(record: NodeRecord, state: NodeState) -> Ground:
    """What the node is like. Two that are alike stay alike whatever members come."""
    own = record.name if state.obeys or state.ledger is not None else ""
    return Ground(state, _released(record, state), cpu_of(record), own)


def cpu_of(record: NodeRecord) -> Cpu:
    """What is known of the node's CPU."""
    asks = [each.profile.ask.cpu_milli for each in record.pods if each.profile.ask.cpu_milli]
    return Cpu(record.machine.cpu_milli, sum(asks), len(asks))


def _released(record: NodeRecord, state: NodeState) -> tuple[int, ...] | None:
    """Told only where the state does not tell it."""
    if record.gpus is None or record.gpus.allocations is None:
        return None
    if state.unsettled is not None or not isinstance(state.free, OneOf):
        return ()
    if len(record.gpus.allocations) == sum(pod.profile.gpus for pod in record.pods):  # each is a living pod's
        return ()
    word = word_of(record)
    return None if word is None else word.unsettled.releases
