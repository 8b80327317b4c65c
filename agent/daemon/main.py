"""``gputopo agent``: settings -> the parts -> the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from agent.daemon.loop import Loop, Now, Probed
from agent.daemon.metrics import Metrics
from agent.daemon.settings import Settings
from agent.daemon.threads import Inbox, Machine, run, signals
from agent.failures import from_nvml
from agent.publish import Publisher
from agent.snapshot import Snapshot, SnapshotError
from gputopo.process.daemon import fail
from gputopo.timing import STALE_AFTER_S

_LIFETIME = timedelta(seconds=STALE_AFTER_S)  # of features.d


def publish_once(read: Settings) -> str | None:
    """One look, published; what went wrong, if anything did."""
    machine, metrics = machine_of(read), Metrics()
    loop = Loop(read, publisher_of(read), metrics)
    started = clock()
    reading = None if machine.watch is None else machine.watch.poll(started.monotonic)
    probed = Probed(machine.probe(), clock().monotonic - started.monotonic)
    loop.turn(clock(), [probed] if reading is None else [reading, probed])
    if (error := loop.status.failures.get("nvml")) is not None:
        return f"{error}: {from_nvml(error).headline}. {from_nvml(error).advice}"
    return loop.status.unready or ("NodeGpus is not published" if loop.status.behind else None)


def publish_forever(read: Settings) -> str | None:
    """Until the process is told to end; why it must end, where that is of its own."""
    from agent.daemon.health_server import serving  # noqa: PLC0415  --once does without

    metrics, inbox = Metrics(), Inbox()
    with ExitStack() as parts:
        parts.enter_context(signals(inbox))
        loop = Loop(read, publisher_of(read), metrics)
        if read.listen is not None:
            try:
                parts.enter_context(
                    serving(read.listen, metrics.registry, lambda: loop.status, lambda: clock().monotonic)
                )
            except OSError as error:
                fail(f"cannot listen on {read.listen}: {error.strerror or error}")
        return run(loop, machine_of(read), inbox, clock)


def clock() -> Now:
    """Now."""
    return Now(time.monotonic(), time.time())


def machine_of(read: Settings) -> Machine:
    """How to ask this machine, or the recorded one that stands in for it."""
    watch = None
    if read.socket is not None:
        from agent.allocation.client import PodResources  # noqa: PLC0415  nobody else needs HTTP/2
        from agent.allocation.watch import Watch  # noqa: PLC0415

        watch = Watch(PodResources(read.socket).held)
    if read.node_source is not None:
        return Machine(partial(recorded, read.node_source), ("file", partial(_file, read.node_source)), watch)
    from agent.recording.probe import probe  # noqa: PLC0415  imports what talks to the driver

    driver: tuple[str, Callable[[], Hashable]] = ("driver", partial(_text, Path("/sys/module/nvidia/version")))
    return Machine(probe, driver, watch, _listen if read.events else None)


def _listen(wake: Callable[[str], None], pause: Callable[[float], bool]) -> None:
    import pynvml  # noqa: PLC0415  on the thread that needs it

    from agent.sources.nvml.events import listen  # noqa: PLC0415

    listen(pynvml, wake, pause)


def recorded(path: Path) -> Snapshot:
    """A recorded machine as if it were this one. A file that cannot be read is a driver that does not answer."""
    from agent.recording.io import load_snapshot  # noqa: PLC0415  only for tests and demonstrations

    try:
        return load_snapshot(path.read_bytes())
    except (OSError, SnapshotError) as error:
        return Snapshot(errors={"nvml": f"{path}: {error}"})


def _file(path: Path) -> Hashable:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _text(path: Path) -> Hashable:
    """The version of the loaded driver; None while there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def publisher_of(read: Settings) -> Publisher:
    """Where to publish to; ends the process where there are no credentials for it."""
    from agent.publish.choice import Target, open_publisher  # noqa: PLC0415  0.7 s where it needs the API server
    from gputopo.kube.errors import ConfigError  # noqa: PLC0415

    kind, place = read.publish
    options: dict[str, Any] = {}
    if place is not None:
        options = {"namespace": place} if kind == "nodefeature" else {"features_file": Path(place)}
    lifetime = max(_LIFETIME, timedelta(seconds=3 * read.heartbeat_s))
    try:
        return open_publisher(Target(kind=kind, node=read.node, lifetime=lifetime, **options))
    except ConfigError as error:
        fail(str(error))
