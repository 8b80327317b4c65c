"""``gputopo extender`` with probes, for ``bench/filter_latency.py``: ``python bench/filter_probe.py SPANS OPTION...``.

The process and its code are the real ones. Probes note the spans of work that may delay a call, by monotonic seconds:
lines ``KIND START END CPU`` in the file SPANS. CPU: seconds that the thread ran. Of each NodeGpus of a watch, the kind
``lag`` is the time from its making, which is in its ``agentVersion``, until it was applied.

So that the run has full garbage collections too, they come each ten minutes, or twenty without a pause.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputopo.cli.main import main as gputopo
from scheduler_core.cache.events import NodeGpusUpdate
from scheduler_core.evaluation import ranking
from scheduler_core.extender import decision_log, service
from scheduler_core.runtime import garbage, http_pages

_LEAST_S = 0.0005
_FULL_S = 600.0  # instead of 6 hours
Start = tuple[float, float]  # monotonic seconds, and the seconds that the thread has run


class Spans:
    """Writes the spans into a file as they end: in memory, those of an hour would count as memory of the extender."""

    def __init__(self, file: Path) -> None:
        self._text = file.open("w", encoding="utf-8")
        self._lock = threading.Lock()  # decisions are encoded by a thread of their own
        self._made = 0.0  # the latest NodeGpus

    def note(self, kind: str, start: Start) -> None:
        """Note a span that ends now."""
        ended, cpu = clocks()
        if ended - start[0] > _LEAST_S:
            self._write(kind, start[0], ended, cpu - start[1])

    def note_lags(self, batch: Any) -> None:
        """Note how long the NodeGpus of a batch took to arrive, except of those that a list shows again."""
        if batch.kind is NodeGpusUpdate and not batch.is_full_list:
            for each in batch.updates:
                if (made := float(each.gpus.agent_version)) > self._made:
                    self._made = made
                    self._write("lag", made, time.monotonic(), 0.0)

    def _write(self, *fields: object) -> None:
        with self._lock:
            self._text.write("\t".join(map(str, fields)) + "\n")

    def close(self) -> None:
        """Write the rest."""
        self._text.close()


def clocks() -> Start:
    """Return the start of a span."""
    return time.monotonic(), time.thread_time()


def probe(spans: Spans, owner: Any, method: str, kind: Callable[..., str]) -> None:
    """Note the calls of a function. ``kind`` gets the arguments, before the call."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        named, started = kind(*args), clocks()
        try:
            return original(*args, **kwargs)
        finally:
            spans.note(named, started)

    setattr(owner, method, timed)


def profile_kind(rankings: Any, profile: Any, policy: Any, *_: Any) -> str:
    """Return whether a profile is known or new (never used, or evicted from the cache)."""
    return "ranking, known profile" if (profile, policy) in rankings._rankings else "ranking, new profile"  # noqa: SLF001  a probe


def watch_collections(spans: Spans) -> None:
    """Note garbage collections."""
    started = clocks()

    def collected(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = clocks()
        else:
            spans.note("garbage collection", started)

    gc.callbacks.append(collected)


def watch_lags(spans: Spans) -> None:
    """Note when the NodeGpus of the watch are applied."""
    original = service.ExtenderService.apply_batch

    def applied(self: Any, batch: Any) -> None:
        original(self, batch)
        spans.note_lags(batch)

    service.ExtenderService.apply_batch = applied  # type: ignore[method-assign]


def main() -> None:
    """Run the extender."""
    file, *options = sys.argv[1:]
    spans = Spans(Path(file))
    garbage.FULL_S, garbage.LATEST_S = _FULL_S, 2 * _FULL_S
    watch_lags(spans)
    for owner, method, kind in (
        (service.ExtenderService, "apply_batch", "events"),
        (service.ExtenderService, "tick", "periodic work"),
        (service.ExtenderService, "_remove_results", "removal of cached results"),
        (service.ExtenderService, "_check_report", "check of a prediction"),
        (service.ExtenderService, "_evaluate_ahead", "evaluation for later calls"),
        (ranking.NodeRanking, "__init__", "ranking of known states"),
        (garbage.GarbageCollection, "_collect_all", "full garbage collection"),
        (decision_log, "encode_decision", "decisions page, with pauses"),
        (http_pages, "generate_latest", "metrics page"),
    ):
        probe(spans, owner, method, lambda *_, kind=kind: kind)
    probe(spans, ranking.Rankings, "ranking_for", profile_kind)
    watch_collections(spans)
    sys.argv = ["gputopo", "extender", *options]
    try:
        gputopo()
    finally:
        spans.close()


if __name__ == "__main__":
    main()
