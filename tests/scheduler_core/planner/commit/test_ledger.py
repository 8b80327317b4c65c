"""Ledger entries that count, and acknowledgement of proposals."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gputopo.crd.reservations import ExtenderAck, LedgerSpec, LedgerStatus
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.planner.commit.ledger import (
    Acknowledgement,
    LedgerRole,
    acknowledgement_of,
    active_entries,
    entry_of,
    ledger_role,
    take_over_spec,
    with_entries,
    without_entries,
    without_extenders,
)
from tests.scheduler_core.planner.packing.plans import COMMITTED, PROPOSED, entry, ledger, plan

ONE, OTHER = plan("one", {"a": ("n", 1)}), plan("other", {"b": ("n", 2)})


@pytest.mark.parametrize(
    ("found", "first"),
    [
        pytest.param(None, LedgerRole.CREATE, id="there is no ledger"),
        pytest.param(ledger(), LedgerRole.TAKE_OVER, id="another planner wrote it last"),
        pytest.param(ledger()._replace(spec=LedgerSpec("me", 3)), LedgerRole.LEAD, id="written by this planner"),
    ],
)
def test_the_role_of_a_planner(found: LedgerUpdate | None, first: LedgerRole) -> None:
    assert ledger_role(found, "me") is first


def test_taking_over_keeps_the_entries() -> None:
    before = LedgerSpec("other", 6, (entry(ONE),))

    assert take_over_spec(before, "me", "ns/lease", "rack=a") == LedgerSpec(
        "me", 7, (entry(ONE),), "ns/lease", "rack=a"
    )


def test_an_entry_changes_its_phase_in_its_place() -> None:
    before = LedgerSpec("me", 1, (entry(ONE, PROPOSED), entry(OTHER, PROPOSED)))

    after = with_entries(before, [entry_of(ONE, COMMITTED)])

    assert after == LedgerSpec("me", 1, (entry(ONE, COMMITTED), entry(OTHER, PROPOSED)))


def test_entries_are_added_and_removed() -> None:
    empty = LedgerSpec("me", 1)
    both = with_entries(empty, [entry(ONE), entry(OTHER)])

    assert both.entries == (entry(ONE), entry(OTHER))
    assert without_entries(both, {ONE.key}).entries == (entry(OTHER),)


@pytest.mark.parametrize(
    ("there", "counts"),
    [
        pytest.param({ONE.key: ONE}, [ONE.key], id="exists"),
        pytest.param({}, [], id="gone"),
        pytest.param({ONE.key: ONE._replace(hash="0" * 64)}, [], id="its plan has changed"),
    ],
)
def test_an_entry_counts_only_with_the_plan_that_it_was_written_for(
    there: Mapping[str, object], counts: list[str]
) -> None:
    found = active_entries(LedgerSpec("me", 1, (entry(ONE),)), there)  # type: ignore[arg-type]

    assert list(found) == counts


CLEAR, LATE, AGAINST = ExtenderAck("p", 5), ExtenderAck("p", 4), ExtenderAck("p", 5, (ONE.key,))


@pytest.mark.parametrize(
    ("extenders", "expected"),
    [
        pytest.param({"x": CLEAR}, Acknowledgement.CLEAR, id="the only one acknowledges"),
        pytest.param({"x": CLEAR, "y": CLEAR}, Acknowledgement.CLEAR, id="all acknowledge"),
        pytest.param({"x": CLEAR, "y": LATE}, Acknowledgement.AWAITED, id="one has not read it yet"),
        pytest.param({"x": CLEAR, "y": AGAINST}, Acknowledgement.BLOCKED, id="one admitted a conflicting pod"),
        pytest.param({"x": LATE, "y": AGAINST}, Acknowledgement.BLOCKED, id="a conflict takes precedence over silence"),
        pytest.param({}, Acknowledgement.AWAITED, id="none is registered"),
    ],
)
def test_every_registered_extender_must_acknowledge(
    extenders: Mapping[str, ExtenderAck], expected: Acknowledgement
) -> None:
    assert acknowledgement_of(ONE.key, 5, extenders) is expected


def test_registrations_are_dropped_by_identity() -> None:
    assert without_extenders({"x": CLEAR, "y": LATE}, {"y"}) == LedgerStatus({"x": CLEAR})
