"""The cluster, read once, is what the watch would have made of it. The calls: ``tests/gputopo/cli/test_why.py``."""

from __future__ import annotations

from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.list_once import node_records
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from tests.machines import a100_bridged
from tests.scheduler_core.builders import node, occupant, word

MACHINE = parse_node(node(a100_bridged()))
WORD = word(a100_bridged(), {"b": [0]})


def test_records_are_made_of_all_that_was_seen() -> None:
    pods = [
        PodUpdate("uid-b", occupant("b", 1), "n1"),
        PodUpdate("uid-a", occupant("a", 2), "n1"),
        PodUpdate("uid-c", occupant("c", 1), None),
        PodUpdate("uid-d", occupant("d", 1), "gone"),
    ]

    found = node_records([NodeUpdate("n1", MACHINE), NodeUpdate("n2", MACHINE)], pods, [NodeGpusUpdate("n1", WORD)])

    assert found == [
        NodeRecord("n1", MACHINE, WORD, (occupant("a", 2), occupant("b", 1))),
        NodeRecord("n2", MACHINE),
    ]
