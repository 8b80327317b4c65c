"""What counts, and when a proposal may be committed."""

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
        pytest.param(ledger(), LedgerRole.TAKE_OVER, id="another wrote it last"),
        pytest.param(ledger()._replace(spec=LedgerSpec("me", 3)), LedgerRole.LEAD, id="it is ours"),
    ],
)
def test_what_a_planner_is_to_the_ledger(found: LedgerUpdate | None, first: LedgerRole) -> None:
    assert ledger_role(found, "me") is first


def test_taking_over_changes_nothing_that_counts() -> None:
    before = LedgerSpec("other", 6, (entry(ONE),))

    assert take_over_spec(before, "me", "ns/lease", "rack=a") == LedgerSpec(
        "me", 7, (entry(ONE),), "ns/lease", "rack=a"
    )


def test_an_entry_changes_its_phase_in_its_place() -> None:
    before = LedgerSpec("me", 1, (entry(ONE, PROPOSED), entry(OTHER, PROPOSED)))

    after = with_entries(before, [entry_of(ONE, COMMITTED)])

    assert after == LedgerSpec("me", 1, (entry(ONE, COMMITTED), entry(OTHER, PROPOSED)))


def test_entries_come_and_go() -> None:
    empty = LedgerSpec("me", 1)
    both = with_entries(empty, [entry(ONE), entry(OTHER)])

    assert both.entries == (entry(ONE), entry(OTHER))
    assert without_entries(both, {ONE.key}).entries == (entry(OTHER),)


@pytest.mark.parametrize(
    ("there", "counts"),
    [
        pytest.param({ONE.key: ONE}, [ONE.key], id="it is there"),
        pytest.param({}, [], id="it is not"),
        pytest.param({ONE.key: ONE._replace(hash="0" * 64)}, [], id="it is another plan by now"),
    ],
)
def test_an_entry_counts_with_its_very_plan(there: Mapping[str, object], counts: list[str]) -> None:
    found = active_entries(LedgerSpec("me", 1, (entry(ONE),)), there)  # type: ignore[arg-type]

    assert list(found) == counts


CLEAR, LATE, AGAINST = ExtenderAck("p", 5), ExtenderAck("p", 4), ExtenderAck("p", 5, (ONE.key,))


@pytest.mark.parametrize(
    ("extenders", "said"),
    [
        pytest.param({"x": CLEAR}, Acknowledgement.CLEAR, id="the only one vouches"),
        pytest.param({"x": CLEAR, "y": CLEAR}, Acknowledgement.CLEAR, id="all vouch"),
        pytest.param({"x": CLEAR, "y": LATE}, Acknowledgement.AWAITED, id="one has not taken it in"),
        pytest.param({"x": CLEAR, "y": AGAINST}, Acknowledgement.BLOCKED, id="one let in what it conflicts with"),
        pytest.param({"x": LATE, "y": AGAINST}, Acknowledgement.BLOCKED, id="a no counts before a silence does"),
        pytest.param({}, Acknowledgement.AWAITED, id="nobody is registered"),
    ],
)
def test_every_extender_that_is_listed_must_vouch(extenders: Mapping[str, ExtenderAck], said: Acknowledgement) -> None:
    assert acknowledgement_of(ONE.key, 5, extenders) is said


def test_registrations_go_by_name() -> None:
    assert without_extenders({"x": CLEAR, "y": LATE}, {"y"}) == LedgerStatus({"x": CLEAR})
