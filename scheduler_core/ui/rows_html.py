"""The map of GPUs as HTML: a row of cells for each node. Pure. The colours are in ``assets/ui.css``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple
from zlib import crc32

from gputopo.render.wording import counted_noun
from scheduler_core.ui.html import NOTHING, Html, element, joined, link, table_row, text
from scheduler_core.ui.model import GpuCell, GpuState, IslandCells, NodeGroup, NodeRow, PodOnNode, Totals

# The class and the sign of each state: no state is shown by its colour alone.
SIGNS = {
    GpuState.FREE: ("f", ""),
    GpuState.RESERVED: ("r", "R"),
    GpuState.MAY_BE_RESERVED: ("m", "r"),
    GpuState.DRAINING: ("d", "-"),
    GpuState.TAINTED: ("n", "T"),
    GpuState.USED: ("u", "■"),
    GpuState.PENDING: ("p", "…"),
    GpuState.SHARED: ("s", "◧"),
    GpuState.UNAVAILABLE: ("x", "/"),
    GpuState.UNKNOWN: ("q", "?"),
}
MEANINGS = {
    GpuState.FREE: "free",
    GpuState.RESERVED: "free, reserved for a gang or a planned pod",
    GpuState.MAY_BE_RESERVED: "free; the kubelet takes the reserved GPUs from these",
    GpuState.DRAINING: "draining: unused, but the node is cordoned or about to be removed",
    GpuState.TAINTED: "tainted: unused, but a taint of the node keeps ordinary pods away",
    GpuState.USED: "used; letters name the pods of the row",
    GpuState.PENDING: "about to be used or freed; the kubelet has not reported it",
    GpuState.SHARED: "shared: pods hold shares or MIG devices",
    GpuState.UNAVAILABLE: "unavailable: lost, or not offered by the device plugin",
    GpuState.UNKNOWN: "unknown: it is not reported which GPUs the pods hold",
}
_MAX_PODS = 4  # named in a row
_MAX_IN_LINE = 8  # GPUs that even a narrow screen shows side by side
_MAX_LINES, _MAX_FORMS = 20_000, 16  # nodes whose lines are kept, and lines of each
_TINTS, _NOTCHES = 6, 4  # colours of namespaces, and shapes of a mark's corner: a namespace has one of each
_MAX_NAMED = 3  # pods of a shared GPU
ShowName = Callable[[str], bool]  # of a namespace: whether the viewer may see its pods


class Viewer(NamedTuple):
    """The names that the viewer may see, and the form of the page."""

    namespaces: frozenset[str] | None = None  # whose pods and gangs are named; None: all
    hidden: frozenset[str] = frozenset()  # the other namespaces of the cluster
    logged_in: bool = False  # by a cookie
    navigable: bool = True  # with links to the other pages
    live: bool = True  # False: a file that is sent by mail, without links
    style: str = ""  # the style sheet, for a file; "": linked
    recorded: str = ""  # when the cluster was recorded, in words; "": the pages are kept up to date

    def shown(self, namespace: str) -> bool:
        """Return whether the viewer may see the names of a namespace's pods and gangs."""
        return self.namespaces is None or namespace in self.namespaces

    def link(self, words: str, page: str, /, **query: str | int | None) -> Html:
        """Return a link to a page, where there are pages."""
        return link(words, page, **query) if self.live else text(words)


ANYONE = Viewer()
LineOf = Callable[[NodeRow, Viewer], Html]  # ``node_line``, or ``RowFragments.line``


def legend() -> Html:
    """Return the meaning of each cell."""
    items = (
        element("li", element("b", text(sign), class_=name, aria_hidden="true"), text(f" {MEANINGS[state]}"))
        for state, (name, sign) in SIGNS.items()
    )
    degraded = element("li", element("b", class_="f bad", aria_hidden="true"), text(" degraded hardware"))
    joined_gpus = element(
        "li",
        element("span", element("b", class_="f"), element("b", class_="f"), class_="isl", aria_hidden="true"),
        text(" joined by NVLink"),
    )
    namespaces = element(
        "li",
        element("b", text("a"), class_="u t1", aria_hidden="true"),
        element("b", text("b"), class_="u t1 k1", aria_hidden="true"),
        text(
            " the colour and the corner stand for the namespace; several may share them: point at a cell for the name"
        ),
    )
    return element("ul", *items, degraded, joined_gpus, namespaces, class_="legend")


