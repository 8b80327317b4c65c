"""Plots as inline SVG: lines, bars and distributions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

COLOURS = ("#1b6ca8", "#e07a1f", "#3a9a5b", "#b0413e", "#7a5ea8", "#8c6d46", "#d4699e", "#6b7785", "#a8a232", "#2fa7b8")
_WIDTH, _HEIGHT = 520, 300
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 16, 28, 44  # right: half of the last number of the x axis
_MOST_STEPS = 6  # of an axis

Series = Sequence[tuple[float, float]]


class Axis(NamedTuple):
    """An axis, which begins at zero."""

    title: str
    percent: bool = True  # values are shares


def line_plot(series: Mapping[str, Series], x_axis: Axis, y_axis: Axis) -> str:
    """Return a line for each name."""
    points = [point for each in series.values() for point in each]
    most_x = max((x for x, _ in points), default=1.0) or 1.0
    most_y = max((y for _, y in points), default=1.0) or 1.0
    body = [_x_axis(x_axis, most_x), _y_axis(y_axis, most_y)]
    for number, (name, each) in enumerate(series.items()):
        path = " ".join(f"{_x(x / most_x):.1f},{_y(y / most_y):.1f}" for x, y in each)
        colour = COLOURS[number % len(COLOURS)]
        title = f"<title>{escape(name)}</title>"
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}">{title}</polyline>')
    return _svg("".join(body), y_axis.title)


def bar_plot(values: Mapping[str, float], title: str) -> str:
    """Return a bar for each name. Values are shares."""
    step = (_HEIGHT - _TOP - _BOTTOM) / max(1, len(values))
    body = []
    for number, (name, value) in enumerate(values.items()):
        top = _TOP + number * step
        length = (_WIDTH - 130 - 60) * value
        colour = COLOURS[number % len(COLOURS)]
        middle = top + step / 2 + 4
        body.append(f'<text x="124" y="{middle:.1f}" text-anchor="end">{escape(name)}</text>')
        body.append(
            f'<rect x="130" y="{top + step * 0.15:.1f}" width="{length:.1f}" height="{step * 0.7:.1f}" '
            f'fill="{colour}"/>'
        )
        body.append(f'<text x="{136 + length:.1f}" y="{middle:.1f}">{100 * value:.1f} %</text>')
    body.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(title)}</text>')
    return _svg("".join(body), title)


def distribution(values: Sequence[float], points: int = 100) -> Series:
    """Return the cumulative distribution of the values, which ascend."""
    if not values:
        return [(0.0, 0.0)]
    steps = min(points, len(values))
    at = [round((number + 1) * len(values) / steps) for number in range(steps)]
    return [(values[0], 0.0), *((values[count - 1], count / len(values)) for count in at)]


def legend(names: Sequence[str]) -> str:
    """Return the colour of each name."""
    return "".join(
        f'<span class="key"><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
        for number, name in enumerate(names)
    )


def _x_axis(axis: Axis, most: float) -> str:
    parts = []
    for value in _round_values(most):
        place = f'x="{_x(value / most):.1f}" y="{_HEIGHT - _BOTTOM + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{_number(value, axis)}</text>')
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(axis.title)}</text>')
    return "".join(parts)


def _y_axis(axis: Axis, most: float) -> str:
    parts = []
    for value in _round_values(most):
        y = _y(value / most)
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value, axis)}</text>')
    half = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {half})" text-anchor="middle"'
    parts.append(f'<text x="12" y="{half}" {turned}>{escape(axis.title)}</text>')
    return "".join(parts)


def _round_values(most: float) -> list[float]:
    """Return the multiples of a round number (1, 2 or 5, times a power of ten) from zero to ``most``."""
    power = 10.0 ** floor(log10(most / _MOST_STEPS))
    step = next(each * power for each in (1, 2, 5, 10, 20) if most / (each * power) <= _MOST_STEPS)
    return [number * step for number in range(int(most / step * (1 + 1e-9)) + 1)]


def _number(value: float, axis: Axis) -> str:
    return f"{100 * value:.4g} %" if axis.percent else f"{value:.4g}"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _svg(body: str, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{body}</svg>'
