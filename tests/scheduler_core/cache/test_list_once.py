"""The cluster, read once, is what the watch would have made of it. The calls: ``tests/gputopo/cli/test_why.py``."""

from __future__ import annotations

from scheduler_core.cache.events import GpusSeen, NodeSeen, PodSeen
from scheduler_core.cache.list_once import records
from scheduler_core.cache.node import read_node
from scheduler_core.cache.node_record import NodeRecord
from tests.machines import a100_bridged
from tests.scheduler_core.builders import node, occupant, word

MACHINE = read_node(node(a100_bridged()))
WORD = word(a100_bridged(), {"b": [0]})


def test_records_are_made_of_all_that_was_seen() -> None:
    pods = [
        PodSeen("uid-b", occupant("b", 1), "n1"),
        PodSeen("uid-a", occupant("a", 2), "n1"),
        PodSeen("uid-c", occupant("c", 1), None),
        PodSeen("uid-d", occupant("d", 1), "gone"),
    ]

    found = records([NodeSeen("n1", MACHINE), NodeSeen("n2", MACHINE)], pods, [GpusSeen("n1", WORD)])

    assert found == [
        NodeRecord("n1", MACHINE, WORD, (occupant("a", 2), occupant("b", 1))),
        NodeRecord("n2", MACHINE),
    ]