def node_cells(row: NodeRow, viewer: Viewer = ANYONE) -> Html:
    """Return the cells of a node, island by island. For the eye only: ``NodeRow.summary`` says the same in words."""
    islands = (_island(row, island, viewer) for island in row.islands)
    name = "gpus" if len(row.cells) > _MAX_IN_LINE else "gpus line"
    return element("span", *islands, class_=name, aria_hidden="true")


def _island(row: NodeRow, island: IslandCells, viewer: Viewer) -> Html:
    cells = (_cell(row, cell, viewer) for cell in island.cells)
    return element("span", *cells, class_="isl" if island.joined else "one")


def _cell(row: NodeRow, cell: GpuCell, viewer: Viewer) -> Html:
    name, sign = SIGNS[cell.state]
    if cell.pods and cell.state is GpuState.USED:
        sign = pod_letter(cell.pods[0])
        name = f"{name} {_tint(row.pods[cell.pods[0]], viewer)}"
    return element("b", text(sign), class_=f"{name} bad" if cell.degraded else name, title=_holders(row, cell, viewer))


def _holders(row: NodeRow, cell: GpuCell, viewer: Viewer) -> str | None:
    """Return the names of the pods that hold a GPU: colours and letters repeat."""
    names = [
        row.pods[place].title if viewer.shown(row.pods[place].namespace) else "another namespace's pod"
        for place in cell.pods[:_MAX_NAMED]
    ]
    more = [f"{len(cell.pods) - _MAX_NAMED} more"] if len(cell.pods) > _MAX_NAMED else []
    return f"GPU {cell.gpu}: {', '.join([*names, *more])}" if names else None


def pod_letter(place: int) -> str:
    """Return the letter of a pod in its row: a, b, ... z, then +."""
    return chr(ord("a") + place) if place < 26 else "+"


def node_line(row: NodeRow, viewer: Viewer = ANYONE) -> Html:
    """Return the table row of a node. Its id names the node: live updates replace it."""
    remarks = [element("span", text(note), class_="note") for note in row.notes]
    if row.faults:
        words = row.faults[0] if len(row.faults) == 1 else f"{row.faults[0]} (+{len(row.faults) - 1})"
        remarks.append(element("span", text(words), class_="fault"))
    return table_row(
        element("span", viewer.link(row.name, "node", name=row.name), class_="name"),
        node_cells(row, viewer),
        text(row.summary),
        pod_names(row, viewer),
        joined(remarks, ", "),
        id=row_id(row.name),
    )


class RowFragments:
    """The lines of nodes, each rendered once for all viewers who see the same of it. For one thread.

    A line depends on the row, and on the namespaces of its pods that the viewer may see. With many tenants, most of
    them may see the pods of few nodes, so that they share most lines.
    """

    def __init__(self) -> None:
        self._lines: dict[str, tuple[NodeRow, tuple[str, ...], dict[tuple[bool, ...], Html]]] = {}

    def line(self, row: NodeRow, viewer: Viewer) -> Html:
        """Return ``node_line``."""
        known = self._lines.get(row.name)
        if known is None or known[0] is not row:
            if len(self._lines) >= _MAX_LINES:
                self._lines.clear()
            known = self._lines[row.name] = row, tuple({pod.namespace for pod in row.pods}), {}
        _, namespaces, forms = known
        seen = (viewer.live, *map(viewer.shown, namespaces))
        if seen not in forms:
            if len(forms) >= _MAX_FORMS:
                forms.clear()
            forms[seen] = node_line(row, viewer)
        return forms[seen]


def row_id(name: str) -> str:
    """Return the element id of a node's row."""
    return f"node-{name}"


def pod_names(row: NodeRow, viewer: Viewer) -> Html:
    """Return the pods with their letters; without names those of namespaces that the viewer may not list."""
    parts = [
        element("span", pod_mark(pod, place, viewer), text(" "), pod_name(pod, viewer), class_="pod")
        for place, pod in enumerate(row.pods[:_MAX_PODS])
    ]
    if len(row.pods) > _MAX_PODS:
        more = viewer.link(f"+{len(row.pods) - _MAX_PODS} more", "node", name=row.name)
        parts.append(element("span", more, class_="pod"))
    return joined(parts, " ")


