"""The texts around the drawing: title, badges, faults, unknown facts, legend. No coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gputopo.model import Health, Interconnect
from gputopo.render.svg.marks import Marks, part_name
from gputopo.render.svg.nic_names import shortened_names
from gputopo.render.svg.words import TIMES, counted_products, fit, text_width
from gputopo.render.wording import CPU_NAME, escape_invisible, format_number

if TYPE_CHECKING:
    from gputopo.model import Island, Link, NodeTopology, Uplink

SUBTITLE_TEXT = 13.0
_MOST_NOTES = 4
_MOST_LINES = 6  # NVLink widths that the legend lists
_MOST_NAMES = 24  # network cards with shortened names
_MOST_ISLANDS = 8  # letters in a line of the legend


class Badge(NamedTuple):
    """A badge at the top right of the card."""

    text: str
    bad: bool


class Note(NamedTuple):
    """A note below the drawing."""

    what: str
    why: str
    bad: bool


class LegendEntry(NamedTuple):
    """An entry of the legend. ``sample``: the symbol before the text."""

    sample: str  # island | alone | unknown | line | c2c | down | lost | mig | nic
    text: str
    lanes: int = 0  # of a line
    islands: tuple[int, ...] = ()  # all islands of the entry


def title(topology: NodeTopology) -> str:
    """Return the machine's name, or a description."""
    return escape_invisible(topology.machine or "") or hardware(topology)


def subtitle(topology: NodeTopology, room: float) -> tuple[str, ...]:
    """Return products (unless they are the title) and known versions, in one line, or two if one is too short."""
    products = "" if title(topology) == hardware(topology) else hardware(topology)
    driver = f"driver {escape_invisible(topology.driver_version)}" if topology.driver_version else ""
    cuda = f"CUDA {escape_invisible(topology.cuda_version)}" if topology.cuda_version else ""
    versions = " · ".join(each for each in (driver, cuda) if each)
    line = " · ".join(each for each in (products, versions) if each)
    lines = (line,) if text_width(line, SUBTITLE_TEXT) <= room else (products, versions)
    return tuple(fit(each, SUBTITLE_TEXT, room) for each in lines if each)


def hardware(topology: NodeTopology) -> str:
    """Return the number of GPUs of each product."""
    return counted_products(topology.gpus) if topology.gpus else "no GPU found"


def badges(topology: NodeTopology) -> tuple[Badge, ...]:
    """Return the badges: faults, and GPUs that are not visible."""
    degraded = (Badge(f"{len(topology.degraded)} DEGRADED", bad=True),) if topology.degraded else ()
    return degraded + ((Badge("PARTIAL VIEW", bad=False),) if topology.partial else ())


def notes(topology: NodeTopology) -> tuple[Note, ...]:
    """Return notes about degraded parts, then about unknown facts, grouped by cause; the last line counts the rest."""
    bad = [Note(part_name(each.what), escape_invisible(each.why), bad=True) for each in topology.degraded]
    causes: dict[tuple[str, str], list[str]] = {}
    for problem in topology.problems:
        causes.setdefault((problem.kind.value, problem.why), []).append(problem.what)
    unsure = [
        Note(
            part_name(whats[0]) + (f" and {len(whats) - 1} more" if len(whats) > 1 else ""),
            escape_invisible(why),
            bad=False,
        )
        for (_, why), whats in causes.items()
    ]
    return _at_most(bad) + _at_most(unsure)


def legend(topology: NodeTopology, marks: Marks) -> tuple[LegendEntry, ...]:
    """Return entries for every symbol in the drawing."""
    healthy = [gpu for gpu in topology.gpus if gpu.usable]
    alone = [gpu for gpu in healthy if gpu.index not in marks.number and not gpu.mig_enabled]
    entries = _island_entries(marks)
    if alone:
        entries.append(_alone(topology, marks))
    entries += _lines(topology, marks)
    entries += _c2c_lines(topology)
    entries += _faults(topology, marks)
    if any(gpu.mig_enabled for gpu in topology.gpus):
        entries.append(LegendEntry("mig", "MIG: cut into slices, no NVLink"))
    if topology.nics:
        entries.append(LegendEntry("nic", "network card"))
    names = shortened_names(topology)
    entries += [LegendEntry("nic", f"{label} = {name}") for label, name in names[:_MOST_NAMES]]
    if len(names) > _MOST_NAMES:
        entries.append(LegendEntry("nic", f"{len(names) - _MOST_NAMES} more shortened names"))
    return tuple(entries)


