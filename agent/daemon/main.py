"""Builds the parts of the agent from its settings and runs the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.daemon.loop import AgentLoop, Now, ProbeResult
from agent.daemon.metrics import AgentMetrics
from agent.daemon.settings import AgentSettings
from agent.daemon.threads import Inbox, MachineAccess, handle_signals, run_loop
from agent.failures import failure_from_nvml
from agent.publish import Publisher
from agent.snapshot import Snapshot, SnapshotError
from gputopo.process.daemon import fail
from gputopo.timing import STALE_AFTER_S

if TYPE_CHECKING:
    from agent.allocation.node_resource_topology import NodeResourceTopologyReader

_LIFETIME = timedelta(seconds=STALE_AFTER_S)  # of a features.d file


def publish_once(settings: AgentSettings) -> str | None:
    """Run one pass and publish. Returns the error, or None."""
    access, metrics = open_machine_access(settings), AgentMetrics()
    loop = AgentLoop(settings, open_publisher_from(settings), metrics)
    started = clock()
    report = None if access.watch is None else access.watch.poll(started.monotonic)
    probe_result = ProbeResult(access.probe(), clock().monotonic - started.monotonic)
    loop.run_iteration(clock(), [probe_result] if report is None else [report, probe_result])
    if (error := loop.status.failures.get("nvml")) is not None:
        return f"{error}: {failure_from_nvml(error).headline}. {failure_from_nvml(error).advice}"
    return loop.status.unready_reason or ("NodeGpus is not published" if loop.status.pending else None)


def publish_forever(settings: AgentSettings) -> str | None:
    """Run until a signal stops the process. Returns why the process must exit, or None after a signal."""
    from agent.daemon.health_server import serve_health  # noqa: PLC0415  not needed by --once

    metrics, inbox = AgentMetrics(), Inbox()
    with ExitStack() as parts:
        parts.enter_context(handle_signals(inbox))
        loop = AgentLoop(settings, open_publisher_from(settings), metrics)
        if settings.listen is not None:
            try:
                parts.enter_context(
                    serve_health(settings.listen, metrics.registry, lambda: loop.status, lambda: clock().monotonic)
                )
            except OSError as error:
                fail(f"cannot listen on {settings.listen}: {error.strerror or error}")
        return run_loop(loop, open_machine_access(settings), inbox, clock)


def clock() -> Now:
    """Return the current time."""
    return Now(time.monotonic(), time.time())


def open_machine_access(settings: AgentSettings) -> MachineAccess:
    """Return the access to this machine, or to the recorded machine that replaces it."""
    watch = None
    if settings.socket is not None:
        from agent.allocation.client import PodResourcesClient  # noqa: PLC0415  imports HTTP/2
        from agent.allocation.kubelet_reading import read_kubelet  # noqa: PLC0415
        from agent.allocation.watch import AllocationWatch  # noqa: PLC0415

        # Two connections: a kubelet that refuses the second call must not cost the first its connection.
        read = partial(
            read_kubelet,
            PodResourcesClient(settings.socket),
            settings.kubelet_config,
            published=_open_node_resource_topology(settings),
        )
        watch = AllocationWatch(PodResourcesClient(settings.socket).list_held_devices, read_kubelet=read)
    if settings.node_source is not None:
        return MachineAccess(
            partial(load_recorded_machine, settings.node_source),
            ("file", partial(_file_version, settings.node_source)),
            watch,
        )
    from agent.recording.probe import probe_machine  # noqa: PLC0415  imports the driver's libraries

    driver: tuple[str, Callable[[], Hashable]] = (
        "driver",
        partial(_driver_version, Path("/sys/module/nvidia/version")),
    )
    return MachineAccess(probe_machine, driver, watch, _listen_for_driver_events if settings.events else None)


def _open_node_resource_topology(settings: AgentSettings) -> NodeResourceTopologyReader | None:
    """Return the reader of the node's ``NodeResourceTopology``, if it is on. Exits where credentials are missing."""
    if not settings.node_resource_topology:
        return None
    from agent.allocation.node_resource_topology import (  # noqa: PLC0415  only where it is on
        TIMEOUT_S,
        NodeResourceTopology,
        NodeResourceTopologyReader,
    )
    from agent.publish.choice import PublishTarget, open_node_reader  # noqa: PLC0415
    from gputopo.kube.errors import ConfigError  # noqa: PLC0415
    from gputopo.kube.rbac import AGENT_WITH_TOPOLOGY, NODE_RESOURCE_TOPOLOGIES  # noqa: PLC0415

    try:
        target = PublishTarget(kind="node", node=settings.node)
        read_object = open_node_reader(
            target, NODE_RESOURCE_TOPOLOGIES, AGENT_WITH_TOPOLOGY, NodeResourceTopology, TIMEOUT_S
        )
    except ConfigError as error:
        fail(str(error))
    return NodeResourceTopologyReader(read_object, settings.node)


def _listen_for_driver_events(wake: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    import pynvml  # noqa: PLC0415  on the thread that needs it

    from agent.sources.nvml.events import listen_for_events  # noqa: PLC0415

    listen_for_events(pynvml, wake, wait)


def load_recorded_machine(path: Path) -> Snapshot:
    """Return the snapshot of a recorded machine. An unreadable file counts as a failing driver."""
    from agent.recording.io import load_snapshot  # noqa: PLC0415  only with --node-source

    try:
        return load_snapshot(path.read_bytes())
    except (OSError, SnapshotError) as error:
        return Snapshot(errors={"nvml": f"{path}: {error}"})


def _file_version(path: Path) -> Hashable:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _driver_version(path: Path) -> Hashable:
    """Return the version of the loaded driver; None while none is loaded."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return None


def open_publisher_from(settings: AgentSettings) -> Publisher:
    """Return the publisher of the settings. Exits where credentials are missing."""
    from agent.publish.choice import PublishTarget, open_publisher  # noqa: PLC0415  0.7 s where it needs the API server
    from gputopo.kube.errors import ConfigError  # noqa: PLC0415

    kind, place = settings.publish
    options: dict[str, Any] = {}
    if place is not None:
        options = {"namespace": place} if kind == "nodefeature" else {"features_file": Path(place)}
    lifetime = max(_LIFETIME, timedelta(seconds=3 * settings.heartbeat_s))
    options["lease_after_s"] = settings.lease_after_s
    try:
        return open_publisher(PublishTarget(kind=kind, node=settings.node, lifetime=lifetime, **options))
    except ConfigError as error:
        fail(str(error))
