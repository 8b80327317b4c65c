"""Explanations of every kind, for tests of what is printed."""

from __future__ import annotations

import msgspec

from scheduler_core.explain import explain, explain_malformed
from tests.scheduler_core.builders import NOW, occupant, record, request
from tests.scheduler_core.explain.crashing_machine import CRASHING
from tests.scheduler_core.explain.fleets import ACROSS, ALIKE, DGX2, PAIRS, POLICY, QUADS, explained, fleet

BUSY = record(
    "node-7", QUADS, held={"train-3": [2, 3], "a": [6], "b": [7]},
    pods=[occupant("train-3", 2), occupant("a", 1), occupant("b", 1)],
)  # fmt: skip


NEW = request(4, "train-4", island="required")


EXPLANATIONS = {
    "fits": explained(
        request(4)._replace(scheduler="gputopo-scheduler"),
        record("whole", QUADS, held={}),
        record("pairs", PAIRS, held={}),
        record("labels", labels={"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}, allocatable={"nvidia.com/gpu": 4}),
        BUSY,
        record("cpu"),
    ),
    "nowhere": msgspec.structs.replace(
        explained(NEW, BUSY, *(msgspec.structs.replace(BUSY, name=f"other-{at}") for at in range(5))),
        scheduler_said="0/6 nodes are available: 6 no NVLink island with enough free GPUs (see: gputopo why pod).",
    ),
    "in-the-way": explained(request(2, numa="required"), record("node-1", ACROSS, held={})),
    "too-large": explained(request(9), record("n", QUADS, held={})),
    "not-listed": explained(request(6), record("n", ALIKE, held={})),
    "bound-unsettled": explained(
        request(2),
        record("n", PAIRS, held={"new": [2, 3]}, pods=[occupant("new", 2), occupant("late", 2)]),
        bound="n",
    ),
    "bound": explained(
        request(2, numa="required"),
        record("n", PAIRS, held={"new": [1, 2]}, pods=[occupant("new", 2)]),
        bound="n",
    ),
    "bound-well": explained(
        request(2),
        record("n", PAIRS, held={"new": [2, 3]}, pods=[occupant("new", 2)]),
        bound="n",
    ),
    "bound-unknown": explained(request(2), record("n", PAIRS, pods=[occupant("new", 2)]), bound="n"),
    "may-crash": explained(request(3), record("ties", CRASHING, held={})),
    "many-outcomes": explained(request(2), record("wide", DGX2, held={})),
    "malformed": explain_malformed(
        "team", "p", "the pod's request is malformed: gputopo.io/island: 'yes' is not required"
    ),
    "no-node": explain(request(1), fleet(record("cpu")), None, POLICY, NOW),
}
