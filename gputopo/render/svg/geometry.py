"""Sizes of what is drawn, in user units (pixels at 100 %), and the rectangle."""

from __future__ import annotations

from typing import NamedTuple

MARGIN = 24.0  # card edge to content
MIN_CONTENT = 500.0  # room for title, badges and legend beside a single GPU
MAX_WIDTH = 1200.0  # wider pictures are scaled down

GPU_W = 112.0
GPU_GAP = 10.0
NIC_GAP = 6.0
NIC_W = (GPU_W - NIC_GAP) / 2
NIC_H = 30.0

SWITCH_PAD = 8.0
SWITCH_HEAD = 18.0
SWITCH_GAP = 10.0
BOX_PAD = 10.0
BOX_HEAD = 24.0
BOX_GAP = 16.0
C2C_GAP = 34.0  # between a GPU and its CPU, with the label of the link
CPU_H = 22.0


class Rect(NamedTuple):
    """An upright rectangle; y grows downwards."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        """X of the right edge."""
        return self.x + self.w

    @property
    def bottom(self) -> float:
        """Y of the lower edge."""
        return self.y + self.h

    @property
    def cx(self) -> float:
        """X of the centre."""
        return self.x + self.w / 2

    @property
    def cy(self) -> float:
        """Y of the centre."""
        return self.y + self.h / 2

    def moved(self, dx: float, dy: float) -> Rect:
        """Return the rectangle, moved."""
        return Rect(self.x + dx, self.y + dy, self.w, self.h)

    def grown(self, by: float) -> Rect:
        """Return the rectangle, enlarged by a border (or reduced, for a negative number)."""
        return Rect(self.x - by, self.y - by, self.w + 2 * by, self.h + 2 * by)

    def meets(self, other: Rect) -> bool:
        """Return whether the two overlap."""
        return self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom
