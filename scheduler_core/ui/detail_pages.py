"""The pages of a node, a pod and a gang, and of the form "where would it fit", as HTML. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler_core.ui.html import NOTHING, Html, address, element, link, table_head, table_row, text, text_list
from scheduler_core.ui.model import NodeRow
from scheduler_core.ui.overview_page import page
from scheduler_core.ui.rows_html import ANYONE, Viewer, legend, node_cells, pod_mark, pod_name
from scheduler_core.ui.where import MAX_GPUS, MAX_PODS, WhereAnswer, WhereQuery


def node_page(row: NodeRow, *, has_drawing: bool, viewer: Viewer = ANYONE) -> Html:
    """Return the page of a node: its GPUs, its pods, its faults, and the drawing of the machine."""
    facts = [row.summary, *row.notes, *(f"{level} {name}" for level, name in row.domains)]
    pods = [
        table_row(
            pod_mark(pod, place, viewer),
            element("span", pod_name(pod, viewer), class_="name"),
            text(", ".join(_gpus_of(row, place)) or "not reported yet"),
        )
        for place, pod in enumerate(row.pods)
    ]
    drawing = element(
        "img",
        src=address("node.svg", name=row.name),
        alt=f"GPUs, NVLinks and NUMA nodes of {row.name}",
        class_="drawing",
    )
    return page(
        f"Node {row.name}",
        element(
            "main",
            element("p", text(row.product or "unknown GPUs")),
            element("p", node_cells(row, viewer)),
            text_list(facts),
            text_list(row.faults, "fault") if row.faults else NOTHING,
            element(
                "table",
                element("caption", text("Pods with GPUs")),
                table_head(("Mark", "Pod", "GPUs")),
                element("tbody", *pods),
            )
            if pods
            else element("p", text("No pod holds GPUs here.")),
            drawing if has_drawing else NOTHING,
            element("details", element("summary", text("Legend")), legend()),
            id="main",
        ),
        viewer,
        refresh=True,
    )


def _gpus_of(row: NodeRow, place: int) -> list[str]:
    return [str(cell.gpu) for cell in row.cells if place in cell.pods]


def text_page(title: str, report: str, viewer: Viewer = ANYONE) -> Html:
    """Return a page of a report for people, as ``gputopo why`` prints it."""
    region = element("pre", text_lines(report), tabindex=0, role="region", aria_label=title)
    return page(title, element("main", region, id="main"), viewer)


def text_lines(report: str) -> Html:
    """Return lines of text as markup."""
    return Html("\n".join(text(line) for line in report.splitlines()))


def where_page(
    query: WhereQuery, answer: WhereAnswer | None, errors: Sequence[str] = (), viewer: Viewer = ANYONE
) -> Html:
    """Return the form, with the answer."""
    form = element(
        "form",
        _number("Pods ", "pods", query.pods, MAX_PODS),
        _number("GPUs of each ", "gpus", query.gpus, MAX_GPUS),
        element(
            "label",
            element("input", type="checkbox", name="island", value="1", checked="" if query.island else None),
            text(" the GPUs of a pod in one NVLink island"),
        ),
        element("label", text("GPU model "), element("input", name="model", value=query.model, size=16, maxlength=63)),
        element("button", text("Where?"), type="submit"),
        method="get",
        action="where",
    )
    parts = [element("p", text(error), class_="trouble", role="alert") for error in errors]
    if answer is not None:
        parts.append(element("p", text(answer.words), class_="answer", role="status"))
        parts += [_seat_table(answer)] if answer.seats else []
    return page("Where would it fit?", element("main", form, *parts, id="main"), viewer)


def _number(title: str, name: str, value: int, most: int) -> Html:
    field = element("input", type="number", name=name, min=1, max=most, required="", value=str(value))
    return element("label", text(title), field)


def _seat_table(answer: WhereAnswer) -> Html:
    rows = (
        table_row(element("span", link(node, "node", name=node), class_="name"), text(str(pods)), text(str(gpus)))
        for node, pods, gpus in answer.seats
    )
    return element("table", table_head(("Node", "Pods", "GPUs")), element("tbody", *rows))
