"""All gangs of a cluster: their summaries, their order, as a table and as a document."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gputopo.crd.reservations import Backfill, EntryPhase, ReservationState, ReservationStatus
from gputopo.render.report import Table, table_lines
from gputopo.timestamps import format_timestamp
from scheduler_core.planner.gang.conventions import single_pod_request
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.report.document import gang_list
from scheduler_core.planner.report.listing import GangSummary, gangs_without_gates, list_gangs
from scheduler_core.planner.report.planner_page import PlannerGangState
from scheduler_core.planner.report.read import GangSnapshot
from scheduler_core.planner.report.tables import gang_table
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import InvalidRequest
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.gang.gang_pods import BOUND, RUNNING
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan
from tests.scheduler_core.planner.report.clusters import CREATED, crew, member, only, seen

LET_GO = {"gates": (), "reservation": "llm-1"}
SEATS = {"w-0": ("a", 4), "w-1": ("b", 4)}


def named(name: str, members: list[Member], **wanted: Any) -> list[Member]:
    """The same as members of another gang."""
    return [
        each._replace(gang_request=each.gang_request._replace(gang=GangName("team", name), **wanted))
        for each in members
    ]


def planned(
    phase: EntryPhase | None, state: ReservationState | None = None, reason: str | None = None
) -> dict[str, Any]:
    """A reservation of LLM for two, and what the ledger says of it."""
    found = plan("llm-1", SEATS, status=ReservationStatus(state, reason))
    return {"planned": [found], "ledger": ledger(*([] if phase is None else [entry(found, phase)]))}


def test_a_gang_with_all_that_is_known_of_it() -> None:
    status = ReservationStatus(ReservationState.COMMITTED, deadline="2026-11-18T11:07:10Z")
    found = plan("llm-1", SEATS, status=status)
    members = [*crew(2, 4, BOUND, minimum=1, priority=7)[:1], member("w-1", 4, minimum=1, size=2, rank=1, **LET_GO)]

    assert only(seen(members, planned=[found], ledger=ledger(entry(found, COMMITTED)))) == GangSummary(
        namespace="team",
        name="llm",
        phase="committed",
        reason="1 of 2 members has its node",
        by="annotations",
        priority=0,
        priorities=(0, 7),
        size=2,
        minimum=1,
        there=2,
        ungated=2,
        bound=1,
        gpus=8,
        nodes=("a", "b", "n1"),
        domain=None,
        gbps=None,
        created_at=format_timestamp(CREATED),
        waiting_seconds=720,
        reservation="llm-1",
        attempt=1,
        deadline="2026-11-18T11:07:10Z",
        left_seconds=30,
    )


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        pytest.param(seen(crew(3)[:2]), "waiting for members 2 of 3", id="members are missing"),
        pytest.param(seen(crew(5, minimum=4)[:2]), "waiting for members 2 of 4", id="it could start with fewer"),
        pytest.param(seen([member("w-0")]), "waiting for members 1 of ?", id="unknown size"),
        pytest.param(seen(crew(2)), "queued", id="to be planned"),
        pytest.param(seen(crew(2), **planned(EntryPhase.PROPOSED)), "proposed", id="planned"),
        pytest.param(seen(crew(2), **planned(EntryPhase.COMMITTED)), "committed", id="not ungated yet"),
        pytest.param(
            seen([*crew(2, 4, BOUND)[:1], *crew(2)[1:]], **planned(EntryPhase.COMMITTED)), "bound 1 of 2", id="ungated"
        ),
        pytest.param(
            seen([*crew(2, 4, BOUND)[:1], member("w-1", **LET_GO)], **planned(None, ReservationState.BOUND)),
            "bound 1 of 2",
            id="the ledger has forgotten it",
        ),
        pytest.param(
            seen(crew(2), **planned(EntryPhase.COMMITTED, ReservationState.ROLLING_BACK, "late")),
            "rolling back",
            id="rolled back",
        ),
        pytest.param(seen(crew(2), **planned(None, ReservationState.FAILED, "late")), "failed", id="not rolled back"),
        pytest.param(
            seen(crew(2, 4, RUNNING), **planned(None, ReservationState.FAILED, "late")),
            "running",
            id="it came to run after all",
        ),
        pytest.param(seen(crew(2, 4, BOUND), **planned(None, ReservationState.BOUND)), "bound", id="all are bound"),
        pytest.param(seen(crew(2), **planned(None)), "queued", id="what does not count"),
        pytest.param(
            seen(crew(2), **planned(None, ReservationState.PROPOSED), unread=("placementledgers.gputopo.io",)),
            "proposed",
            id="by its status where the ledger may not be read",
        ),
        pytest.param(
            seen(crew(2, 4, BOUND), **planned(None, ReservationState.BOUND), unread=("placementledgers.gputopo.io",)),
            "bound",
            id="bound where the ledger may not be read",
        ),
    ],
)
def test_phases(found: GangSnapshot, phase: str) -> None:
    assert gang_table([only(found)], wide=False).rows[0][2].text == phase


def test_the_state_in_the_planner() -> None:
    said = PlannerGangState("team", "llm", "queued", "1 of 2 members fits at once", (), 2, 30.0)
    result, other = only(seen(crew(2)), said), only(seen(crew(2)[:1]), said)

    assert (result.reason, result.rollbacks, result.next_try_seconds) == (said.reason, 2, 30.0)
    assert other.reason == "1 of 2 members is there"  # it has changed since the planner looked


@pytest.mark.parametrize(
    ("members", "waiting_s", "shown"),
    [
        pytest.param([member("w-0", size=2), member("w-1", size=2, created=NOW - 60)], None, 60, id="complete"),
        pytest.param(
            [member("w-0", size=3), member("w-1", size=3, created=NOW - 60)], None, 720, id="a member is missing"
        ),
        pytest.param([member("w-0", size=1)], 30.0, 30, id="the planner saw it become complete"),
        pytest.param(crew(2, 4, RUNNING), None, None, id="it runs"),
    ],
)
def test_waiting_is_as_the_queue_counts(members: list[Member], waiting_s: float | None, shown: int | None) -> None:
    said = None if waiting_s is None else PlannerGangState("team", "llm", "queued", "what", waiting_s=waiting_s)

    assert only(seen(members), said).waiting_seconds == shown


def test_the_lowest_of_several_priorities_is_marked() -> None:
    found = only(seen([member("w-0", size=3, priority=100), member("w-1", size=3), member("l", 0, size=3, priority=9)]))

    assert (found.priority, found.priorities) == (0, (0, 100))
    assert gang_table([found], wide=False).rows[0][3].text == "0 (lowest)"


def test_gangs_without_our_gate_and_single_pods_are_not_listed() -> None:
    single = member("p")._replace(gang_request=single_pod_request(Metadata("p", "team", "uid-p"), "gate"))
    ended = named("ended", [member("e", phase="Succeeded")])
    theirs = named("theirs", [member("t", 4, BOUND, reservation=None)])

    assert list_gangs(seen([single, *ended, *theirs]), NOW) == ()


def test_a_pod_with_an_invalid_gang_is_listed_by_its_name() -> None:
    why = "the pod's request is malformed: gputopo.io/gang: 'Bad_Name' is not a name"
    single = member("p", request=InvalidRequest(why))
    found = only(seen([single._replace(gang_request=single_pod_request(Metadata("p", "team", "uid-p"), "gate"))]))

    assert (found.name, found.pod, found.phase, found.gpus) == ("pod.uid-p", "p", "refused", None)
    assert found.reason == f"p: {why}"
    assert found.advice is not None
    assert "kubectl annotate --overwrite pod p -n team KEY=VALUE" in found.advice
    assert gang_table([found], wide=False).rows[0][1].text == "pod/p"


def test_waiting_gangs_with_our_annotations_and_without_our_gate() -> None:
    def pods(name: str, node: str | None, by: str = "annotations") -> list[Member]:
        found = named(name, [member(name, 4, BOUND, reservation=None, node=node)], convention=by)
        return [each._replace(uid=f"{name}-0") for each in found]

    there = [*pods("waits", None), *pods("runs", "a"), *pods("volcano.x", None, "Volcano"), *crew(2)]
    assert gangs_without_gates(seen(there)) == ["team/waits"]


def test_failed_gangs_come_first_then_waiting_gangs_in_queue_order() -> None:
    gangs = [
        *named("runs", crew(1, 4, RUNNING)),
        *named("young", [member("y", size=1, created=NOW)]),
        *named("old", [member("o", size=1)]),
        *named("urgent", [member("u", size=1, created=NOW, priority=9)]),
        *named("broken", [member("b", size=1, request=InvalidRequest("what"))]),
        *named("binds", [member("x", 4, BOUND, size=1)]),
    ]
    renamed = [each._replace(uid=f"{each.gang_request.gang.name}-{each.uid}") for each in gangs]

    found = [each.name for each in list_gangs(seen(renamed), NOW)]
    assert found == ["broken", "urgent", "old", "young", "binds", "runs"]


HOLDING = plan(
    "llm-1", held={"b": 8, "a": 4}, status=ReservationStatus(ReservationState.HELD, "wait", estimate="at noon")
)
BATCH = plan("pods-1", {"p": ("c", 1)}, gang="")
TOWN = seen(
    [
        *crew(2, minimum=1),
        *named("far", [member("f-0", 4, RUNNING, size=1)]),
        *named("bad", [member("x-0", request=InvalidRequest("gputopo.io/island: 'yes'"))], convention="JobSet"),
    ],
    planned=[HOLDING, BATCH],
    ledger=ledger(entry(HOLDING, HELD), entry(BATCH, PROPOSED)),
)


def printed(table: Table) -> str:
    return "\n".join(table_lines(table, lambda role, text: f"<{text}>" if role else text))


def test_the_table() -> None:
    assert printed(gang_table(list_gangs(TOWN, NOW), wide=False)) == (
        "NAMESPACE  GANG  PHASE          PRIORITY  MEMBERS  GPUS  NODES  DOMAIN  GB/S  WAITING  REASON\n"
        "team       bad   <refused      >  0         1/?      ?     -      -       -     12m      "
        "x-0: gputopo.io/island: 'yes'\n"
        "team       llm   capacity hold  0         2/2      8     2      -       -     12m      wait\n"
        "team       far   running        0         1/1      4     1      -       -     -        1 member started"
    )


def test_the_wide_table() -> None:
    rows = [[cell.text for cell in row[10:]] for row in gang_table(list_gangs(TOWN, NOW), wide=True).rows]

    assert rows == [
        ["JobSet", "-", "-", "-", "-", "-", "x-0: gputopo.io/island: 'yes'"],
        ["annotations", "1", "1", "llm-1", "about at noon", "a,b", "wait"],
        ["annotations", "-", "-", "-", "-", "n1", "1 member started"],
    ]


def test_domain_and_bandwidth_are_those_of_the_plan() -> None:
    gang = GangSummary(**{**vars_of(only(seen(crew(2)))), "domain": "rack=r7", "gbps": 126.1})

    assert [cell.text for cell in gang_table([gang], wide=False).rows[0][7:9]] == ["rack=r7", "126.1"]


def vars_of(gang: GangSummary) -> dict[str, Any]:
    return {field: getattr(gang, field) for field in gang.__struct_fields__}


def test_the_document() -> None:
    found = gang_list(list_gangs(TOWN, NOW))

    assert (found["apiVersion"], found["kind"]) == ("gputopo.io/v1", "GangList")
    assert [(each["name"], each["phase"], each["createdAt"]) for each in found["items"]] == [
        ("bad", "refused", format_timestamp(CREATED)),
        ("llm", "held", format_timestamp(CREATED)),
        ("far", "running", format_timestamp(CREATED)),
    ]


def test_the_convention_that_declares_a_gang() -> None:
    by = only(
        seen([member("w-0")._replace(gang_request=GangRequest(GangName("team", "jobset.x"), 1, convention="JobSet"))])
    )

    assert (by.name, by.by) == ("jobset.x", "JobSet")


def test_a_gang_on_held_capacity_names_the_holder_and_the_end_while_the_capacity_is_held() -> None:
    backfill = Backfill("team/big", "2026-11-18T11:30:00Z", "2026-11-18T12:00:00Z")
    short = plan("llm-1", {"w-0": ("a", 4)})
    short = short._replace(spec=replace(short.spec, backfill=backfill))
    hold = plan("big-1", held={"a": 8}, gang="big")
    members = crew(1, 4, BOUND, reservation="llm-1", node="a")
    committed = entry(short, COMMITTED)

    found = only(seen(members, planned=[short, hold], ledger=ledger(committed, entry(hold, HELD))))
    assert found.backfill == backfill
    assert gang_list([found])["items"][0]["backfill"] == {
        "gang": "team/big",
        "startBy": "2026-11-18T11:30:00Z",
        "until": "2026-11-18T12:00:00Z",
    }
    row = "\n".join(table_lines(gang_table([found], wide=True)))
    assert "backfill: uses capacity that is held for team/big, until 2026-11-18T12:00:00Z at the latest" in row

    started = only(seen(members, planned=[short], ledger=ledger(committed)))
    assert started.backfill is None
    assert "backfill" not in "\n".join(table_lines(gang_table([started], wide=True)))
