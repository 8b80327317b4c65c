"""Lines of nodes that viewers with different rights share."""

from __future__ import annotations

import pytest

from scheduler_core.ui.main import file_service
from scheduler_core.ui.model import NodeRow, PodOnNode
from scheduler_core.ui.overview_page import PageQuery, overview_page
from scheduler_core.ui.rows_html import ANYONE, RowFragments, Viewer, node_line
from tests.scheduler_core.ui.cluster_documents import cluster_text


def tenant(*namespaces: str) -> Viewer:
    return ANYONE._replace(namespaces=frozenset(namespaces))


ROW = NodeRow("n", "A100", (), (PodOnNode("a", "x", 2), PodOnNode("b", "y", 1)))
VIEWERS = [ANYONE, ANYONE._replace(live=False), tenant(), tenant("a"), tenant("b"), tenant("a", "b"), tenant("c")]


@pytest.mark.parametrize("viewer", VIEWERS, ids=lambda viewer: "-".join(sorted(viewer.namespaces or ["all"])))
def test_a_shared_line_is_the_line_of_the_viewer_in_any_order(viewer: Viewer) -> None:
    fragments = RowFragments()
    for each in (*VIEWERS, viewer, *reversed(VIEWERS)):
        assert fragments.line(ROW, each) == node_line(ROW, each)


def test_viewers_who_see_the_same_of_a_row_share_its_line() -> None:
    fragments = RowFragments()

    assert fragments.line(ROW, tenant("c")) is fragments.line(ROW, tenant("d", "e"))
    assert fragments.line(ROW, tenant("a", "c")) is fragments.line(ROW, tenant("a"))
    assert "a/x" not in fragments.line(ROW, tenant("c"))


def test_a_changed_row_has_a_new_line() -> None:
    fragments = RowFragments()
    before = fragments.line(ROW, tenant("a"))
    changed = ROW._replace(pods=(PodOnNode("a", "z", 2),))

    assert "a/x" in before
    assert fragments.line(changed, tenant("a")) == node_line(changed, tenant("a"))


def test_the_kept_lines_are_bounded() -> None:
    fragments = RowFragments()
    pods = tuple(PodOnNode(f"ns-{number}", "p", 1) for number in range(40))
    row = ROW._replace(pods=pods)
    for number in range(40):
        assert fragments.line(row, tenant(f"ns-{number}")) == node_line(row, tenant(f"ns-{number}"))

    assert max(len(forms) for *_, forms in fragments._lines.values()) <= 16


def test_a_page_of_shared_lines_is_the_page_without_them() -> None:
    service = file_service(cluster_text(20), "test")
    fragments = RowFragments()
    for viewer in (tenant("team-0"), tenant("team-1", "team-2"), tenant("team-0")):
        plain = overview_page(service.overview, service.history, PageQuery(), viewer)
        assert overview_page(service.overview, service.history, PageQuery(), viewer, fragments.line) == plain
