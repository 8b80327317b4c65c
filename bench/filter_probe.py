"""``gputopo extender`` with probes, for ``bench/filter_latency.py``: ``python bench/filter_probe.py SPANS OPTION...``.

The process and its code are the real ones. Probes note the spans of work that may delay a call, by monotonic seconds:
lines ``KIND START END CPU`` in the file SPANS, written at the end. CPU: seconds that the thread ran.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gputopo.cli.main import main as gputopo
from scheduler_core.evaluation import ranking
from scheduler_core.extender import decision_log, metrics, service

_LEAST_S = 0.0005
_spans: list[tuple[str, float, float, float]] = []
Start = tuple[float, float]  # monotonic seconds, and the seconds that the thread has run


def clocks() -> Start:
    """Return the start of a span."""
    return time.monotonic(), time.thread_time()


def note(kind: str, start: Start) -> None:
    """Note a span that ends now."""
    ended, cpu = clocks()
    if ended - start[0] > _LEAST_S:
        _spans.append((kind, start[0], ended, cpu - start[1]))


def probe(owner: Any, method: str, kind: Callable[..., str]) -> None:
    """Note the calls of a function. ``kind`` gets the arguments, before the call."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        named, started = kind(*args), clocks()
        try:
            return original(*args, **kwargs)
        finally:
            note(named, started)

    setattr(owner, method, timed)


def profile_kind(rankings: Any, profile: Any, policy: Any, *_: Any) -> str:
    """Return whether a profile is known or new (never used, or evicted from the cache)."""
    return "known profile" if (profile, policy) in rankings._rankings else "new profile"  # noqa: SLF001  a probe


def watch_collections() -> None:
    """Note garbage collections."""
    started = clocks()

    def collected(phase: str, _: dict[str, int]) -> None:
        nonlocal started
        if phase == "start":
            started = clocks()
        else:
            note("garbage", started)

    gc.callbacks.append(collected)


def main() -> None:
    """Run the extender; write the spans when it has ended."""
    file, *options = sys.argv[1:]
    probe(service.ExtenderService, "apply_batch", lambda *_: "events")
    probe(service.ExtenderService, "tick", lambda *_: "tick")
    if hasattr(service.ExtenderService, "_evaluate_ahead"):
        probe(service.ExtenderService, "_evaluate_ahead", lambda *_: "ahead")
    probe(ranking.Rankings, "ranking_for", profile_kind)
    probe(ranking.NodeRanking, "__init__", lambda *_: "ranking of known states")
    probe(decision_log, "encode_decision", lambda *_: "decisions page, with pauses")
    probe(metrics, "snapshot_samples", lambda *_: "metrics page")
    watch_collections()
    sys.argv = ["gputopo", "extender", *options]
    try:
        gputopo()
    finally:
        Path(file).write_text(
            "".join(f"{kind}\t{start}\t{end}\t{cpu}\n" for kind, start, end, cpu in _spans), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
