"""Reports: their content, and that they are self-contained."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from scheduler_core.policy.policy import Policy
from scheduler_core.simulation.measures import Figures
from scheduler_core.simulation.policies import DESCRIPTIONS, run_policy
from scheduler_core.simulation.report.page import simulation_page
from scheduler_core.simulation.report.plot import Axis, bar_plot, distribution, line_plot
from scheduler_core.simulation.report.summary import (
    COLUMNS,
    DROPPABLE,
    cell_text,
    simulation_document,
    simulation_text,
    summaries,
)
from tests.scheduler_core.simulation.clusters import QUADS, jobs

FIGURES = [run_policy(name, QUADS, jobs(seed), Policy(), seed) for seed in (1, 2) for name in ("ours", "spread")]


def test_text_has_a_row_for_each_policy() -> None:
    shown = simulation_text(summaries(FIGURES), DESCRIPTIONS, "a cluster")

    assert shown.startswith("a cluster\n\n")
    rows = [line.split()[0] for line in shown.splitlines()[3:5]]
    assert rows == ["ours", "spread"]
    assert DESCRIPTIONS["ours"] in shown


@pytest.mark.parametrize("width", [139, 120, 100, 80, 60, 40])
def test_a_narrow_terminal_drops_columns_and_folds_no_row(width: int) -> None:
    found = summaries(FIGURES)
    whole, shown = (simulation_text(found, DESCRIPTIONS, "a cluster", each) for each in (10_000, width))

    assert all(len(line) <= width for line in shown.splitlines())
    title, *rows = shown.split("\n\n")[1].splitlines()
    gone = [each.title for each in COLUMNS if f"  {each.title}  " not in f"{title}  "]
    assert [row.split()[0] for row in rows] == ["ours", "spread"]
    assert set(gone) == set(DROPPABLE[: len(gone)])
    assert gone or len(whole.split("\n\n")[1].splitlines()[0]) <= width
    assert "mean allocated" in title


def test_shares_of_the_gpus_are_means_and_of_the_end_and_counts_of_one_run_are_integers() -> None:
    one = FIGURES[0]._replace(mean_allocated=0.5, allocated=0.25, never=3)
    two = one._replace(seed=2, never=4)

    def shown(*figures: Figures) -> dict[str, str]:
        (found,) = summaries(figures)
        return {each.title: cell_text(found, each) for each in COLUMNS}

    assert (shown(one)["mean allocated"], shown(one)["allocated at end"]) == ("50.00 %", "25.00 %")
    assert shown(one)["never scheduled"] == "3"
    assert shown(one, two)["never scheduled"] == "3.5"
    assert "50.0 % of the GPU capacity in use on average" in simulation_page(summaries([one, FIGURES[1]]), {}, "x")


def test_page_is_self_contained() -> None:
    shown = simulation_page(summaries(FIGURES), DESCRIPTIONS, "a <cluster>")

    assert "a &lt;cluster&gt;" in shown
    assert re.findall(r"(?:src|href)=", shown) == []
    assert shown.count("<svg") == 4
    for svg in re.findall(r"<svg.*?</svg>", shown, flags=re.DOTALL):
        ET.fromstring(svg)
    assert "best of the others" in shown


def test_page_of_one_policy_has_no_comparison() -> None:
    assert "best of the others" not in simulation_page(summaries(FIGURES[:1]), DESCRIPTIONS, "x")


def test_document_has_every_replay() -> None:
    found = simulation_document(FIGURES, "x")

    assert [(row["policy"], row["seed"]) for row in found["replays"]] == [
        ("ours", 1),
        ("spread", 1),
        ("ours", 2),
        ("spread", 2),
    ]
    assert "course" not in found["replays"][0]


def test_missing_figures_are_a_dash_and_no_plot() -> None:
    singles = [run_policy("spread", QUADS, jobs(1, 20, sizes={1: 1}), Policy(), 1)]

    assert " - " in simulation_text(summaries(singles), DESCRIPTIONS, "x")
    assert simulation_page(summaries([*singles, *singles]), DESCRIPTIONS, "x").count("<svg") == 2


def test_unknown_figures_are_question_marks_unless_a_run_knows_them() -> None:
    one = FIGURES[0]._replace(bandwidth=None, bandwidths=(), unknown=("bandwidth",))

    def shown(*figures: Figures) -> str:
        (found,) = summaries(figures)
        return {each.title: cell_text(found, each) for each in COLUMNS}["% of best ring bandwidth"]

    assert shown(one) == "?"
    assert shown(one, one._replace(seed=2, bandwidth=0.5, unknown=())) == "50.0 %"
    assert shown(one._replace(unknown=())) == "-"


def test_never_scheduled_is_explained() -> None:
    late, none = (summaries([FIGURES[0]._replace(never=number)]) for number in (3, 0))

    assert "never scheduled  pods that had no GPUs when the last pod arrived" in simulation_text(late, {}, "x")
    assert "pods that had no GPUs" not in simulation_text(none, {}, "x")
    assert "pods that had no GPUs when the last pod arrived" in simulation_page(late, {}, "x")


def test_page_counts_runs_and_shows_caveats() -> None:
    one, two = (simulation_page(summaries(FIGURES[:number]), {}, "x", ["a < b"]) for number in (2, 4))

    assert "Means of 1 run." in one
    assert "Means of 2 runs." in two
    assert "<p>a &lt; b</p>" in one


@pytest.mark.parametrize(
    ("most", "percent", "numbers"),
    [
        pytest.param(10.05, False, ["0", "2", "4", "6", "8", "10"], id="multiples"),
        pytest.param(1.3, False, ["0", "0.5", "1"], id="endless jobs"),
        pytest.param(1.0, True, ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"], id="shares"),
        pytest.param(0.018, True, ["0 %", "0.5 %", "1 %", "1.5 %"], id="small shares"),
    ],
)
def test_axes_have_round_numbers_inside_the_drawing(most: float, percent: bool, numbers: list[str]) -> None:
    """A number of the x axis is at most 7 characters of 6 pixels, around its place."""
    svg = line_plot({"a": [(0.0, 0.0), (most, 1.0)]}, Axis("x", percent=percent), Axis("y"))

    texts = re.findall(r'<text x="([\d.]+)" y="272" text-anchor="middle">(.*?)</text>', svg)
    assert [text for _, text in texts] == numbers
    assert all(float(x) + 3 * len(text) <= 520 for x, text in texts)


def test_plots_of_nothing() -> None:
    assert line_plot({}, Axis("x", percent=False), Axis("y")).startswith("<svg")
    assert bar_plot({}, "t").startswith("<svg")
    assert distribution(()) == [(0.0, 0.0)]


def test_distribution() -> None:
    assert list(distribution((0.0, 0.5, 1.0, 1.0))) == [(0.0, 0.0), (0.0, 0.25), (0.5, 0.5), (1.0, 0.75), (1.0, 1.0)]
