"""The settings of the agent. ``gputopo.process.settings`` explains how they are read."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.process.settings import (
    Setting,
    log_setting,
    parse_address,
    parse_flag,
    parse_one_of,
    parse_path,
    parse_seconds,
    read_values,
)
from gputopo.timing import HEARTBEAT_S

PUBLISH = {  # kind -> the argument that may follow after a colon
    "node": None,
    "nodefeature": "NAMESPACE",
    "features.d": "FILE",
    "stdout": None,
}


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's settings. ``TABLE`` explains each."""

    node: str
    publish: tuple[str, str | None]
    mirror: bool
    interval_s: float
    heartbeat_s: float
    hold_s: float
    grace_s: float
    socket: Path | None
    events: bool
    listen: tuple[str, int] | None
    log: str
    node_source: Path | None


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> AgentSettings:
    """Return the settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    found = read_values(TABLE, flags, environ)
    found["node"] = found["node"] or socket.gethostname()
    return AgentSettings(**found)


def _destination(text: str) -> tuple[str, str | None]:
    kind, colon, place = text.partition(":")
    parse_one_of(*PUBLISH)(kind)
    if colon and (PUBLISH[kind] is None or not place):
        raise ValueError(f"{kind} takes no argument" if PUBLISH[kind] is None else f"write {kind}:{PUBLISH[kind]}")
    return kind, place or None


TABLE = (
    Setting(
        "node",
        "--node",
        "NODE_NAME",
        "",
        "NAME",
        "The Node that this agent publishes for. Set by the DaemonSet; by default this host's name.",
        str,
    ),
    Setting(
        "publish",
        "--publish",
        "GPUTOPO_PUBLISH",
        "node",
        "|".join(kind if place is None else f"{kind}[:{place}]" for kind, place in PUBLISH.items()),
        "The destination: the Node itself; a NodeFeature of Node Feature Discovery, in a namespace that its master "
        "reads; a file in its features.d directory, which expires by itself; or standard output.",
        _destination,
    ),
    Setting(
        "mirror",
        "--mirror",
        "GPUTOPO_MIRROR",
        "auto",
        "auto|off",
        "Also write the nvidia.com/ labels of GPU Feature Discovery, except those that another component owns.",
        parse_flag("auto"),
    ),
    Setting(
        "interval_s",
        "--interval",
        "GPUTOPO_INTERVAL",
        "60s",
        "SECONDS",
        "Time between discovery passes, plus or minus 10 %. A driver event starts an extra pass at once, so this only "
        "limits how late a change without an event is noticed. A pass takes a tenth of a second.",
        parse_seconds(1),
    ),
    Setting(
        "heartbeat_s",
        "--heartbeat",
        "GPUTOPO_HEARTBEAT",
        f"{HEARTBEAT_S / 60:g}m",
        "SECONDS",
        "How often NodeGpus is refreshed and removed labels are restored, plus or minus 10 %. Readers treat an "
        "observation older than three times this as unknown; 15,000 nodes make 50 writes a second.",
        parse_seconds(10),
    ),
    Setting(
        "hold_s",
        "--hold",
        "GPUTOPO_HOLD",
        "5m",
        "SECONDS",
        "Recovery hold-down: how long a link or GPU must be healthy before it is published as healthy. Degradation is "
        "published at once. Each label change makes schedulers retry every pending pod, so flapping is filtered out.",
        parse_seconds(0),
    ),
    Setting(
        "grace_s",
        "--grace",
        "GPUTOPO_GRACE",
        "2m",
        "SECONDS",
        "How long NVML or the API server may fail before the agent becomes unready, and before it exits where only "
        "a new process can recover. Longer than a driver reload.",
        parse_seconds(0),
    ),
    Setting(
        "socket",
        "--socket",
        "GPUTOPO_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "PATH|off",
        "The kubelet's PodResources socket, which reports the GPUs allocated to each pod. Polled every second.",
        parse_path,
    ),
    Setting(
        "events",
        "--events",
        "GPUTOPO_EVENTS",
        "on",
        "on|off",
        "Wait for driver events (XID, lost GPU). This keeps the driver in use: a driver upgrade that unloads the "
        "kernel module must stop this agent first, like every NVML client, or run it with `off`.",
        parse_flag("on"),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9438",
        "HOST:PORT|off",
        "The address of /metrics, /healthz and /readyz.",
        parse_address,
    ),
    log_setting(line="a pass"),
    Setting(
        "node_source",
        "--node-source",
        "GPUTOPO_NODE_SOURCE",
        "",
        "FILE",
        "Publish this recorded machine (`gputopo record`) instead of the real one. The file is read at every pass. For "
        "tests and demonstrations.",
        parse_path,
    ),
)
