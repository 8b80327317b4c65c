"""The text of values."""

import pytest
from hypothesis import given

from gputopo.render.wording import (
    escape_invisible,
    format_gib,
    format_number,
    gpu_names,
    island_letter,
    island_marks,
    parse_subject,
    role_of,
    shorten_names,
    without_colour,
)
from tests.machines import a6000_pair_and_one, h100_lost_gpu, mixed, nvlink_unknown
from tests.property.strategies import texts


@given(texts)
def test_visible_text_is_printable_and_ascii_where_asked(text: str) -> None:
    assert escape_invisible(text).isprintable()
    assert escape_invisible(text, ascii_only=True).isprintable()
    assert escape_invisible(text, ascii_only=True).isascii()


@pytest.mark.parametrize(
    ("text", "unicode", "ascii_only"),
    [
        pytest.param("NVIDIA A40", "NVIDIA A40", "NVIDIA A40", id="plain"),
        pytest.param("\x1b[31mred\n", "\\x1b[31mred\\n", "\\x1b[31mred\\n", id="terminal codes"),
        pytest.param("é中", "é中", "\\xe9\\u4e2d", id="letters"),
        pytest.param("\u202eabc", "\\u202eabc", "\\u202eabc", id="right to left"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, unicode: str, ascii_only: str) -> None:
    assert (escape_invisible(text), escape_invisible(text, ascii_only=True)) == (unicode, ascii_only)


@pytest.mark.parametrize(
    ("indices", "name"),
    [
        pytest.param([3], "GPU3", id="one"),
        pytest.param([2, 3], "GPU2,3", id="two in a row"),
        pytest.param([7, 0, 2, 1, 5, 6], "GPU0-2,5-7", id="runs, whatever the order"),
    ],
)
def test_gpus_are_named_in_runs(indices: list[int], name: str) -> None:
    assert gpu_names(indices) == name


@pytest.mark.parametrize(
    ("mib", "text"),
    [(81559, "79.6 GiB"), (81920, "80 GiB"), (1_031_000, "1007 GiB"), (8188, "8 GiB")],
    ids=str,
)
def test_memory_is_rounded_as_people_read_it(mib: int, text: str) -> None:
    assert format_gib(mib) == text


def test_numbers_have_one_decimal_at_most() -> None:
    assert [format_number(value) for value in (600.0, 112.5, 112.46)] == ["600", "112.5", "112.5"]


def test_letters_go_on_after_z() -> None:
    assert [island_letter(place) for place in (0, 25, 26, 51, 52)] == ["A", "Z", "AA", "AZ", "BA"]


@pytest.mark.parametrize("place", [0, 7, 25, 26, 63])
def test_the_role_of_a_letter_is_its_place(place: int) -> None:
    assert role_of(island_letter(place)) == f"island-{place}"


def test_gpus_on_their_own_have_no_letter() -> None:
    assert island_marks(a6000_pair_and_one()) == {0: "A", 1: "A", 2: "alone"}
    assert (role_of("alone"), role_of("?")) == ("dim", "unknown")


def test_marks_where_nvlink_is_unknown_or_a_gpu_is_lost() -> None:
    assert set(island_marks(nvlink_unknown()).values()) == {"?"}
    assert 2 not in island_marks(h100_lost_gpu())


def test_letters_are_given_to_islands_of_several_only() -> None:
    assert island_marks(mixed()) == {0: "A", 1: "A", 2: "alone", 3: "alone"}


@pytest.mark.parametrize(
    ("what", "part", "gpus"),
    [
        ("gpu3.nvlink7", "NVLink 7", (3,)),
        ("gpu3.c2c", "C2C", (3,)),
        ("gpu3", "", (3,)),
        ("gpu3.nvlink", "NVLink", (3,)),
        ("gpu3.fabric", "fabric", (3,)),
        ("gpu2-gpu13", "NVLink", (2, 13)),
        ("gpus.3.numaNode", "NUMA node", (3,)),
        ("nvlink", "NVLink", ()),
        ("topo -m line 7", "topo -m line 7", ()),
        ("gpu٣", "gpu٣", ()),
    ],
    ids=str,
)
def test_the_subject_of_a_note(what: str, part: str, gpus: tuple[int, ...]) -> None:
    assert parse_subject(what) == (part, gpus)


def test_plain_paint_changes_nothing() -> None:
    assert without_colour("bad", "text") == "text"


def test_only_names_longer_than_those_of_kubernetes_are_shortened() -> None:
    longest = f"{'s' * 63}/{'p' * 253}, {'n' * 253} and more"

    assert shorten_names(longest) == longest
    assert shorten_names(f"a/{'p' * 254} b") == f"a/{'p' * 250}... b"
    assert shorten_names("") == ""
