"""Values of the model as text: names, sizes, rates, island letters.

Every text from hardware or a file passes ``visible`` before it reaches a terminal or a drawing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gputopo.model import C2c, Link, NodeTopology, Uplink

    Cell = tuple[str, str]  # role, text
    Paint = Callable[[str, str], str]  # (role, text) -> text with colour or markup

ALONE = "alone"  # the mark of a GPU without NVLink to another GPU
UNKNOWN = "?"
MAX_NAME = 253  # characters: no name in Kubernetes is longer, but a file may contain longer ones
_TOO_LONG = re.compile(rf"[^\s/,]{{{MAX_NAME + 1},}}")  # NAMESPACE/NAME has two names
CPU_NAME = "CPU"  # that of a superchip: Grace, Vera


def without_colour(role: str, text: str) -> str:  # noqa: ARG001  the signature of a Paint
    """No colour: the text as it is.

    Roles: ``text`` ``title`` ``frame`` ``dim`` ``nic`` ``bad`` ``unknown``; by letter ``island-0``, ``island-1`` ...
    """
    return text


def escape_invisible(text: str, *, ascii_only: bool = False) -> str:
    """Return the text with every invisible and control character escaped."""
    if text.isprintable() and (text.isascii() or not ascii_only):
        return text
    return "".join(_shown(char, ascii_only=ascii_only) for char in text)


def _shown(char: str, *, ascii_only: bool) -> str:
    if char.isprintable() and (char.isascii() or not ascii_only):
        return char
    return char.encode("unicode_escape").decode("ascii")


def gpu_names(indices: Iterable[int]) -> str:
    """``(0, 1, 2, 5, 6)`` is ``GPU0-2,5,6``."""
    names = (f"{a}{'-' if b > a + 1 else ','}{b}" if b > a else str(a) for a, b in runs(indices))
    return "GPU" + ",".join(names)


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run: ``(7, 0, 1, 2)`` is ``[(0, 2), (7, 7)]``."""
    found: list[tuple[int, int]] = []
    for each in sorted(numbers):
        if found and each == found[-1][1] + 1:
            found[-1] = found[-1][0], each
        else:
            found.append((each, each))
    return found


def shorten_names(text: str) -> str:
    """Return the text, of each longer name than ``MAX_NAME`` only the beginning and ``...``."""
    return text if len(text) <= MAX_NAME else _TOO_LONG.sub(lambda found: f"{found[0][: MAX_NAME - 3]}...", text)


def format_number(value: float) -> str:
    """Return a number with at most one decimal: ``600``, ``112.5``."""
    return f"{value:.1f}".removesuffix(".0")


def format_gib(mib: int) -> str:
    """Return a size in GiB: ``79.6 GiB``, ``1007 GiB``."""
    size = mib / 1024
    return f"{size:.0f} GiB" if size >= 100 else f"{format_number(size)} GiB"


def format_c2c(c2c: C2c) -> str:
    """Return ``C2C 900 GB/s``; ``C2C 9/10`` if links are down or the rate is unknown."""
    if c2c.short or c2c.gbps is None:
        return f"C2C {c2c.lanes}/{c2c.expected_lanes}"
    return f"C2C {format_number(c2c.gbps)} GB/s"


def c2c_label_text(c2c: C2c) -> str:
    """Return ``894.2 GB/s``, or ``9 of 10`` links if some are down or their rate is unknown."""
    if c2c.short or c2c.gbps is None:
        return f"{c2c.lanes} of {c2c.expected_lanes}"
    return f"{format_number(c2c.gbps)} GB/s"


def format_lanes(edge: Link | Uplink) -> str:
    """Return ``NV12``, or ``NV11/12`` if a lane is down."""
    return f"NV{edge.lanes}/{edge.expected_lanes}" if edge.short else f"NV{edge.lanes}"


def island_marks(topology: NodeTopology) -> dict[int, str]:
    """Return the mark of each GPU's island: a letter for several GPUs, ``ALONE`` for a single GPU, ``?`` if unknown.

    A lost GPU is in no island and has no mark.
    """
    islands = topology.islands
    if islands is None:
        return {gpu.index: UNKNOWN for gpu in topology.usable}
    letters = (island_letter(place) for place in range(len(islands)))
    found: dict[int, str] = {}
    for island in islands:
        mark = next(letters) if island.size > 1 else ALONE
        found.update(dict.fromkeys(island.gpus, mark))
    return found


def island_letter(place: int) -> str:
    """Return A, B, ... Z, AA, AB, ..."""
    first, last = divmod(place, 26)
    return (island_letter(first - 1) if first else "") + chr(ord("A") + last)


def role_of(mark: str) -> str:
    """Return the paint role of an island's mark."""
    if mark in (ALONE, UNKNOWN):
        return "dim" if mark == ALONE else "unknown"
    place = 0
    for char in mark:
        place = 26 * place + ord(char) - ord("A") + 1
    return f"island-{place - 1}"


_PAIR = re.compile(r"gpu([0-9]{1,3})-gpu([0-9]{1,3})")
_GPU = re.compile(r"gpus?\.?([0-9]{1,3})(?:\.([A-Za-z0-9]+))?")
_LINK = re.compile(r"nvlink([0-9]{1,2})")
_PARTS = {
    "c2c": "C2C",
    "cpuAffinity": "CPU affinity",
    "gpus": "GPUs",
    "memoryMiB": "memory",
    "numaNode": "NUMA node",
    "nvlink": "NVLink",
    "nvml": "NVML",
    "pcie": "PCIe",
}


def parse_subject(what: str) -> tuple[str, tuple[int, ...]]:
    """Return the part and the GPUs in the subject of a ``Degradation`` or a ``Problem``.

    ``gpus.3.numaNode`` is ``("NUMA node", (3,))``, ``gpu2-gpu3`` is ``("NVLink", (2, 3))``; other texts are returned
    unchanged, without GPUs.
    """
    if pair := _PAIR.fullmatch(what):
        return "NVLink", (int(pair[1]), int(pair[2]))
    if part := _GPU.fullmatch(what):
        name = part[2] or ""
        return _PARTS.get(name, _LINK.sub(r"NVLink \1", name)), (int(part[1]),)
    return _PARTS.get(what, what), ()


def degraded_gpus(topology: NodeTopology) -> frozenset[int]:
    """Return the indices of the GPUs that a ``Degradation`` names."""
    return frozenset(gpu for each in topology.degraded for gpu in parse_subject(each.what)[1])


def counted_noun(number: int, of: str) -> str:
    """Return ``1 member``, ``3 members``."""
    return f"{number} {of}{'' if number == 1 else 's'}"


def part_of(number: int, whole: int, does: str, do: str, of: str = "member") -> str:
    """Return ``1 of 3 members is ready``, ``2 of 3 members are ready``: ``does`` is singular, ``do`` is plural."""
    return f"{number} of {counted_noun(whole, of)} {does if number == 1 else do}"


def first_of(names: Sequence[str]) -> str:
    """Return ``w-0``, ``w-0 and 2 more``."""
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
