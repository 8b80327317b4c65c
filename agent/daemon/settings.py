"""What an operator can set at the agent. How settings are read: ``gputopo.process.settings``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.process.settings import Setting, address, flag, log_form, one_of, path, seconds, values
from gputopo.timing import HEARTBEAT_S

PUBLISH = {  # kind -> what may follow it after a colon
    "node": None,
    "nodefeature": "NAMESPACE",
    "features.d": "FILE",
    "stdout": None,
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
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


def read(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    found = values(TABLE, flags, environ)
    found["node"] = found["node"] or socket.gethostname()
    return Settings(**found)


def _destination(text: str) -> tuple[str, str | None]:
    kind, colon, place = text.partition(":")
    one_of(*PUBLISH)(kind)
    if colon and (PUBLISH[kind] is None or not place):
        raise ValueError(f"after {kind}: {'nothing may follow' if PUBLISH[kind] is None else PUBLISH[kind]}")
    return kind, place or None


TABLE = (
    Setting(
        "node",
        "--node",
        "NODE_NAME",
        "",
        "NAME",
        "The Node that this agent publishes for. The DaemonSet sets it; otherwise this host's name.",
        str,
    ),
    Setting(
        "publish",
        "--publish",
        "GPUTOPO_PUBLISH",
        "node",
        "|".join(kind if place is None else f"{kind}[:{place}]" for kind, place in PUBLISH.items()),
        "Where to: the Node itself; Node Feature Discovery's NodeFeature, in a namespace that its master reads; a file "
        "in its features.d, which expires by itself; or standard output.",
        _destination,
    ),
    Setting(
        "mirror",
        "--mirror",
        "GPUTOPO_MIRROR",
        "auto",
        "auto|off",
        "Whether to write the nvidia.com/ labels that others select on, where nobody else does.",
        flag("auto"),
    ),
    Setting(
        "interval_s",
        "--interval",
        "GPUTOPO_INTERVAL",
        "60s",
        "SECONDS",
        "From one look at the GPUs to the next, give or take 10 %. Driver events make extra ones at once, so this "
        "only bounds how late a change without an event is seen. A look takes a tenth of a second.",
        seconds(1),
    ),
    Setting(
        "heartbeat_s",
        "--heartbeat",
        "GPUTOPO_HEARTBEAT",
        f"{HEARTBEAT_S / 60:g}m",
        "SECONDS",
        "How often NodeGpus is refreshed and the Node checked for labels that somebody removed, give or take 10 %. "
        "Readers take an observation of three times this age for unknown; 15,000 nodes make 50 writes a second.",
        seconds(10),
    ),
    Setting(
        "hold_s",
        "--hold",
        "GPUTOPO_HOLD",
        "5m",
        "SECONDS",
        "How long a link or GPU must have been well before it is published as well. Worse is published at once. Each "
        "change of a label makes schedulers retry every waiting pod, so a flapping link must not reach one.",
        seconds(0),
    ),
    Setting(
        "grace_s",
        "--grace",
        "GPUTOPO_GRACE",
        "2m",
        "SECONDS",
        "How long NVML or the API server may fail before the agent is unready, and before it ends itself where only "
        "a new process can help. Longer than a driver's reload.",
        seconds(0),
    ),
    Setting(
        "socket",
        "--socket",
        "GPUTOPO_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "PATH|off",
        "The kubelet's PodResources socket, which tells which pod holds which GPU. Asked every second.",
        path,
    ),
    Setting(
        "events",
        "--events",
        "GPUTOPO_EVENTS",
        "on",
        "on|off",
        "Whether to wait for the driver's events (XID, lost GPU). It keeps the driver in use: a driver upgrade that "
        "unloads the module must stop this agent first, as it must every NVML client, or run with `off`.",
        flag("on"),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9438",
        "HOST:PORT|off",
        "Where /metrics, /healthz and /readyz are served.",
        address,
    ),
    log_form(line="a pass"),
    Setting(
        "node_source",
        "--node-source",
        "GPUTOPO_NODE_SOURCE",
        "",
        "FILE",
        "Publish this recorded machine (`gputopo record`) instead of this one, read again at every pass. For tests "
        "and demonstrations.",
        path,
    ),
)
