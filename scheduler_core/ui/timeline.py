"""The last hour as a drawing: GPUs used, reserved and free over time. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gputopo.render.wording import counted_noun
from scheduler_core.ui.history import KEPT_S, Sample
from scheduler_core.ui.html import NOTHING, Html, element, text

WIDTH, HEIGHT = 720, 96
_BANDS = (("u", "used"), ("r", "reserved"), ("f", "free"), ("x", "other"))  # from below


def timeline(samples: Sequence[Sample]) -> Html:
    """Return the drawing; nothing before the second sample."""
    if len(samples) < 2:
        return NOTHING
    last = samples[-1]
    most = max(1, *(each.used + each.reserved + each.free + each.other for each in samples))
    shapes = []
    floor = [0.0] * len(samples)
    for name, field in _BANDS:
        top = [low + getattr(each, field) / most for low, each in zip(floor, samples, strict=True)]
        if top != floor:
            shapes.append(element("path", d=_band(samples, floor, top), class_=name))
        floor = top
    span = counted_noun(round((last.at - samples[0].at) / 60), "minute")
    words = f"GPUs over the last {span}: now {last.used} used, {last.reserved} reserved, {last.free} free"
    words += f", {last.other} other" if last.other else ""
    return element(
        "figure",
        element(
            "svg",
            element("title", text(words)),
            *shapes,
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            class_="timeline",
            role="img",
            preserveAspectRatio="none",
        ),
        element("figcaption", text(words)),
    )


def _band(samples: Sequence[Sample], floor: Sequence[float], top: Sequence[float]) -> str:
    end = samples[-1].at
    xs = [WIDTH * (1 - (end - each.at) / KEPT_S) for each in samples]
    forth = [f"{x:.1f} {HEIGHT * (1 - y):.1f}" for x, y in zip(xs, top, strict=True)]
    back = [f"{x:.1f} {HEIGHT * (1 - y):.1f}" for x, y in zip(xs, floor, strict=True)]
    return "M" + "L".join([*forth, *reversed(back)]) + "Z"
