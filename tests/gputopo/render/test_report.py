"""The report kit: tables, folded sections, documents."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.render.report import (
    Cell,
    Table,
    age_words,
    document,
    listed,
    render,
    sentence,
    table_lines,
    text_table,
    titled,
)


def test_a_table_is_printed_in_columns() -> None:
    table = Table(("A", "BB"), [(Cell("x" * 200), Cell("[bold]1", "bad")), (Cell("y"), Cell(""))])

    assert list(table_lines(table)) == [f"A{' ' * 199}  BB", f"{'x' * 200}  [bold]1", "y"]
    assert list(table_lines(table, lambda role, text: f"<{role}>{text}")) == [
        f"A{' ' * 199}  BB",
        f"{'x' * 200}  <bad>[bold]1",
        "y",
    ]


def test_a_table_without_rows_is_its_titles() -> None:
    assert list(table_lines(Table(("A", "BB"), []))) == ["A  BB"]
    assert list(table_lines(text_table((), []))) == []


def test_numbers_end_at_the_right() -> None:
    table = text_table(("", "PLACED"), [("all", "5"), ("size 4", "12")], numbers=True)

    assert list(table_lines(table)) == ["        PLACED", "all          5", "size 4      12"]


def test_sections_are_folded_between_words() -> None:
    sections: list[list[str | Table]] = [
        ["one two three four five six seven eight nine ten"],
        [],
        ["Items:", "- one two three four five six seven eight", "  one two three four five six seven eight"],
        [text_table((), [("a" * 30, "b" * 30)])],
    ]

    assert render(sections, 40) == (
        "one two three four five six seven eight\n"
        "nine ten\n"
        "\n"
        "Items:\n"
        "- one two three four five six seven\n"
        "  eight\n"
        "  one two three four five six seven\n"
        "  eight\n"
        "\n"
        f"  {'a' * 30}\n"
        f"      {'b' * 30}\n"
    )
    assert render(sections, 0) == render(sections, 20)


def test_no_text_controls_the_terminal() -> None:
    sections: list[list[str | Table]] = [["a \x1b[2Jé"], [text_table((), [("b\nc",)])]]

    assert render(sections, 80) == "a \\x1b[2Jé\n\n  b\\nc\n"
    assert render(sections, 80, ascii_only=True) == "a \\x1b[2J\\xe9\n\n  b\\nc\n"


def test_a_document_has_a_header_and_plain_values() -> None:
    class Body(msgspec.Struct, rename="camel"):
        gpus_by_island: tuple[int, ...]
        sizes: dict[int, int]

    assert document("Example", Body((2, 1), {4: 1})) == {
        "apiVersion": "gputopo.io/v1",
        "kind": "Example",
        "gpusByIsland": [2, 1],
        "sizes": {"4": 1},
    }


def test_long_lists_of_names_are_cut() -> None:
    assert listed("abcd") == "a, b, c, d"
    assert listed("abcde") == "a, b, c, d and 1 more"
    assert listed("abc", 1) == "a and 2 more"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0s"), (119.9, "119s"), (120.0, "2m"), (7199.0, "119m"), (47 * 3600.0, "47h"), (3 * 86400.0, "3d")],
)
def test_an_age(seconds: float, words: str) -> None:
    assert age_words(seconds) == words


def test_a_title_without_parts_is_left_out() -> None:
    assert render([titled("Rejected:", []), titled("Notes:", iter(["- a"]))]) == "Notes:\n- a\n"


def test_a_sentence() -> None:
    assert sentence("no planner works: its Lease is gone") == "No planner works: its Lease is gone."
