"""Island colours."""

from gputopo.render.palette import fill, outline
from gputopo.render.wording import ALONE, UNKNOWN, island_letter


def test_eight_islands_and_the_special_cases_differ_and_the_ninth_starts_over() -> None:
    marks = [*(island_letter(place) for place in range(8)), ALONE, UNKNOWN, None]

    assert len({fill(mark) for mark in marks}) == len({outline(mark) for mark in marks if mark != UNKNOWN}) + 1 == 11
    assert (fill("I"), outline("I")) == (fill("A"), outline("A"))
