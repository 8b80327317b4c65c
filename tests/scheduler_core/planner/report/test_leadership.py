"""The notes on the leadership of a planner and on its topology levels."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.kube.leases import LeaseSpec
from gputopo.timestamps import format_timestamp
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.report.leadership import no_planner_reason, planner_levels
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.read import GangSnapshot, PlannerLease
from tests.scheduler_core.builders import NOW, record
from tests.scheduler_core.explain.fleets import QUADS
from tests.scheduler_core.planner.gang.gang_pods import LLM
from tests.scheduler_core.planner.report.clusters import NONE, crew, only, seen, story

OR = "Gated pods wait for a planner, or for gputopo release, which releases them without a placement"


def led(**spec: Any) -> PlannerLease:
    """A Lease that was renewed so many seconds ago."""
    ago = spec.pop("ago", 1.0)
    return PlannerLease(
        "gputopo/gputopo-planner", LeaseSpec("planner-0_1b2c", 15, None, format_timestamp(NOW - ago), 1, **spec)
    )


@pytest.mark.parametrize(
    ("found", "said"),
    [
        pytest.param(seen(led=led()), None, id="it renews its Lease"),
        pytest.param(seen(led=led(ago=45.0)), None, id="clocks may differ"),
        pytest.param(
            seen(led=led(ago=46.0)),
            "no planner leads: planner-0_1b2c last renewed its Lease gputopo/gputopo-planner 46s ago "
            f"({format_timestamp(NOW - 46.0)}). {OR}",
            id="it has ended",
        ),
        pytest.param(
            seen(led=PlannerLease("gputopo/gputopo-planner", LeaseSpec("", 15, None, format_timestamp(NOW - 1.0)))),
            "no planner leads: its Lease gputopo/gputopo-planner has no holder: it was released 1s ago "
            f"({format_timestamp(NOW - 1.0)}). {OR}",
            id="it was stopped",
        ),
        pytest.param(
            seen(led=PlannerLease("gputopo/gputopo-planner", None)),
            f"no planner leads: its Lease gputopo/gputopo-planner does not exist. {OR}",
            id="it was removed",
        ),
        pytest.param(
            seen(ledger=NONE),
            "no planner has led here: there is no PlacementLedger. A planner that has just been installed needs up to "
            "a minute: it creates the ledger, and its extenders acknowledge it first. Without a planner, install it as "
            "gputopo was installed: helm upgrade gputopo daemonset/chart -n gputopo --reset-then-reuse-values "
            "--set planner.enabled=true, or kubectl apply -k daemonset/scheduler/planner. Or use gputopo release, "
            "which releases pods without a placement",
            id="there never was one",
        ),
        pytest.param(
            seen(ledger=NONE)._replace(from_file=True),
            "the file has no PlacementLedger, so it is not known whether a planner leads",
            id="a file that may lack it",
        ),
        pytest.param(seen(), None, id="the Lease may not be read, or is not named"),
        pytest.param(seen(ledger=NONE, unread=("placementledgers.gputopo.io",)), None, id="ledgers may not be read"),
        pytest.param(seen(led=PlannerLease("a/b", LeaseSpec("x", 15, None, "soon"))), None, id="a time that is none"),
        pytest.param(
            seen(led=PlannerLease("a/b", LeaseSpec("x", None, None, format_timestamp(0.0)))),
            None,
            id="a Lease without duration",
        ),
    ],
)
def test_whether_a_planner_leads(found: GangSnapshot, said: str | None) -> None:
    assert no_planner_reason(found, NOW) == said


@pytest.mark.parametrize(
    ("found", "levels"),
    [
        pytest.param(seen(), LEVELS, id="the usual ones"),
        pytest.param(seen(levels="rack=a|b,zone=c"), {"rack": ("a", "b"), "zone": ("c",)}, id="the planner's own"),
        pytest.param(seen(levels=""), None, id="it does not say"),
        pytest.param(seen(levels="hall=a"), None, id="it says what only a later one understands"),
        pytest.param(seen(ledger=NONE), None, id="there is no ledger"),
    ],
)
def test_which_labels_make_levels(found: GangSnapshot, levels: object) -> None:
    assert planner_levels(found) == levels


def _since(seconds: float) -> PlannerLease:
    times = format_timestamp(NOW - seconds), format_timestamp(NOW - 1.0)
    return PlannerLease("gputopo/gputopo-planner", LeaseSpec("planner-1_3c4d", 15, *times, 2))


JUDGED = PlannerGangState(*LLM, "queued", "1 of 2 members fits at once", judged=True)
NOTE = (
    "the planner has been the leader for {} s and {} this gang yet: it counts waiting times and rollbacks from the "
    "moment when it became the leader"
)


@pytest.mark.parametrize(
    ("lease", "state", "note"),
    [
        pytest.param(_since(7), None, NOTE.format(7, "may not have tried"), id="its page was not read"),
        pytest.param(_since(7), JUDGED, None, id="it has tried the gang"),
        pytest.param(_since(90), replace(JUDGED, judged=False), NOTE.format(90, "has not tried"), id="it has not"),
        pytest.param(_since(7), replace(JUDGED, judged=None), NOTE.format(7, "may not have tried"), id="older planner"),
        pytest.param(_since(90), None, None, id="it leads for long"),
        pytest.param(led(), None, None, id="the time is not known"),
        pytest.param(_since(-5), None, NOTE.format(0, "may not have tried"), id="clocks differ"),
    ],
)
def test_a_planner_that_has_just_started_to_lead_is_a_note(
    lease: PlannerLease, state: PlannerGangState | None, note: str | None
) -> None:
    found = story(seen(crew(2), [record("a", QUADS, held={})], led=lease), said=state)

    assert [each for each in found.notes if "has been the leader" in each] == ([] if note is None else [note])


GONE = "it fits now, but no planner leads: planner-0_1b2c last renewed its Lease gputopo/gputopo-planner 12m ago"


@pytest.mark.parametrize(
    ("found", "gpus", "beginning"),
    [
        pytest.param(seen(crew(2), [record("a", QUADS, held={})], led=led(ago=720.0)), 4, GONE, id="it fits"),
        pytest.param(
            seen(crew(2, 8), [record("a", QUADS, held={})], led=led(ago=720.0)),
            8,
            GONE.removeprefix("it fits now, but "),
            id="it does not fit",
        ),
        pytest.param(
            seen(crew(2), [record("a", QUADS, held={})], ledger=NONE),
            4,
            "it fits now, but no planner has led here: there is no PlacementLedger.",
            id="there never was a planner",
        ),
        pytest.param(
            seen(crew(2), [record("a", QUADS, held={})], ledger=NONE)._replace(from_file=True),
            4,
            "the file has no PlacementLedger, so it is not known",
            id="a file without ledgers",
        ),
    ],
)
def test_a_gang_that_fits_waits_because_no_planner_leads(found: GangSnapshot, gpus: int, beginning: str) -> None:
    explained = story(found)

    assert explained.gang.gpus == 2 * gpus
    assert explained.unplanned is not None
    assert explained.unplanned.startswith(beginning)
    assert not any("if it stays queued" in each for each in explained.notes)


@pytest.mark.parametrize(
    ("found", "note"),
    [
        pytest.param(
            seen(crew(2, created=NOW - 3.0), [record("a", QUADS, held={})], led=led()),
            "it has been complete for 3 s, and a planner leads: it plans within seconds",
            id="newer than the last pass",
        ),
        pytest.param(seen(crew(2), [record("a", QUADS, held={})], led=led()), "if it stays queued: ", id="older"),
        pytest.param(
            seen(crew(2), [record("a", QUADS, held={})], unread=("leases.coordination.k8s.io",)),
            "it is not known whether a planner leads: you may not read leases.coordination.k8s.io",
            id="the Lease may not be read",
        ),
        pytest.param(
            seen(crew(2), [record("a", QUADS, held={})], ledger=NONE, unread=("placementledgers.gputopo.io",)),
            "it is not known whether a planner leads: you may not read placementledgers.gputopo.io",
            id="ledgers may not be read",
        ),
    ],
)
def test_a_gang_that_fits_and_waits_for_a_planner_has_a_note(found: GangSnapshot, note: str) -> None:
    explained = story(found)

    assert explained.unplanned is None
    assert [each for each in explained.notes if each.startswith(note)] != []


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param(seen(crew(2), led=led()), "2 members to be placed", id="a planner leads"),
        pytest.param(seen(crew(2), led=led(ago=90.0)), "2 members to be placed; no planner leads", id="no leader"),
        pytest.param(seen(crew(2), ledger=NONE), "2 members to be placed; no planner leads", id="no ledger"),
        pytest.param(
            seen(crew(2), ledger=NONE)._replace(from_file=True), "2 members to be placed", id="a file without ledgers"
        ),
        pytest.param(seen(crew(2)[:1], led=led(ago=90.0)), "1 of 2 members is there", id="members are missing"),
    ],
)
def test_the_table_says_that_no_planner_leads_where_only_a_planner_helps(found: GangSnapshot, reason: str) -> None:
    assert only(found).reason == reason
