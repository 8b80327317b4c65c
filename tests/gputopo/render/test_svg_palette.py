"""Everything stands out against what it is drawn on, in both modes (WCAG 2.1: text 4.5:1, shapes 3:1)."""

import pytest

from gputopo.render.svg.palette import DARK, LIGHT, Theme, island_class

both = pytest.mark.parametrize("theme", [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")])


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


@both
def test_text_can_be_read_on_all_it_is_written_on(theme: Theme) -> None:
    islands = (*theme.islands, theme.alone)
    pairs = [
        *((theme.text, ground) for ground in (theme.card, theme.box, theme.nic, theme.bad_face)),
        *((theme.text, island.face) for island in islands),
        *((theme.muted, ground) for ground in (theme.card, theme.box, theme.switch, theme.nic)),
        *((island.letter, island.line) for island in islands),
        (theme.bad_text, theme.bad),
        (theme.card, theme.muted),
    ]
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []


@both
def test_lines_and_borders_can_be_seen(theme: Theme) -> None:
    islands = (*theme.islands, theme.alone)
    pairs = [
        *((island.line, ground) for island in islands for ground in (theme.card, theme.box, theme.switch, island.face)),
        *((theme.bad, ground) for ground in (theme.card, theme.box, theme.switch, theme.bad_face)),
        (theme.nic_edge, theme.switch),
    ]
    assert [pair for pair in pairs if contrast(*pair) < 3] == []


@both
def test_colours_of_islands_differ(theme: Theme) -> None:
    assert len({island.line for island in theme.islands} | {theme.alone.line, theme.bad}) == len(theme.islands) + 2


def test_colours_repeat_after_the_last() -> None:
    assert [island_class(number) for number in (0, 5, 6)] == ["i0", "i5", "i0"]
