"""What the goldens of ``test_text`` do not show."""

from __future__ import annotations

import pytest

from scheduler_core.gang_view.telling import NoGangError
from scheduler_core.gangs.member import GangName, Member
from scheduler_core.request import Refused
from tests.scheduler_core.builders import occupant, record
from tests.scheduler_core.explain.fleets import QUADS
from tests.scheduler_core.gang_view.clusters import RULES, crew, member, seen, story
from tests.scheduler_core.gangs.members import BOUND
from tests.scheduler_core.plans import entry, ledger, plan

FREE = record("a", QUADS, held={})


def called(namespace: str, name: str) -> Member:
    gang = GangName(namespace, name)
    found = member(f"{namespace}-{name}")
    return found._replace(namespace=namespace, wanted=found.wanted._replace(gang=gang))


@pytest.mark.parametrize(
    ("members", "why"),
    [
        pytest.param([], "there is no gang llm-7 in the namespace team, nor any other gang", id="none at all"),
        pytest.param(
            [called("team", "llm-8"), called("team", "web")],
            "there is no gang llm-7 in the namespace team; nearest: llm-8",
            id="one of nearly that name",
        ),
        pytest.param(
            [called("team", "llm-8"), called("other", "llm-7")],
            "there is no gang llm-7 in the namespace team; nearest: llm-8, other/llm-7",
            id="one of that name in another namespace",
        ),
        pytest.param(
            [called("team", "web")],
            "there is no gang llm-7 in the namespace team: `gputopo gangs` lists all",
            id="nothing like it",
        ),
    ],
)
def test_a_gang_that_is_not_there(members: list[Member], why: str) -> None:
    with pytest.raises(NoGangError, match=f"^{why}$"):
        story(seen(members), GangName("team", "llm-7"))


@pytest.mark.parametrize(
    ("members", "absent"),
    [
        pytest.param(crew(6)[1:3], (0, 3, 4, 5), id="ranks from 0 on"),
        pytest.param([*crew(6)[1:3], member("x", size=6)], (), id="one has no rank"),
        pytest.param(crew(6, rank=9)[:1], (), id="a rank beyond its size"),
        pytest.param(crew(20_000)[:1], (), id="more than anybody reads"),
        pytest.param([member("w-0", rank=0)], (), id="nobody says of how many"),
        pytest.param(crew(2), (), id="all are there"),
    ],
)
def test_which_ranks_have_not_come(members: list[Member], absent: tuple[int, ...]) -> None:
    assert story(seen(members)).absent_ranks == absent


def test_of_two_gangs_of_one_age_the_first_by_name_comes_first() -> None:
    both = [*crew(1), called("team", "a")._replace(wanted=crew(1)[0].wanted._replace(gang=GangName("team", "a")))]

    assert story(seen(both)).before == ("team/a",)
    assert story(seen(both), GangName("team", "a")).before == ()


def test_members_that_cannot_be_understood_are_not_tried() -> None:
    found = story(seen([member("w-0", size=1, request=Refused("gputopo.io/island: 'yes'"))], [FREE]))

    assert (found.gang.phase, found.places, found.unfit) == ("refused", (), None)


def test_a_member_that_comes_late_is_tried_beside_its_siblings() -> None:
    there = [each._replace(node="a") for each in crew(2, 4, BOUND)[:1]]
    found = story(seen([*there, *crew(2)[1:]], [FREE, record("b", QUADS, held={})]))

    (place,) = found.places
    assert [(stop.node, stop.members) for stop in place.stops] == [("a", ("w-1",))]


def test_siblings_that_run_are_not_among_those_that_would_have_to_end() -> None:
    there = [each._replace(node="a") for each in crew(3, 4, BOUND)[:1]]
    busy = record("a", QUADS, held={"x": [4]}, pods=[occupant("x", 1)])
    found = story(seen([*there, *crew(3)[1:2]], [busy]))

    assert found.gang.phase == "gathering"
    assert found.relief is not None
    assert found.relief.pods == ("team/x",)


def test_where_time_is_over_it_says_so() -> None:
    asked: list[None] = []

    def over() -> bool:
        asked.append(None)
        return True

    other = plan("o-1", {"o-0": ("a", 8)}, gang="other")
    found = story(seen(crew(1), [FREE], planned=[other], ledger=ledger(entry(other))), rules=RULES._replace(over=over))

    assert found.kept == ()
    assert found.notes[-1] == "the time for trials ran out, so there may be more to say"
    assert asked
