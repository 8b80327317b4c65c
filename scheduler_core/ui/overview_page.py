"""The page of the whole cluster, and the frame of every page, as HTML. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from gputopo.render.report import age_words, listed
from gputopo.render.wording import counted_noun
from scheduler_core.explain.text import reserved_words
from scheduler_core.planner.report.listing import FAILED_PHASES, GangSummary
from scheduler_core.planner.report.tables import phase_words, reason_words
from scheduler_core.ui.hidden_names import ANOTHER, visible_overview, without_hidden_names
from scheduler_core.ui.history import Change, History
from scheduler_core.ui.html import NOTHING, Html, address, element, joined, link, table_head, table_row, text, text_list
from scheduler_core.ui.model import GpuState, NodeGroup, NodeRow, Overview, PendingPod, Totals
from scheduler_core.ui.overview import totals
from scheduler_core.ui.rows_html import (
    ANYONE,
    LineOf,
    ShowName,
    Viewer,
    group_line,
    group_rows,
    islands_words,
    legend,
    node_line,
    state_bar,
)
from scheduler_core.ui.timeline import timeline

MAX_ROWS = 1200  # nodes on one page; larger clusters are shown by group
_MAX_GANGS = 200
_MAX_PENDING = 200
_MAX_CHANGES = 100
_NODE_TITLES = ("Node", "GPUs", "Free", "Pods", "Remarks")
_GROUP_TITLES = ("Nodes", "GPUs", "Free", "Free islands", "Remarks")
_REFRESH_S = 10  # without JavaScript


class PageQuery(NamedTuple):
    """The part of the cluster that a page shows: its address is its whole state."""

    group: str = ""  # the key of a group
    words: str = ""  # nodes that contain each of these words: in name, model, states, domains, pods or remarks
    free: int = 0  # nodes with at least so many free GPUs in one island
    errors: tuple[str, ...] = ()  # values that cannot be used

    @property
    def selects(self) -> bool:
        """Return whether only some nodes are shown."""
        return bool(self.group or self.words or self.free)


def overview_page(
    found: Overview,
    history: History,
    query: PageQuery = PageQuery(),  # noqa: B008  immutable
    viewer: Viewer = ANYONE,
    line: LineOf = node_line,
) -> Html:
    """Return the page of the cluster, or of the part that the query selects."""
    return page("GPUs of the cluster", main_part(found, history, query, viewer, line), viewer, refresh=True)


def main_part(found: Overview, history: History, query: PageQuery, viewer: Viewer, line: LineOf = node_line) -> Html:
    """Return the content of the page: live updates replace it, or parts of it."""
    found = visible_overview(found, viewer)
    groups = selected(found.groups, query, viewer.shown)
    rows = [row for group in groups for row in group.rows]
    return element(
        "main",
        *(element("p", text(each), class_="trouble", role="alert") for each in (*query.errors, *found.troubles)),
        element("p", text(found.notice), class_="note") if found.notice else NOTHING,
        summary_part(found, rows, query, viewer),
        _form(query) if viewer.live else NOTHING,
        _nodes(groups, query, viewer, line),
        element("details", element("summary", text("Legend")), legend()),
        *sections(found, history, viewer).values(),
        id="main",
        data_stale="" if found.troubles else None,
    )


def sections(found: Overview, history: History, viewer: Viewer) -> dict[str, Html]:
    """Return the parts below the nodes, by element id."""
    return {
        "gangs": _gangs(found, viewer),
        "pending": _pending(found, viewer),
        "preemptions": _preemptions(found, viewer),
        "reserved": _reserved(found, viewer.shown),
        "history": _history(history, viewer),
    }


def summary_part(found: Overview, rows: Sequence[NodeRow], query: PageQuery, viewer: Viewer = ANYONE) -> Html:
    """Return the counts: of the nodes shown, where the query selects some."""
    counted = totals(rows) if query.selects else found.totals
    degraded, draining = sum(bool(row.faults) for row in rows), sum(row.draining for row in rows)
    unknown, tainted = counted.count(GpuState.UNKNOWN), sum(row.tainted for row in rows)
    figures = [
        _Figure(counted.free if counted.free or not unknown else None, f"of {counted.gpus:,} GPUs free"),
        _figure(counted.nodes, "node"),
        *([] if query.selects else _cluster_figures(found)),
        _figure(unknown, "GPU", "free or used: unknown", _address_of(query, GpuState.UNKNOWN.value)),
        _figure(degraded, "node", "degraded", _address_of(query, "degraded")),
        _figure(draining, "node", "draining", _address_of(query, GpuState.DRAINING.value)),
        _figure(tainted, "node", "tainted", _address_of(query, GpuState.TAINTED.value)),
    ]
    numbers = (_figure_item(each, viewer) for each in figures if each.number or not each.target)
    sizes = [table_row(text(str(size)), text(f"{number:,}")) for size, number in counted.islands]
    by_size = element(
        "table",
        element("caption", text("Free in one island")),
        table_head(("GPUs", "islands")),
        element("tbody", *sizes),
        class_="islands",
    )
    words = islands_words(counted)
    return element(
        "section",
        element("ul", *numbers, class_="figures"),
        state_bar(counted, 480),
        by_size if sizes else element("p", text(f"{words[:1].upper()}{words[1:]}.")),
        element("p", text(_report_note(counted)), class_="note") if counted.lacking_report else NOTHING,
        id="summary",
        aria_live="polite",
    )


def _report_note(counted: Totals) -> str:
    """Return where the numbers come from if it is not reported which GPUs the pods hold."""
    nodes = counted_noun(counted.lacking_report, "node")
    return (
        f"On {nodes} it is not reported which GPUs the pods hold: their cells show ?. "
        "The numbers of used and free GPUs there follow from the pods' requests."
    )


class _Figure(NamedTuple):
    number: int | None  # None: unknown
    words: str
    target: str = ""  # address of a page, or of a part of this page, about it; "": none


def _figure(number: int, noun: str, more: str = "", target: str = "") -> _Figure:
    return _Figure(number, f"{noun}{'' if number == 1 else 's'} {more}".rstrip(), target)


def _cluster_figures(found: Overview) -> list[_Figure]:
    """Return the counts of what does not belong to nodes, and so is not filtered."""
    waiting = sum(gang.waiting_seconds is not None for gang in found.gangs)
    return [
        _figure(waiting, "gang", "waiting", "#gangs"),
        _figure(len(found.pending), "pod", "pending", "#pending"),
        _figure(sum(each.gpus for each in found.reserved), "GPU", "reserved", "#reserved"),
    ]


def _figure_item(figure: _Figure, viewer: Viewer) -> Html:
    number = "?" if figure.number is None else f"{figure.number:,}"
    shown = Html(element("strong", text(number)) + text(f" {figure.words}"))
    return element("li", element("a", shown, href=figure.target) if figure.target and viewer.live else shown)


def _address_of(query: PageQuery, words: str) -> str:
    return address("", group=query.group, q=words)


def selected(groups: Iterable[NodeGroup], query: PageQuery, shown: ShowName) -> list[NodeGroup]:
    """Return the groups with the nodes that the query selects."""
    if not query.selects:
        return list(groups)
    found = []
    for group in groups:
        if query.group and group.key != query.group:
            continue
        rows = tuple(row for row in group.rows if _is_selected(row, query, shown))
        if rows:
            found.append(group._replace(rows=rows, totals=totals(rows)))
    return found


def _is_selected(row: NodeRow, query: PageQuery, shown: ShowName) -> bool:
    if query.free and (row.in_one_island is None or row.in_one_island < query.free):
        return False
    pods = (pod.title for pod in row.pods if shown(pod.namespace))
    model = f"NVIDIA {row.product}" if row.product else ""
    states = {cell.state.value for cell in row.cells} | {state.value for state, _ in row.counts}
    properties = (("degraded", row.faults), ("draining", row.draining), ("tainted", row.tainted))
    states |= {name for name, applies in properties if applies}
    domains = (f"{level} {name}" for level, name in row.domains)
    found = "\n".join((row.name, model, *states, *domains, *row.notes, *row.faults, *pods)).casefold()
    return all(word in found for word in query.words.casefold().split())


def _form(query: PageQuery) -> Html:
    return element(
        "form",
        element("input", type="hidden", name="group", value=query.group) if query.group else NOTHING,
        element(
            "label", text("Find "), element("input", type="search", name="q", value=query.words, size=24, maxlength=100)
        ),
        element(
            "label",
            text("Free in one island, at least "),
            element("input", type="number", name="free", min=0, max=64, value=str(query.free or "")),
        ),
        element("button", text("Show"), type="submit"),
        link("all nodes", "") if query.selects else NOTHING,
        method="get",
        action="./",
        role="search",
    )


def _nodes(groups: Sequence[NodeGroup], query: PageQuery, viewer: Viewer, line: LineOf) -> Html:
    number = sum(len(group.rows) for group in groups)
    if not groups:
        return element("p", text("No GPU node matches." if query.selects else "This cluster has no GPU node yet."))
    if number > MAX_ROWS and len(groups) > 1 and viewer.live:
        return _table("Groups of nodes", _GROUP_TITLES, [element("tbody", *map(group_line, groups))])
    if len(groups) == 1:
        rows = groups[0].rows[:MAX_ROWS]
        bodies = [element("tbody", *(line(row, viewer) for row in rows))]
        title = groups[0].title if number <= MAX_ROWS else f"{groups[0].title}: the first {MAX_ROWS} of {number} nodes"
        return _table(title, _NODE_TITLES, bodies)
    return _table("Nodes", _NODE_TITLES, [body for group in groups for body in group_rows(group, viewer, line)])


def _section(name: str, title: str, *parts: Html) -> Html:
    return element("section", element("h2", text(title)), *parts, id=name)


def _table(caption: str, titles: Sequence[str], bodies: Iterable[Html]) -> Html:
    return element(
        "div",
        element("table", element("caption", text(caption)), table_head(titles), *bodies, class_="nodes"),
        class_="wide",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _gangs(found: Overview, viewer: Viewer) -> Html:
    gangs = [gang for gang in found.gangs if viewer.shown(gang.namespace)]
    hidden = len(found.gangs) - len(gangs)
    rows = [_gang_line(gang, viewer) for gang in gangs[:_MAX_GANGS]]
    more = len(gangs) - len(rows)
    remarks = [f"{more} more gangs"] * bool(more) + [f"{hidden} gangs of other namespaces"] * bool(hidden)
    if not found.gangs:
        return element("section", id="gangs")
    return _section(
        "gangs",
        "Gangs",
        _table("Gangs", ("Gang", "Phase", "Members", "GPUs", "Waiting", "Reason"), [element("tbody", *rows)]),
        *(element("p", text(remark)) for remark in remarks),
    )


def _gang_line(gang: GangSummary, viewer: Viewer) -> Html:
    name = f"{gang.namespace}/{gang.name}"
    size = "?" if gang.size is None else str(gang.size)
    waiting = "" if gang.waiting_seconds is None else age_words(gang.waiting_seconds)
    phase = element("span", text(phase_words(gang)), class_="fault" if gang.phase in FAILED_PHASES else "phase")
    return table_row(
        element("span", viewer.link(name, "gang", namespace=gang.namespace, name=gang.name), class_="name"),
        phase,
        text(f"{gang.there} of {size}, {gang.bound} bound"),
        text("?" if gang.gpus is None else str(gang.gpus)),
        text(waiting),
        text(reason_words(gang)),
    )


def _pending(found: Overview, viewer: Viewer) -> Html:
    """Return the pods without a node; gangs have a table of their own."""
    if not found.pending:
        return element("section", id="pending")
    shown = [pod for pod in found.pending if viewer.shown(pod.namespace)]
    hidden = len(found.pending) - len(shown)
    more = len(shown) - _MAX_PENDING
    remarks = [counted_noun(more, "more pod")] * (more > 0) + [
        f"{counted_noun(hidden, 'pod')} of other namespaces"
    ] * bool(hidden)
    rows = [_pending_line(pod, viewer) for pod in shown[:_MAX_PENDING]]
    return _section(
        "pending",
        "Pending pods",
        _table("Pending pods", ("Pod", "GPUs", "Priority", "Scheduler", "Reason"), [element("tbody", *rows)])
        if rows
        else NOTHING,
        *(element("p", text(remark)) for remark in remarks),
    )


def _pending_line(pod: PendingPod, viewer: Viewer) -> Html:
    name = viewer.link(f"{pod.namespace}/{pod.name}", "pod", namespace=pod.namespace, name=pod.name)
    facts = (str(pod.gpus), str(pod.priority), pod.scheduler or "", pod.reason)
    return table_row(element("span", name, class_="name"), *map(text, facts))


def _preemptions(found: Overview, viewer: Viewer) -> Html:
    """Return the evictions in progress: for which gang, how many pods, and which."""
    if not found.preemptions:
        return element("section", id="preemptions")
    rows = []
    for each in found.preemptions[:_MAX_GANGS]:
        is_shown = viewer.shown(each.namespace)
        name = f"{each.namespace}/{each.gang}"
        gang = viewer.link(name, "gang", namespace=each.namespace, name=each.gang) if is_shown else text(ANOTHER)
        ended = "?" if each.pods_left is None else str(each.pods - each.pods_left)
        stuck = element("span", text(f"; {len(each.stuck)} stuck"), class_="fault") if each.stuck else NOTHING
        rows.append(
            table_row(
                gang,
                Html(text(f"{ended} of {each.pods} pods ended") + stuck),
                text(listed(each.units)),
                text(f"{each.gpu_hours:.1f}"),
                text(each.present_reason if is_shown else ""),
            )
        )
    titles = ("For the gang", "Evictions", "Gangs and pods that are evicted", "GPU-hours lost", "Reason")
    return _section("preemptions", "Preemptions", _table("Preemptions", titles, [element("tbody", *rows)]))


def _reserved(found: Overview, shown: ShowName) -> Html:
    if not found.reserved:
        return element("section", id="reserved")
    lines = [
        reserved_words(each) if shown(each.reservation.partition("/")[0]) else f"{each.gpus} GPUs, another namespace"
        for each in found.reserved[:_MAX_GANGS]
    ]
    return _section("reserved", "Reserved GPUs", text_list(lines))


def _history(history: History, viewer: Viewer) -> Html:
    changes = list(history.changes)[::-1][:_MAX_CHANGES]
    if not history.samples or (len(history.samples) < 2 and not changes and viewer.recorded):
        return element("section", id="history")
    items = (element("li", element("time", text(clock(each.at))), text(f" {_words(each, viewer)}")) for each in changes)
    words = [] if viewer.recorded else [f"Recorded since {clock(history.samples[0].at)} UTC."]
    words += [] if changes else ["Nothing has changed."]
    note = element("p", text(" ".join(words))) if words else NOTHING
    return _section("history", "The last hour", timeline(history.samples), note, element("ul", *items))


def _words(change: Change, viewer: Viewer) -> str:
    is_shown = change.namespace is None or viewer.shown(change.namespace)
    return without_hidden_names(change.words, viewer) if is_shown else change.without_name


def clock(at: float) -> str:
    """Return the time of day, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def recorded_words(at: float | None) -> str:
    """Return when a cluster was recorded. ``at``: seconds since 1970; None: unknown."""
    if at is None:
        return "recorded at an unknown time"
    return f"recorded {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def page(title: str, main: Html, viewer: Viewer = ANYONE, *, refresh: bool = False) -> Html:
    """Return a whole page. ``refresh``: the page is kept up to date."""
    live = viewer.live and refresh and not viewer.recorded
    style = (
        element("style", Html(viewer.style))
        if viewer.style
        else element("link", rel="stylesheet", href=address("ui.css"))
    )
    reload = element("meta", http_equiv="refresh", content=str(_REFRESH_S))
    head = (
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", text(f"{title} - gputopo")),
        style,
        element("link", rel="icon", href="icon.svg") if viewer.live else NOTHING,
        element("script", src="ui.js", type="module") if live else NOTHING,
        element("noscript", reload) if live else NOTHING,
    )
    links = (link("Cluster", ""), link("Where would it fit?", "where")) if viewer.live and viewer.navigable else ()
    log_out = element("form", element("button", text("Log out"), type="submit"), method="post", action="logout")
    top = element(
        "header",
        element("h1", text(title)),
        element("nav", joined(links, " ")) if links else NOTHING,
        element("span", id="state", role="status") if live else NOTHING,
        element("noscript", element("span", text(f"refreshed every {_REFRESH_S} s"), class_="recorded"))
        if live
        else NOTHING,
        element("span", text(viewer.recorded), class_="recorded") if viewer.recorded else NOTHING,
        log_out if viewer.logged_in else NOTHING,
    )
    return Html(f"<!doctype html>\n{element('html', element('head', *head), element('body', top, main), lang='en')}\n")
