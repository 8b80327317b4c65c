"""The last hour: what has changed, and how much is kept of it."""

from __future__ import annotations

from scheduler_core.ui.history import KEPT_S, MAX_CHANGES, SAMPLE_S, History
from scheduler_core.ui.model import NodeRow, Overview, PodOnNode
from scheduler_core.ui.overview import totals
from scheduler_core.ui.overview_page import sections
from scheduler_core.ui.rows_html import Viewer
from scheduler_core.ui.timeline import timeline
from tests.scheduler_core.ui.pages import Page


def row(name: str, *pods: str, faults: tuple[str, ...] = (), notes: tuple[str, ...] = ()) -> NodeRow:
    return NodeRow(name, "A100", (), tuple(PodOnNode("team", pod, 2) for pod in pods), faults=faults, notes=notes)


def record(*moments: list[NodeRow], step: float = SAMPLE_S) -> History:
    history = History()
    for number, rows in enumerate(moments):
        history.add(Overview(1000.0 + step * number, totals(rows), (), (), ()), rows)
    return history


def test_a_new_page_says_since_when_the_hour_is_recorded() -> None:
    history = record([row("n")])
    found = Overview(1000.0, totals([row("n")]), (), (), ())

    live = sections(found, history, Viewer())["history"]
    of_a_file = sections(found, history, Viewer(recorded="recorded at noon"))["history"]

    assert "<p>Recorded since 00:16:40 UTC. Nothing has changed.</p>" in live
    assert of_a_file == '<section id="history"></section>'


def words(history: History) -> list[str]:
    return [each.words for each in history.changes]


def test_the_first_overview_is_no_change() -> None:
    assert words(record([row("n", "p")])) == []


def test_pods_nodes_faults_and_notes_that_come_and_go() -> None:
    history = record(
        [row("n", "a"), row("old")],
        [row("n", "b", faults=("gpu3: lost",)), row("new", notes=("cordoned",))],
        [row("n", "b"), row("new", notes=("no report for 2h",))],
        [row("n", "b"), row("new", notes=("no report for 3h",))],
    )

    assert words(history) == [
        "node n degraded: gpu3: lost",
        "pod team/b bound to n (2 GPUs)",
        "pod team/a left n (2 GPUs)",
        "node new added",
        "node old removed",
        "node n is no longer degraded",
        "node new: no report for 2h",
    ]
    assert [each.without_name for each in history.changes if each.namespace] == [
        "a pod bound to n (2 GPUs)",
        "a pod left n (2 GPUs)",
    ]


def test_a_reserved_place_is_not_a_bound_pod() -> None:
    reserved = row("n")._replace(pods=(PodOnNode("team", "p", 2, reserved=True),))

    assert words(record([row("n")], [reserved], [row("n", "p")])) == ["pod team/p bound to n (2 GPUs)"]


def test_the_history_is_bounded() -> None:
    busy = [[row("n", *(f"p-{moment}-{pod}" for pod in range(200)))] for moment in range(30)]
    history = record(*busy, step=1.0)

    assert len(history.changes) <= MAX_CHANGES
    assert "more changes" in history.changes[-1].words
    assert len(history.samples) == 2


def test_only_the_last_hour_is_kept() -> None:
    history = record(*([[row("n")], [row("n", "p")]] * 150), step=60.0)
    newest = history.samples[-1].at

    assert history.samples[0].at >= newest - KEPT_S
    assert history.changes[0].at >= newest - KEPT_S


def test_the_drawing_states_its_figures_in_text() -> None:
    history = record([row("n")], [row("n")])

    assert "0 used" in Page(timeline(history.samples)).words
    assert timeline(list(history.samples)[:1]) == ""