def pod_mark(pod: PodOnNode, place: int, viewer: Viewer = ANYONE) -> Html:
    """Return the letter of a pod in the colour of its namespace."""
    return element("i", text(pod_letter(place)), class_=_tint(pod, viewer))


def _tint(pod: PodOnNode, viewer: Viewer) -> str:
    """Return the classes of a namespace's colour and corner; hidden namespaces share one. They repeat."""
    if not viewer.shown(pod.namespace):
        return "th"
    notch, tint = divmod(crc32(pod.namespace.encode()) % (_TINTS * _NOTCHES), _TINTS)
    return f"t{tint} k{notch}" if notch else f"t{tint}"


def pod_name(pod: PodOnNode, viewer: Viewer) -> Html:
    """Return the pod as a link, with its number of GPUs."""
    count = f" ({pod.gpus}{', reserved' if pod.reserved else ''})"
    if not viewer.shown(pod.namespace):
        return text(f"another namespace's pod{count}")
    if not pod.name:
        return text(f"a pod not listed{count}")
    return Html(viewer.link(pod.title, "pod", namespace=pod.namespace, name=pod.name) + text(count))


def totals_words(totals: Totals) -> str:
    """``14 of 96 GPUs free; free islands 8: 1, 4: 2``."""
    return f"{free_words(totals)}; {islands_words(totals)}"


def free_words(totals: Totals) -> str:
    """Return the number of free GPUs: ``14 of 96 GPUs free``. A number that is unknown is not zero."""
    unknown = totals.count(GpuState.UNKNOWN)
    if not unknown:
        return f"{totals.free} of {totals.gpus} GPUs free"
    if totals.free:
        return f"at least {totals.free} of {totals.gpus} GPUs free, {unknown} unknown"
    return f"{counted_noun(totals.gpus, 'GPU')}, free: unknown"


def islands_words(totals: Totals) -> str:
    """Return the number of free islands by their free GPUs: ``free islands 8: 1, 4: 2``."""
    if not totals.islands:
        if totals.free:
            return "NVLink islands of the free GPUs: unknown"
        return "free islands: unknown" if totals.count(GpuState.UNKNOWN) else "no free island"
    more = totals.free_in_unknown_islands
    return f"free islands {_island_sizes(totals)}" + (f"; {more} free in unknown islands" if more else "")


def _island_sizes(totals: Totals) -> str:
    return ", ".join(f"{size}: {number}" for size, number in totals.islands)


def group_rows(group: NodeGroup, viewer: Viewer, line: LineOf = node_line) -> Iterable[Html]:
    """Return the head of a group and its rows, as one table body."""
    head = element(
        "tr",
        element(
            "th",
            viewer.link(group.title, "./", group=group.key),
            element("small", text(f" {counted_noun(group.totals.nodes, 'node')}, {totals_words(group.totals)}")),
            colspan=5,
            scope="rowgroup",
        ),
        class_="group",
    )
    yield element("tbody", head, *(line(row, viewer) for row in group.rows))


def group_line(group: NodeGroup) -> Html:
    """Return a group as one row of a large cluster's page."""
    totals = group.totals
    return table_row(
        link(group.title, "./", group=group.key),
        state_bar(totals),
        text(f"{counted_noun(totals.nodes, 'node')}, {free_words(totals)}"),
        text(islands_words(totals).removeprefix("free islands ")),
        text(_faults_words(group)),
    )


def _faults_words(group: NodeGroup) -> str:
    numbers = {
        "degraded": sum(bool(row.faults) for row in group.rows),
        "draining": sum(row.draining for row in group.rows),
        "tainted": sum(row.tainted for row in group.rows),
    }
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number)


def state_bar(totals: Totals, width: int = 240) -> Html:
    """Return the share of each state as a bar, for the eye only."""
    parts, x = [NOTHING], 0.0
    for state, number in totals.by_state:
        wide = width * number / max(1, totals.gpus)
        parts.append(element("rect", x=x, y=0, width=wide, height=14, class_=SIGNS[state][0]))
        x += wide
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width} 14",
        width=width,
        height=14,
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
    )
