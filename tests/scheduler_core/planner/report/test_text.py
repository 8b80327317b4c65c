"""The explanation of a gang at a terminal: whole texts, and what holds for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gputopo.crd.reservations import PlannedMember, ReservationState, ReservationStatus, spec_hash
from gputopo.kube.leases import LeaseSpec
from gputopo.labels.keys import GATE
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import ReservationUpdate
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.report.document import gang_explanation_document
from scheduler_core.planner.report.model import GangExplanation
from scheduler_core.planner.report.planner_page import MissingMember, PlannerGangState
from scheduler_core.planner.report.read import PlannerLease
from scheduler_core.planner.report.text import gang_explanation_text
from scheduler_core.request.pod_request import InvalidRequest
from tests.conftest import Golden
from tests.scheduler_core.builders import NOW, occupant, record, request
from tests.scheduler_core.explain.fleets import QUADS
from tests.scheduler_core.planner.gang.gang_pods import BOUND, KUEUE, LLM, RUNNING
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, entry, ledger, plan
from tests.scheduler_core.planner.report.clusters import NONE, RULES, crew, member, seen, story

GOLDEN = Path(__file__).parent / "golden"
RACK = {"cloud.provider.com/topology-rack": "r7"}
LATER = GangName("team", "later")


def node(name: str, **pods: int) -> NodeRecord:
    """Two islands of four; the pods hold so many GPUs, from the first on."""
    held: dict[str, range] = {}
    for pod, gpus in pods.items():
        first = sum(map(len, held.values()))
        held[pod] = range(first, first + gpus)
    return record(name, QUADS, held=held, pods=[occupant(pod, gpus) for pod, gpus in pods.items()])


def status(state: ReservationState, reason: str | None = None, **more: Any) -> ReservationStatus:
    return ReservationStatus(state, reason, **more)


def whole(planned: ReservationUpdate) -> ReservationUpdate:
    """The same with a launcher, in a rack."""
    seats = tuple(replace(seat, rank=rank) for rank, seat in enumerate(planned.spec.seats))
    spec = replace(
        planned.spec, seats=(*seats, PlannedMember("uid-launcher", "launcher")), domain="rack=r7", gbps=126.1
    )
    return planned._replace(spec=spec, hash=spec_hash(spec))


FREE = (node("a"), node("b"))
LET_GO = {"gates": (), "reservation": "llm-1"}
REST = ("w-1", "w-2", "launcher")
SEATS = {"w-0": ("a", 4), "w-1": ("a", 4), "w-2": ("b", 4)}
COMMITTING = whole(plan("llm-1", SEATS, status=status(ReservationState.COMMITTED, deadline="2026-11-18T11:07:10Z")))
FAILING = plan(
    "llm-1",
    SEATS,
    status=status(ReservationState.FAILED, "w-2 not bound within 30 s; no controller would recreate w-0"),
)
HOLDING = plan(
    "llm-1",
    held={"b": 8},
    status=status(ReservationState.HELD, "capacity on 1 node is held for it", estimate="2026-11-18T12:00:00Z"),
)
SETTLING = plan(
    "llm-1",
    SEATS,
    status=status(ReservationState.PROPOSED, "planned; the ledger is new, and extenders have until noon"),
)
AWAITING = plan(
    "llm-1", SEATS, status=status(ReservationState.PROPOSED, "waits for extender gputopo/s-0 to acknowledge it")
)
BOUND_ONCE = whole(plan("llm-1", {"w-0": ("a", 4), "w-1": ("a", 4)}, status=status(ReservationState.BOUND)))


def committed(
    state: ReservationState = ReservationState.COMMITTED, reason: str | None = None, **more: Any
) -> dict[str, Any]:
    """A reservation of two that counts."""
    found = plan("llm-1", {"w-0": ("a", 4), "w-1": ("a", 4)}, status=status(state, reason, **more))
    return {"planned": [found], "ledger": ledger(entry(found, COMMITTED))}


ONE = plan(
    "o-1", {"o-0": ("a", 4)}, gang="other", status=status(ReservationState.COMMITTED, deadline="2026-11-18T11:07:10Z")
)
TWO = plan("p-1", {"p-0": ("b", 4)}, gang="")
THREE = plan("q-1", held={"b": 8}, gang="big", status=status(ReservationState.HELD, estimate="2026-11-18T12:00:00Z"))
FOUR = plan("q-1", held={"b": 8}, gang="big", status=status(ReservationState.HELD))


def later(count: int, **changed: Any) -> list[Member]:
    """Another gang, which came after LLM."""
    found = [member(f"l-{at}", 4, created=NOW - 60.0, **changed) for at in range(count)]
    return [
        each._replace(gang_request=GangRequest(LATER, count, rank=each.gang_request.rank, convention="JobSet"))
        for each in found
    ]


STORIES = {
    "fits": story(seen(crew(3, preferred="rack", timeout_s=90.0), FREE, labels=RACK)),
    "waiting-for-members": story(
        seen([*crew(4)[:2], member("w-3", size=4, rank=3, gates=(GATE, KUEUE))], FREE, unread=("jobs.batch",))
    ),
    "waiting-for-members-unsized": story(seen([member("w-0"), member("w-1")], [node("a", busy=6)])),
    "waiting": story(
        seen([member("w-0", size=2), member("w-1", size=2, gates=(GATE, KUEUE, "example.com/quota"))], FREE)
    ),
    "nowhere": story(
        seen(
            [*crew(5, required="rack", minimum=4), *later(2)],
            [node("a", train=1), node("b", x=2, y=2, z=1), node("c", serve=4)],
            labels=RACK,
            ends={"train": NOW + 600.0},
        ),
    ),
    "second-in-the-queue": story(
        seen([*crew(3), *later(3)], [node("a", train=1), node("b")], ends={"train": NOW + 600.0}), LATER
    ),
    "ends-in-time": story(
        seen(crew(4), [node("a", train=1, eval=1), node("b")], ends={"train": NOW + 600.0, "eval": NOW + 60.0})
    ),
    "never": story(seen([member("w-0", 8, size=1, request=request(9, "w-0"))], FREE)),
    "rolled-back-before": story(
        seen(crew(2), FREE),
        said=PlannerGangState(
            "team",
            "llm",
            "queued",
            "0 of 2 members fit at once",
            (MissingMember("w-0", "too few"), MissingMember("w-1", "too few")),
            3,
            41.7,
        ),
    ),
    "in-vain": story(
        seen(crew(4), [node("a", busy=5)]),
        said=PlannerGangState(
            "team", "llm", "queued", "0 of 4 members fit at once", (MissingMember("w-0", "too few"),)
        ),
    ),
    "tried-at-once": story(
        seen(crew(2), FREE),
        said=PlannerGangState("team", "llm", "held", "1 of 2 fits", (MissingMember("w-1", "old"),), 1, 0.0),
    ),
    "kept": story(seen(crew(4), FREE, planned=[ONE], ledger=ledger(entry(ONE)))),
    "kept-any": story(seen(crew(3), FREE, planned=[ONE, TWO], ledger=ledger(entry(ONE), entry(TWO, PROPOSED)))),
    "kept-all": story(seen(crew(4), FREE, planned=[ONE, THREE], ledger=ledger(entry(ONE), entry(THREE, HELD)))),
    "kept-held": story(seen(crew(4), FREE, planned=[FOUR], ledger=ledger(entry(FOUR, HELD)))),
    "kept-and-more": story(seen(crew(5), FREE, planned=[ONE], ledger=ledger(entry(ONE)))),
    "held": story(
        seen(crew(4), [node("a", busy=5), node("b")], planned=[HOLDING], ledger=ledger(entry(HOLDING, HELD)))
    ),
    "committed": story(
        seen(
            [*crew(4, 4, BOUND)[:1], *(member(name, 0 if name == "launcher" else 4, **LET_GO) for name in REST)],
            FREE,
            planned=[COMMITTING],
            ledger=ledger(entry(COMMITTING, COMMITTED)),
        )
    ),
    "failed": story(seen([*crew(3, 4, BOUND)[:2], member("w-2", **LET_GO)], FREE, planned=[FAILING], ledger=ledger())),
    "failed-to-delete": story(
        seen(
            [member("w-0", **LET_GO, owner_kind="batch/Job")],
            FREE,
            planned=[
                plan(
                    "llm-1",
                    {"w-0": ("a", 4)},
                    status=status(ReservationState.FAILED, "w-0 not bound; pods is forbidden"),
                )
            ],
            ledger=ledger(),
        )
    ),
    "running": story(
        seen(
            [
                *crew(3, 4, RUNNING),
                member("w-0-old", phase="Failed", size=3),
                member("w-1-old", is_terminating=True, size=3),
                member("w-3", size=3),
            ],
            FREE,
        )
    ),
    "refused": story(
        seen([member("w-0", request=InvalidRequest("gputopo.io/island: 'yes'"), size=2), member("w-1")], FREE)
    ),
    "elsewhere": story(seen([member("w-0", 4, BOUND, reservation=None)], FREE)),
    "not-opted-in": story(seen([member("w-0", gates=())], FREE), opted_in=False),
    "opted-in-too-late": story(seen([member("w-0", gates=())], FREE), opted_in=True),
    "no-planner-ever": story(seen(crew(2), FREE, ledger=NONE)),
    "planner-gone": story(
        seen(
            crew(2),
            FREE,
            led=PlannerLease(
                "gputopo/gputopo-planner", LeaseSpec("planner-0_1b2c", 15, None, format_timestamp(NOW - 90.0))
            ),
        )
    ),
    "settling": story(seen(crew(2), FREE, planned=[SETTLING], ledger=ledger())),
    "awaits-an-extender": story(seen(crew(2), FREE, planned=[AWAITING], ledger=ledger(entry(AWAITING, PROPOSED)))),
    "kube-scheduler-refuses": story(
        seen(
            [member("w-0", **LET_GO), member("w-1", **LET_GO, bind_error="0/2 nodes are available: no volume.")],
            FREE,
            **committed(deadline=format_timestamp(NOW + 12.0)),
        )
    ),
    "deadline-passed": story(
        seen([*crew(2, 4, BOUND)[:1], member("w-1", **LET_GO)], FREE, **committed(deadline=format_timestamp(NOW - 2.0)))
    ),
    "rolling-back": story(
        seen(
            [*crew(2, 4, BOUND)[:1], member("w-1", **LET_GO)],
            FREE,
            **committed(ReservationState.ROLLING_BACK, "w-1 not bound within 30 s"),
        )
    ),
    "rolled-back-twice": story(
        seen(crew(2), FREE),
        said=PlannerGangState(*LLM, "queued", "2 members to be placed", (), 2, 17.0, "w-1 not bound within 30 s"),
    ),
    "in-its-places": story(
        seen(crew(2, 4, RUNNING, node="a"), FREE, planned=[BOUND_ONCE], ledger=ledger()),
    ),
    "unlabelled": story(
        seen(crew(2, required="rack", preferred="clique"), FREE, levels="clique=example.com/c,rack=example.com/r"),
        rules=RULES._replace(levels={"clique": ("example.com/c",), "rack": ("example.com/r",)}),
    ),
    "priorities-differ": story(
        seen([member("w-0", size=3, priority=100), member("w-1", size=3), member("l", 0, size=3, priority=999)], FREE)
    ),
    "disagreeing": story(seen([member("w-0", size=2), member("w-1", size=2), member("w-2", size=3)], FREE)),
}


@pytest.mark.parametrize("name", STORIES)
def test_the_text_is_as_written_down(name: str, golden: Golden) -> None:
    golden(GOLDEN / f"{name}.txt", gang_explanation_text(STORIES[name], 100))


def test_no_story_is_without_its_file() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(STORIES)


@pytest.mark.parametrize("result", STORIES.values(), ids=STORIES)
def test_at_every_width_no_line_is_longer_than_the_terminal_and_no_word_is_broken(result: GangExplanation) -> None:
    words = gang_explanation_text(result, 1_000_000).split()
    for width in range(30, 121):
        text = gang_explanation_text(result, width)
        assert [line for line in text.splitlines() if len(line) > width and len(line.split()) > 2] == []
        rest = iter(words)
        assert all(word in rest for word in text.split())
        if width >= 87:
            assert text.split() == words


@pytest.mark.parametrize("result", STORIES.values(), ids=STORIES)
def test_the_document_holds_all_of_it(result: GangExplanation) -> None:
    found = json.loads(json.dumps(gang_explanation_document(result)))

    assert (found.pop("apiVersion"), found.pop("kind")) == ("gputopo.io/v1", "GangExplanation")
    assert msgspec.convert(found, GangExplanation) == result


@pytest.mark.parametrize("name", ["committed", "waiting-for-members", "kept-all", "nowhere"])
def test_keys_and_values_of_documents_stay(name: str, golden: Golden) -> None:
    golden(GOLDEN / f"{name}.json", json.dumps(gang_explanation_document(STORIES[name]), indent=2) + "\n")


def test_many_members_are_counted() -> None:
    found = gang_explanation_text(story(seen(crew(40, 1), FREE)), 120)

    assert "- held by the gate gputopo.io/gang: w-0, w-1, w-2, w-3 and 36 more\n" in found


def test_a_name_does_not_act_on_the_terminal() -> None:
    found = gang_explanation_text(
        story(seen([member("w-0", size=2, gates=(GATE, "\x1b[31m"))], FREE)), 120, ascii_only=True
    )

    assert "- held by the gate \\x1b[31m: w-0\n" in found


def test_an_ended_gang_has_no_waiting_time_and_no_facts_of_a_declaration() -> None:
    """It said: declared by nothing, waiting since 1970."""
    members = crew(2, 4, RUNNING, phase="Failed")

    found = story(seen(members, FREE))

    text = gang_explanation_text(found, 100)
    assert text.startswith("gang team/llm: ended: no member is running or waiting.\n\nMembers:\n- failed: w-0, w-1")
    assert found.gang.waiting_seconds is None
    assert found.gang.created_at != format_timestamp(0.0)
