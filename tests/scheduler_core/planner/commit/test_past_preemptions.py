"""The records of past preemptions are bounded by number and age."""

from __future__ import annotations

from gputopo.crd.reservations import LedgerSpec, PastPreemption
from gputopo.timestamps import format_timestamp
from scheduler_core.planner.commit.observations import Observations
from scheduler_core.planner.commit.past_preemptions import MAX_AGE_S, MAX_ALL_UNITS, MAX_RECORDS, past_preemptions
from scheduler_core.planner.commit.state import ReconcileInput

WALL = 1_790_000_000.0
INPUTS = ReconcileInput(
    identity="one",
    ledger=None,
    reservations={},
    member=lambda _: None,
    gang=lambda _: None,
    nodes=frozenset(),
    no_longer_fitting=frozenset(),
    unwanted_holds=frozenset(),
    estimates={},
    observations=Observations(),
    now=0.0,
    wall_time=WALL,
)


def kept(*ages: float, units: int = 1) -> list[str]:
    """Return the holds that stay recorded, of preemptions of these ages in seconds."""
    names = tuple(f"team/{each}" for each in range(units))
    records = (PastPreemption(f"h{at}", format_timestamp(WALL - age), 1, names) for at, age in enumerate(ages))
    return [each.hold for each in past_preemptions(INPUTS, LedgerSpec(preemptions=tuple(records)), (), ())]


def test_records_of_more_than_a_day_are_dropped() -> None:
    assert kept(MAX_AGE_S + 2, MAX_AGE_S - 2, 0) == ["h1", "h2"]


def test_records_are_kept_for_a_cooldown_of_several_days() -> None:
    """A new leader forgot a cool-down of more than a day."""
    records = (PastPreemption("h0", format_timestamp(WALL - 2 * MAX_AGE_S), 1, ("team/a",)),)

    assert (
        past_preemptions(INPUTS._replace(cooldown_s=3 * MAX_AGE_S), LedgerSpec(preemptions=records), (), ()) == records
    )


def test_more_preemptions_than_records_count_all_the_same() -> None:
    """A new leader forgot all but the last ones, and so evicted more pods than the limit of an hour."""
    made = [PastPreemption(f"h{at}", format_timestamp(WALL - 1_000 + at), 2, (f"team/{at}",)) for at in range(300)]
    made[0] = PastPreemption("old", format_timestamp(WALL - 4_000), 1_000, ("team/old",))

    found = past_preemptions(INPUTS, LedgerSpec(preemptions=tuple(made)), (), ())

    assert len(found) == MAX_RECORDS
    assert sum(each.pods for each in found) == 2 * 299
    assert {unit for each in found for unit in each.units} == {unit for each in made for unit in each.units}


def test_the_oldest_records_are_dropped_first() -> None:
    assert kept(*[0.0] * (MAX_RECORDS + 3)) == [f"h{at}" for at in range(3, MAX_RECORDS + 3)]
    assert kept(*[0.0] * 20, units=MAX_ALL_UNITS // 10) == [f"h{at}" for at in range(10, 20)]
