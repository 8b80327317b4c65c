"""What an operator can set: one frozen value, read once. A flag beats the environment, which beats the default.

``TABLE`` holds every setting with its unit, default and reason; the command line's options and the reference page are
made from it. What is not here is a constant beside the code that needs it.

    SettingError(ValueError)    a value cannot be used; the message quotes it and says where it was set
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

PUBLISH = {  # kind -> what may follow it after a colon
    "node": None,
    "nodefeature": "NAMESPACE",
    "features.d": "FILE",
    "stdout": None,
}


class SettingError(ValueError):
    """A value cannot be used."""


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


class Setting(NamedTuple):
    """One row of ``TABLE``."""

    field: str  # of Settings
    flag: str
    variable: str  # in the environment
    default: str
    metavar: str  # what a value looks like, with its unit
    reason: str  # what it is for, and why the default is what it is
    parse: Callable[[str], Any]


def read(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    values: dict[str, Any] = {}
    for setting in TABLE:
        flag = flags.get(setting.field)
        text, where = (flag, setting.flag) if flag is not None else (environ.get(setting.variable), setting.variable)
        if text is None:
            text, where = setting.default, "the default"
        try:
            values[setting.field] = setting.parse(text)
        except ValueError as error:
            raise SettingError(f"{where}: {text!r}: {error}") from error
    values["node"] = values["node"] or socket.gethostname()
    return Settings(**values)


def _seconds(least: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", text)
        if match is None:
            raise ValueError("write 90s, 5m or 1h")
        seconds = float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2] or "s"]
        if seconds < least:
            raise ValueError(f"it must be at least {least:g}s")
        return seconds

    return parse


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(f"choose one of {', '.join(values)}")
        return text

    return parse


def _destination(text: str) -> tuple[str, str | None]:
    kind, colon, place = text.partition(":")
    _one_of(*PUBLISH)(kind)
    if colon and (PUBLISH[kind] is None or not place):
        raise ValueError(f"after {kind}: {'nothing may follow' if PUBLISH[kind] is None else PUBLISH[kind]}")
    return kind, place or None


def _flag(on: str) -> Callable[[str], bool]:
    choice = _one_of(on, "off")
    return lambda text: choice(text) == on


def _path(text: str) -> Path | None:
    return None if text in ("", "off") else Path(text)


def _address(text: str) -> tuple[str, int] | None:
    """``0.0.0.0:9438``, ``[::]:9438``, ``:9438`` (every address); None for ``off``."""
    if text == "off":
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError("write HOST:PORT, with a port of at most 65535")
    return host.removeprefix("[").removesuffix("]"), int(port)


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
        _flag("auto"),
    ),
    Setting(
        "interval_s",
        "--interval",
        "GPUTOPO_INTERVAL",
        "60s",
        "SECONDS",
        "From one look at the GPUs to the next, give or take 10 %. Driver events make extra ones at once, so this "
        "only bounds how late a change without an event is seen. A look takes a tenth of a second.",
        _seconds(1),
    ),
    Setting(
        "heartbeat_s",
        "--heartbeat",
        "GPUTOPO_HEARTBEAT",
        "5m",
        "SECONDS",
        "How often NodeGpus is refreshed and the Node checked for labels that somebody removed, give or take 10 %. "
        "Readers take an observation of three times this age for unknown; 15,000 nodes make 50 writes a second.",
        _seconds(10),
    ),
    Setting(
        "hold_s",
        "--hold",
        "GPUTOPO_HOLD",
        "5m",
        "SECONDS",
        "How long a link or GPU must have been well before it is published as well. Worse is published at once. Each "
        "change of a label makes schedulers retry every waiting pod, so a flapping link must not reach one.",
        _seconds(0),
    ),
    Setting(
        "grace_s",
        "--grace",
        "GPUTOPO_GRACE",
        "2m",
        "SECONDS",
        "How long NVML or the API server may fail before the agent is unready, and before it ends itself where only "
        "a new process can help. Longer than a driver's reload.",
        _seconds(0),
    ),
    Setting(
        "socket",
        "--socket",
        "GPUTOPO_SOCKET",
        "/var/lib/kubelet/pod-resources/kubelet.sock",
        "PATH|off",
        "The kubelet's PodResources socket, which tells which pod holds which GPU. Asked every second.",
        _path,
    ),
    Setting(
        "events",
        "--events",
        "GPUTOPO_EVENTS",
        "on",
        "on|off",
        "Whether to wait for the driver's events (XID, lost GPU). It keeps the driver in use: a driver upgrade that "
        "unloads the module must stop this agent first, as it must every NVML client, or run with `off`.",
        _flag("on"),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9438",
        "HOST:PORT|off",
        "Where /metrics, /healthz and /readyz are served.",
        _address,
    ),
    Setting(
        "log",
        "--log",
        "GPUTOPO_LOG",
        "json",
        "json|text",
        "The form of the log on standard error: one line a pass, with fields.",
        _one_of("json", "text"),
    ),
    Setting(
        "node_source",
        "--node-source",
        "GPUTOPO_NODE_SOURCE",
        "",
        "FILE",
        "Publish this recorded machine (`gputopo record`) instead of this one, read again at every pass. For tests "
        "and demonstrations.",
        _path,
    ),
)
