"""Plots as inline SVG: lines, bars and distributions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#1b6ca8", "#e07a1f", "#3a9a5b", "#b0413e", "#7a5ea8", "#8c6d46", "#d4699e", "#6b7785", "#a8a232", "#2fa7b8")
_WIDTH, _HEIGHT = 520, 300
_LEFT, _TOP, _RIGHT, _BOTTOM = 56, 16, 12, 44

Series = Sequence[tuple[float, float]]


def line_plot(series: Mapping[str, Series], x_title: str, y_title: str, *, percent: bool = True) -> str:
    """Return a line for each name. Both axes begin at zero; with ``percent`` values are shares."""
    points = [point for each in series.values() for point in each]
    most_x = max((x for x, _ in points), default=1.0) or 1.0
    most_y = max((y for _, y in points), default=1.0) or 1.0
    body = [_axes(most_x, most_y, x_title, y_title, percent=percent)]
    for number, (name, each) in enumerate(series.items()):
        path = " ".join(f"{_x(x / most_x):.1f},{_y(y / most_y):.1f}" for x, y in each)
        colour = COLOURS[number % len(COLOURS)]
        title = f"<title>{escape(name)}</title>"
        body.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}">{title}</polyline>')
    return _svg("".join(body), y_title)


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


def _axes(most_x: float, most_y: float, x_title: str, y_title: str, *, percent: bool) -> str:
    parts = []
    for tenth in range(0, 11, 2):
        share = tenth / 10
        x, y = _x(share), _y(share)
        x_text, y_text = (_number(share * most, percent=percent) for most in (most_x, most_y))
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{y_text}</text>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{x_text}</text>')
    middle = _LEFT + (_WIDTH - _LEFT - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    half = _TOP + (_HEIGHT - _TOP - _BOTTOM) / 2
    turned = f'transform="rotate(-90 12 {half})" text-anchor="middle"'
    parts.append(f'<text x="12" y="{half}" {turned}>{escape(y_title)}</text>')
    return "".join(parts)


def _number(value: float, *, percent: bool) -> str:
    return f"{100 * value:.0f} %" if percent else f"{value:g}"


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _svg(body: str, title: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">{body}</svg>'
