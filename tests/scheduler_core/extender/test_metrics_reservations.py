"""The metrics of reservations at a scrape."""

from __future__ import annotations

from gputopo.crd.reservations import ExtenderAck
from scheduler_core.cache.events import Batch, LedgerUpdate
from scheduler_core.extender.metrics import reservation_samples
from tests.machines import MACHINES
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan

H100 = MACHINES["hgx_h100"]()
GANG = plan("g", {"m0": ("a", 2), "m1": ("a", 1)})


def test_reserved_gpus_of_absent_members() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100}, pod_update("m1", 1, on="a"))
    stage.write_ledger(
        (GANG, COMMITTED), (plan("r", held={"a": 3, "b": 8}), HELD), (plan("h", {"x": ("a", 1)}), PROPOSED)
    )

    assert list(reservation_samples(stage.cache.reservations, None)) == [
        ("gputopo_reserved_gpus", ("held",), 11),
        ("gputopo_reserved_gpus", ("proposed",), 1),
        ("gputopo_reserved_gpus", ("committed",), 2),
    ]


def test_own_entry_in_each_ledger() -> None:
    stage = FakeScheduler.synced_with_reservations({"a": H100})
    proposed = (entry(GANG, PROPOSED), entry(plan("h", {"x": ("a", 1)}), PROPOSED))
    ledgers = (
        ledger(*proposed, generation=9, extenders={"me": ExtenderAck("", 7, ("uid-h", "uid-gone"))}),
        ledger(generation=5, name="quiet", extenders={"me": ExtenderAck("", 3, ("uid-gone",))}),
        ledger(entry(GANG, PROPOSED), generation=2, name="strange"),
    )
    stage.cache.apply_batch(Batch(LedgerUpdate, ledgers), stage.now)

    assert list(reservation_samples(stage.cache.reservations, "me"))[3:] == [
        ("gputopo_ledger_registered", ("gpus",), True),
        ("gputopo_ledger_ack_lag", ("gpus",), 2),
        ("gputopo_proposals_blocked", ("gpus",), 1),
        ("gputopo_ledger_registered", ("quiet",), True),
        ("gputopo_ledger_ack_lag", ("quiet",), 0),
        ("gputopo_proposals_blocked", ("quiet",), 0),
        ("gputopo_ledger_registered", ("strange",), False),
        ("gputopo_ledger_ack_lag", ("strange",), 2),
        ("gputopo_proposals_blocked", ("strange",), 0),
    ]