def fabric_name(topology: NodeTopology, uplinks: list[Uplink]) -> tuple[str, list[str]]:
    """Return the texts on a fabric: its name, then facts, the most important first."""
    lanes = {up.lanes for up in uplinks if up.lanes}
    rates = sorted({up.gbps or 0.0 for up in uplinks if up.lanes})
    attached = sum(up.lanes > 0 for up in uplinks)
    parts = [f"{attached} {TIMES} NV{lanes.pop()}" if len(lanes) == 1 else f"{attached} GPUs"]
    if rates and rates[0]:  # known for every GPU
        span = (
            format_number(rates[0]) if len(rates) == 1 else f"{format_number(rates[0])} to {format_number(rates[-1])}"
        )
        parts.append(f"{span} GB/s per GPU")
    if topology.fabric is not None:
        parts.append(f"spans machines, clique {topology.fabric.clique}")
    name = "NVSwitch fabric, assumed" if any(up.assumed for up in uplinks) else "NVSwitch fabric"
    return name, parts


def _at_most(lines: list[Note]) -> tuple[Note, ...]:
    if len(lines) <= _MOST_NOTES:
        return tuple(lines)
    rest = len(lines) - _MOST_NOTES + 1
    return (*lines[: _MOST_NOTES - 1], Note(f"{rest} more", "", bad=lines[0].bad))


def island_text(island: Island) -> str:
    """Return the description of an island, in a line."""
    means = {Interconnect.NVSWITCH: "NVSwitch", Interconnect.NVLINK: "NVLink"}[island.interconnect]
    rate = "" if island.gbps is None else f" · {format_number(island.gbps)} GB/s per GPU"
    return f"{island.size} GPUs · {means}{rate}"


def _island_entries(marks: Marks) -> list[LegendEntry]:
    """Return an entry for all islands of a kind."""
    kinds: dict[str, list[int]] = {}
    for place, island in enumerate(marks.islands):
        kinds.setdefault(island_text(island), []).append(place)
    return [
        LegendEntry("island", _of_each(kind, len(places)), islands=tuple(places[:_MOST_ISLANDS]))
        for kind, places in kinds.items()
    ]


def _of_each(kind: str, count: int) -> str:
    more = f"and {count - _MOST_ISLANDS} more: " if count > _MOST_ISLANDS else ""
    return f"{more}each {kind}" if count > 1 else kind


def _alone(topology: NodeTopology, marks: Marks) -> LegendEntry:
    if not marks.known:
        return LegendEntry("unknown", "NVLinks unknown")
    if topology.uncertain_gpus - marks.number.keys():
        return LegendEntry("unknown", "NVLinks not fully known: see the caveats")
    only = not marks.islands
    if only and len(topology.gpus) > 1:
        return LegendEntry("alone", "no NVLink: these GPUs talk over PCIe")
    return LegendEntry("alone", "GPU without NVLink neighbour")


def _lines(topology: NodeTopology, marks: Marks) -> list[LegendEntry]:
    """Return an entry per drawn NVLink width, with the bandwidth if it is known and the same for all."""
    rates: dict[int, set[float | None]] = {}
    for edge in _edges(topology):
        if edge.lanes and not marks.is_degraded(edge):
            rates.setdefault(edge.lanes, set()).add(edge.gbps)
    entries = []
    for lanes, seen in sorted(rates.items())[:_MOST_LINES]:
        rate = next(iter(seen)) if len(seen) == 1 else None
        unit = f"{format_number(rate)} GB/s" if rate else f"{lanes} NVLink" + ("s" if lanes > 1 else "")
        entries.append(LegendEntry("line", f"NV{lanes} · {unit}", lanes))
    return entries


def _c2c_lines(topology: NodeTopology) -> list[LegendEntry]:
    """Return the entry of the links between GPUs and CPUs, with the bandwidth if it is the same for all."""
    rates = {gpu.c2c.gbps for gpu in topology.gpus if gpu.c2c is not None}
    if not rates:
        return []
    rate = next(iter(rates)) if len(rates) == 1 else None
    return [LegendEntry("c2c", f"NVLink-C2C to the {CPU_NAME}" + (f" · {format_number(rate)} GB/s" if rate else ""))]


def _edges(topology: NodeTopology) -> tuple[Link | Uplink, ...]:
    return () if topology.nvlink is None else (*topology.nvlink.links, *topology.nvlink.uplinks)


def _faults(topology: NodeTopology, marks: Marks) -> list[LegendEntry]:
    entries = []
    if any(marks.is_degraded(edge) for edge in _edges(topology)):
        entries.append(LegendEntry("down", "NVLinks missing"))
    if any(gpu.health is Health.LOST for gpu in topology.gpus):
        entries.append(LegendEntry("lost", "lost GPU"))
    return entries
