"""NVLinks with error counters that grow faster than on a healthy link. Pure.

Rules: a link that was recovered ``RECOVERIES`` times or more within ``WINDOW_S`` will probably fail: such counts were
observed days before failures. CRC errors count from ``CRC_PER_SECOND`` on (DCGM's limit). Errors from before the
agent's start do not count, because their age is unknown. A counter that becomes smaller was reset by a driver reload.
Each counter is followed by itself: in some passes, a counter cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.snapshot import Nvml, NvmlLink
from gputopo.model import Degradation

RECOVERIES = 10
WINDOW_S = 24 * 3600.0
CRC_PER_SECOND = 100.0
_MIN_INTERVAL_S = 30.0  # passes that driver events cause are too close to each other for a rate
_RECOVERY_COUNTERS = ("recovery", "recovered", "recovery_failed")

_MANY_RECOVERIES = f"recovered {RECOVERIES} times or more within {WINDOW_S / 3600:g} hours: the link may fail soon"
_HIGH_CRC_RATE = f"{CRC_PER_SECOND:g} CRC errors per second or more: the link may fail soon"


Changes = tuple[tuple[float, int], ...]  # (time, counter) of each change of a counter, oldest first; bounded


class LinkErrors(NamedTuple):
    """The counters of one link over time."""

    recoveries: Mapping[str, Changes] = {}  # by name of the counter
    crc: tuple[float, int] | None = None  # (time, counter) that the next rate starts from
    high_crc_rate: bool = False  # the last rate was ``CRC_PER_SECOND`` or more


LinkErrorHistory = Mapping[tuple[str, int], LinkErrors]  # by name of the GPU and link


def record_counters(history: LinkErrorHistory, nvml: Nvml | None, now: float) -> LinkErrorHistory:
    """Return the history with the counters of one pass; links that were not read keep theirs."""
    read = {(gpu.identity, link.link): link for gpu in (nvml.gpus if nvml else ()) for link in gpu.nvlinks}
    new = {key: _add(history.get(key, LinkErrors()), link, now) for key, link in read.items() if link.counters}
    return {**history, **new}


def failing_links(history: LinkErrorHistory, nvml: Nvml | None, now: float) -> Iterator[Degradation]:
    """Yield a degradation for each link with counters that grow too fast."""
    for gpu in nvml.gpus if nvml else ():
        for link in gpu.nvlinks:
            errors = history.get((gpu.identity, link.link), LinkErrors())
            if sum(_growth(each, now) for each in errors.recoveries.values()) >= RECOVERIES:
                yield Degradation(f"gpu{gpu.index}.nvlink{link.link}", _MANY_RECOVERIES)
            if errors.high_crc_rate:
                yield Degradation(f"gpu{gpu.index}.nvlink{link.link}", _HIGH_CRC_RATE)


def _add(errors: LinkErrors, link: NvmlLink, now: float) -> LinkErrors:
    crc, high_crc_rate = _crc_rate(errors, link.counters.get("crc"), now)
    return LinkErrors(_add_recoveries(errors.recoveries, link, now), crc, high_crc_rate)


def _add_recoveries(known: Mapping[str, Changes], link: NvmlLink, now: float) -> Mapping[str, Changes]:
    read = {name: link.counters[name] for name in _RECOVERY_COUNTERS if name in link.counters}
    return {**known, **{name: _add_change(known.get(name, ()), value, now) for name, value in read.items()}}


def _add_change(known: Changes, value: int, now: float) -> Changes:
    """Return the changes with that of this pass. Each adds at least one, so the last ``RECOVERIES + 1`` suffice."""
    if known and known[-1][1] == value:
        return known
    if known and known[-1][1] > value:
        known = ()
    return (*known, (now, value))[-RECOVERIES - 1 :]


def _growth(changes: Changes, now: float) -> int:
    """Return the growth of a counter within the window: from the last value before it to the newest."""
    before = [value for at, value in changes if now - at > WINDOW_S]
    return changes[-1][1] - (before[-1] if before else changes[0][1])


def _crc_rate(errors: LinkErrors, value: int | None, now: float) -> tuple[tuple[float, int] | None, bool]:
    if value is None or errors.crc is None:
        return errors.crc if value is None else (now, value), errors.high_crc_rate
    since, before = errors.crc
    if value < before:
        return (now, value), False
    if now - since < _MIN_INTERVAL_S:
        return errors.crc, errors.high_crc_rate
    return (now, value), (value - before) / (now - since) >= CRC_PER_SECOND
