"""What is known of the nodes, as immutable values: from what the cluster says to what filters and scores look at. Pure.

``NodeRecord`` is what was observed (and all that a decision can be recomputed from); ``NodeState`` is what follows from
it for placement. Nodes in the same state share one ``NodeState``, so what is worked out for one holds for all. A
``NodeTable`` is all nodes at one moment: whoever watches the cluster makes the next one and swaps the reference.
"""

from scheduler_core.nodes.machine import Machine, Node, read_node
from scheduler_core.nodes.record import NodeRecord, held_on, is_held, read_occupant, with_gpus, with_pod, without_pod
from scheduler_core.nodes.staleness import (
    AHEAD_S,
    AWAITED_S,
    Staleness,
    confirms,
    fresh_until,
    is_stale,
    observed,
    staleness,
    turning,
)
from scheduler_core.nodes.state import NodeState, offers_all, state_of, whole_gpus, with_kin, word_of
from scheduler_core.nodes.table import (
    NodeTable,
    aged,
    state_if,
    table_of,
    with_pods,
    with_records,
    without_nodes,
    without_seat,
)

__all__ = [
    "AHEAD_S",
    "AWAITED_S",
    "Machine",
    "Node",
    "NodeRecord",
    "NodeState",
    "NodeTable",
    "Staleness",
    "aged",
    "confirms",
    "fresh_until",
    "held_on",
    "is_held",
    "is_stale",
    "observed",
    "offers_all",
    "read_node",
    "read_occupant",
    "staleness",
    "state_if",
    "state_of",
    "table_of",
    "turning",
    "whole_gpus",
    "with_gpus",
    "with_kin",
    "with_pod",
    "with_pods",
    "with_records",
    "without_nodes",
    "without_pod",
    "without_seat",
    "word_of",
]
