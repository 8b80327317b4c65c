"""The width of drawn texts, and short names of products.

The reader's font is unknown, so widths are those of DejaVu Sans, the widest of the fonts that browsers fall back to: a
text that fits by this estimate fits everywhere.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from gputopo.render.wording import escape_invisible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gputopo.model import Gpu

ELLIPSIS = "…"
TIMES = "\N{MULTIPLICATION SIGN}"

# Advance widths in DejaVu Sans in thousandths of the font size, rounded up to 40; other characters: _PLAIN.
_ADVANCES = {
    280: "'ijl",
    320: " ,.IJ·",
    360: "/:;\\f|",
    400: "()-[]t",
    440: "!r",
    480: '"',
    520: "*_`",
    560: "?Lcsz",
    600: "Fkvxy",
    720: "ABCRVXZ",
    760: "HNU",
    800: "&DGOQ",
    840: f"#+<=>^w~{TIMES}",
    880: "M",
    960: "%",
    1000: "@Wm…",
}
_ADVANCE = {char: advance for advance, chars in _ADVANCES.items() for char in chars}
_PLAIN = 680
_BOLD = 1.16  # DejaVu Sans Bold is about this much wider
_WIDE = 1000  # East Asian wide and emoji: a full em


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return an upper estimate of the drawn width, in the unit of ``size``."""
    thousandths = sum(_ADVANCE.get(char, _PLAIN) if char.isascii() else _wide_advance(char) for char in text)
    return thousandths * size / 1000 * (_BOLD if bold else 1)


def fit(text: str, size: float, room: float, *, bold: bool = False) -> str:
    """Return the text, cut with an ellipsis to fit into ``room``; "" if that does not fit."""
    if text_width(text, size, bold=bold) <= room:
        return text
    words = text.split(" ")
    cuts = [" ".join(words[:count]) for count in range(len(words) - 1, 0, -1)]
    cuts += [words[0][:length] for length in range(len(words[0]) - 1, -1, -1)]
    return next((cut + ELLIPSIS for cut in cuts if text_width(cut + ELLIPSIS, size, bold=bold) <= room), "")


def longest(texts: Iterable[str], size: float, room: float) -> str:
    """Return the first text that fits; "" if none does."""
    return next((text for text in texts if text_width(text, size) <= room), "")


def wrap(text: str, size: float, room: float, most: int) -> tuple[str, ...]:
    """Return the text in lines that fit into ``room``, up to a maximum; the last line is cut if necessary."""
    lines: list[str] = []
    words = text.split(" ")
    while words and len(lines) < most - 1:
        count = next((n for n in range(len(words), 1, -1) if text_width(" ".join(words[:n]), size) <= room), 1)
        lines.append(fit(" ".join(words[:count]), size, room))
        words = words[count:]
    return (*lines, fit(" ".join(words), size, room)) if words else tuple(lines)


def short_product(product: str) -> str:
    """Return the short product name, without vendor and memory size."""
    bare = _without_vendor(product)
    return re.sub(r"[ -]?\d+ ?GB( HBM\w*)?", "", bare).strip(" -") or bare


def counted_products(gpus: Iterable[Gpu]) -> str:
    """Return ``8 x H100 80GB HBM3``, without "1 x"; several products with "+", in the order of the GPUs."""
    gpus = tuple(gpus)
    if not any(gpu.product for gpu in gpus):
        return "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    counts: dict[str, int] = {}
    for gpu in gpus:
        name = _without_vendor(gpu.product) if gpu.product else "unknown GPU" if gpu.usable else "lost GPU"
        counts[name] = counts.get(name, 0) + 1
    return " + ".join(name if count == 1 else f"{count} {TIMES} {name}" for name, count in counts.items())


def _without_vendor(product: str) -> str:
    bare = escape_invisible(product).strip()
    for prefix in ("NVIDIA ", "Tesla ", "GeForce "):
        bare = bare.removeprefix(prefix)
    return bare or "unknown GPU"


def _wide_advance(char: str) -> int:
    return _ADVANCE.get(char) or (_WIDE if unicodedata.east_asian_width(char) in "WFA" else _PLAIN)
