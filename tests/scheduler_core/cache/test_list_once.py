"""Listing the cluster once gives the same records as watching. The calls: ``tests/gputopo/cli/test_why.py``."""

from __future__ import annotations

from scheduler_core.cache.events import NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.list_once import node_records
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from tests.machines import a100_bridged
from tests.scheduler_core.builders import kubelet_report, node, occupant

MACHINE = parse_node(node(a100_bridged()))
WORD = kubelet_report(a100_bridged(), {"b": [0]})


def test_records_combine_nodes_pods_and_reports() -> None:
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
