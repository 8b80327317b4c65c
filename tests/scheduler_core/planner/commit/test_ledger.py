"""What counts, and when a proposal may be committed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gputopo.crd.reservations import LedgerSpec, LedgerStatus, Vouching
from scheduler_core.cache.events import LedgerSeen
from scheduler_core.planner.commit.ledger import (
    Assent,
    Turn,
    assent,
    counting,
    entry_of,
    listing,
    striking,
    taken_over,
    turn,
    without_extenders,
)
from tests.scheduler_core.planner.packing.plans import COMMITTED, PROPOSED, entry, ledger, plan

ONE, OTHER = plan("one", {"a": ("n", 1)}), plan("other", {"b": ("n", 2)})


@pytest.mark.parametrize(
    ("found", "first"),
    [
        pytest.param(None, Turn.CREATE, id="there is no ledger"),
        pytest.param(ledger(), Turn.TAKE_OVER, id="another wrote it last"),
        pytest.param(ledger()._replace(spec=LedgerSpec("me", 3)), Turn.LEAD, id="it is ours"),
    ],
)
def test_what_a_planner_is_to_the_ledger(found: LedgerSeen | None, first: Turn) -> None:
    assert turn(found, "me") is first


def test_taking_over_changes_nothing_that_counts() -> None:
    before = LedgerSpec("other", 6, (entry(ONE),))

    assert taken_over(before, "me", "ns/lease", "rack=a") == LedgerSpec("me", 7, (entry(ONE),), "ns/lease", "rack=a")


def test_an_entry_changes_its_phase_in_its_place() -> None:
    before = LedgerSpec("me", 1, (entry(ONE, PROPOSED), entry(OTHER, PROPOSED)))

    after = listing(before, [entry_of(ONE, COMMITTED)])

    assert after == LedgerSpec("me", 1, (entry(ONE, COMMITTED), entry(OTHER, PROPOSED)))


def test_entries_come_and_go() -> None:
    empty = LedgerSpec("me", 1)
    both = listing(empty, [entry(ONE), entry(OTHER)])

    assert both.entries == (entry(ONE), entry(OTHER))
    assert striking(both, {ONE.key}).entries == (entry(OTHER),)


@pytest.mark.parametrize(
    ("there", "counts"),
    [
        pytest.param({ONE.key: ONE}, [ONE.key], id="it is there"),
        pytest.param({}, [], id="it is not"),
        pytest.param({ONE.key: ONE._replace(hash="0" * 64)}, [], id="it is another plan by now"),
    ],
)
def test_an_entry_counts_with_its_very_plan(there: Mapping[str, object], counts: list[str]) -> None:
    found = counting(LedgerSpec("me", 1, (entry(ONE),)), there)  # type: ignore[arg-type]

    assert list(found) == counts


CLEAR, LATE, AGAINST = Vouching("p", 5), Vouching("p", 4), Vouching("p", 5, (ONE.key,))


@pytest.mark.parametrize(
    ("extenders", "said"),
    [
        pytest.param({"x": CLEAR}, Assent.CLEAR, id="the only one vouches"),
        pytest.param({"x": CLEAR, "y": CLEAR}, Assent.CLEAR, id="all vouch"),
        pytest.param({"x": CLEAR, "y": LATE}, Assent.AWAITED, id="one has not taken it in"),
        pytest.param({"x": CLEAR, "y": AGAINST}, Assent.BLOCKED, id="one let in what it conflicts with"),
        pytest.param({"x": LATE, "y": AGAINST}, Assent.BLOCKED, id="a no counts before a silence does"),
        pytest.param({}, Assent.AWAITED, id="nobody is registered"),
    ],
)
def test_every_extender_that_is_listed_must_vouch(extenders: Mapping[str, Vouching], said: Assent) -> None:
    assert assent(ONE.key, 5, extenders) is said


def test_registrations_go_by_name() -> None:
    assert without_extenders({"x": CLEAR, "y": LATE}, {"y"}) == LedgerStatus({"x": CLEAR})
