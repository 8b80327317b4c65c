"""The changes that cause an Event, and its text."""

from __future__ import annotations

import msgspec
import pytest

from agent.daemon.events import events_between
from agent.publish import NodeEvent
from gputopo.model import Degradation, Gpu, Health, NodeTopology
from tests.machines import hgx_h100

WELL = hgx_h100()
UUIDS = [gpu.uuid for gpu in WELL.gpus]


def degraded(*found: Degradation, lost: int | None = None) -> NodeTopology:
    gpus = tuple(msgspec.structs.replace(gpu, health=Health.LOST) if gpu.index == lost else gpu for gpu in WELL.gpus)
    return msgspec.structs.replace(WELL, gpus=gpus, degraded=found)


LINK = Degradation("gpu3.nvlink", "17 of 18 NVLinks active")
PAIR = Degradation("gpu0-gpu3", "3 of 4 NVLinks active")
LOST = Degradation("gpu2", "lost: the driver lists it and cannot talk to it")
GONE = Degradation("GPU-x", "gone")


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        pytest.param(WELL, WELL, (), id="nothing changed"),
        pytest.param(None, WELL, (), id="a first publication of a machine that is well"),
        pytest.param(
            None,
            degraded(LINK),
            (NodeEvent("GpuTopologyDegraded", f"{UUIDS[3]}.nvlink: 17 of 18 NVLinks active", True),),
            id="a first publication of one that is not",
        ),
        pytest.param(
            WELL,
            degraded(PAIR),
            (NodeEvent("GpuTopologyDegraded", f"{UUIDS[0]} - {UUIDS[3]}: 3 of 4 NVLinks active", True),),
            id="a link between two",
        ),
        pytest.param(
            WELL,
            degraded(LOST, lost=2),
            (NodeEvent("GpuLost", f"{UUIDS[2]} is lost: {LOST.why}", True),),
            id="a lost GPU is reported once",
        ),
        pytest.param(
            WELL,
            degraded(lost=2),
            (NodeEvent("GpuLost", f"{UUIDS[2]} is lost: the driver does not answer for it", True),),
        ),
        pytest.param(
            WELL,
            degraded(GONE),
            (NodeEvent("GpuTopologyDegraded", "GPU-x: gone", True),),
            id="a GPU that is on no list",
        ),
        pytest.param(
            WELL,
            degraded(LINK, GONE),
            (NodeEvent("GpuTopologyDegraded", f"{UUIDS[3]}.nvlink: 17 of 18 NVLinks active; GPU-x: gone", True),),
            id="much at once is one Event",
        ),
        pytest.param(
            degraded(LINK, PAIR),
            degraded(PAIR),
            (NodeEvent("GpuTopologyRecovered", f"{UUIDS[3]}.nvlink has recovered", False),),
            id="one of two recovers",
        ),
        pytest.param(
            degraded(LOST, lost=2),
            WELL,
            (NodeEvent("GpuTopologyRecovered", f"{UUIDS[2]} has recovered", False),),
            id="a lost GPU is back",
        ),
        pytest.param(
            degraded(LINK),
            degraded(Degradation("gpu3.nvlink", "16 of 18 NVLinks active")),
            (),
            id="what is known to be degraded gets worse",
        ),
    ],
)
def test_events(before: NodeTopology | None, after: NodeTopology, events: tuple[NodeEvent, ...]) -> None:
    assert events_between(before, after) == events


def test_gpus_without_uuid_are_named_by_bus_id_or_index() -> None:
    gpus = (Gpu(index=0, bus_id="0000:07:00.0", health=Health.LOST), Gpu(index=1, health=Health.LOST))

    assert [event.message for event in events_between(None, NodeTopology(gpus=gpus))] == [
        "0000:07:00.0 is lost: the driver does not answer for it; gpu1 is lost: the driver does not answer for it"
    ]


def test_unknown_gpu_names_are_kept() -> None:
    strange = degraded(Degradation("gpu9.pcie", "x8 of x16"))

    assert [event.message for event in events_between(WELL, strange)] == ["gpu9.pcie: x8 of x16"]
