"""A path between two GPUs as text."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from gputopo.paths import PathKind

if TYPE_CHECKING:
    from gputopo.paths import Path

_CARRIERS = {
    PathKind.NVLINK: "NVLink",
    PathKind.NVSWITCH: "NVLink through NVSwitch",
    PathKind.NVLINK_HOPS: "PCIe (NVLink only through other GPUs)",
    PathKind.PCIE: "PCIe",
    PathKind.NONE: "no path",
    PathKind.UNKNOWN: "unknown",
}


def render_path(path: Path, *, ascii_only: bool = False, columns: int | None = None) -> str:
    """Return a line with link and bandwidth, and below it the reasons; longer lines are folded at ``columns``."""
    arrow, bullet = ("<->", "-") if ascii_only else ("↔", "•")
    reasons = [f"  {bullet} {reason}" for reason in path.why]
    lines = [f"GPU{path.a} {arrow} GPU{path.b}: {_answer(path)}", *reasons]
    if columns is not None:
        lines = [part for line in lines for part in wrap(line, columns, subsequent_indent="    ")]
    return "\n".join(lines) + "\n"


def _answer(path: Path) -> str:
    if path.kind in (PathKind.NONE, PathKind.UNKNOWN):
        return _CARRIERS[path.kind]
    rate = "bandwidth unknown" if path.gbps is None else f"at most {path.gbps:g} GB/s both ways"
    over_nvlink = path.kind in (PathKind.NVLINK, PathKind.NVSWITCH)
    detail = f" ({path.lanes} lane{'s' if path.lanes != 1 else ''})" if over_nvlink else ""
    return f"{_CARRIERS[path.kind]}{detail}, {rate}"
