"""The agent's settings. ``gputopo.process.settings`` reads them."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gputopo.process import settings
from gputopo.process.settings import (
    LOG_HELP,
    Setting,
    log_setting,
    parse_address,
    parse_flag,
    parse_one_of,
    parse_path,
    parse_seconds,
)
from gputopo.timing import HEARTBEAT_S, HEARTBEAT_TRANSITION_S

PUBLISH = {  # destination -> what may follow it after a colon
    "node": None,
    "nodefeature": "NAMESPACE",
    "features.d": "FILE",
    "stdout": None,
}
_DESTINATIONS = "|".join(kind if place is None else f"{kind}[:{place}]" for kind, place in PUBLISH.items())


def _destination(text: str) -> tuple[str, str | None]:
    kind, colon, place = text.partition(":")
    parse_one_of(*PUBLISH)(kind)
    if colon and (PUBLISH[kind] is None or not place):
        raise ValueError(f"{kind} takes no argument" if PUBLISH[kind] is None else f"write {kind}:{PUBLISH[kind]}")
    return kind, place or None


def _seconds_or_off(text: str) -> float | None:
    return None if text == "off" else parse_seconds(0)(text)


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(Path(each) for each in text.split(",") if each)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's settings."""

    node: Annotated[
        str,
        Setting("--node", "NAME", "", str, variable="NODE_NAME"),
        "The name of the Node that this agent publishes. The DaemonSet sets it; without it, the host name.",
    ]
    publish: Annotated[
        tuple[str, str | None],
        Setting("--publish", _DESTINATIONS, "node", _destination),
        "Where to publish: on the Node; in a NodeFeature of Node Feature Discovery, in a namespace that its master "
        "watches; in a file of its features.d, which expires; or on standard output.",
    ]
    mirror: Annotated[
        bool,
        Setting("--mirror", "auto|off", "auto", parse_flag("auto")),
        "auto: also write the nvidia.com/ labels that other software selects on, unless another component writes them.",
    ]
    interval_s: Annotated[
        float,
        Setting("--interval", "SECONDS", "60s", parse_seconds(1)),
        "The time between two passes over the GPUs, plus or minus 10 %. Driver events start an extra pass at once, so "
        "this only limits the delay of changes without an event. A pass takes a tenth of a second.",
    ]
    heartbeat_s: Annotated[
        float,
        Setting("--heartbeat", "SECONDS", f"{HEARTBEAT_S / 60:g}m", parse_seconds(10)),
        "How often the agent confirms NodeGpus, by its Lease, and restores its keys where other clients changed them, "
        "plus or minus 10 %. Readers treat a NodeGpus that was not confirmed for three times as long as unknown. "
        "15,000 nodes make 50 writes of 300 bytes a second.",
    ]
    lease_after_s: Annotated[
        float | None,
        Setting("--lease-after", "SECONDS|off", f"{HEARTBEAT_TRANSITION_S / 3600:g}h", _seconds_or_off),
        "From this time after its start on, the agent writes its heartbeats into a Lease only, and NodeGpus when its "
        "content changes. Until then it writes both, for readers of a version without Leases; off: NodeGpus only.",
    ]
    hold_s: Annotated[
        float,
        Setting("--hold", "SECONDS", "5m", parse_seconds(0)),
        "Recovery hold-down: how long a link or GPU must be healthy before the agent publishes the recovery. Failures "
        "are published at once. Every label change makes schedulers retry all waiting pods, so a flapping link must "
        "not reach the labels.",
    ]
    grace_s: Annotated[
        float,
        Setting("--grace", "SECONDS", "2m", parse_seconds(0)),
        "How long NVML or the API server may fail before the agent becomes unready, and before it exits if only a "
        "new process can recover. Longer than a reload of the driver.",
    ]
    socket: Annotated[
        Path | None,
        Setting("--socket", "PATH|off", "/var/lib/kubelet/pod-resources/kubelet.sock", parse_path),
        "The kubelet's PodResources socket, which reports the GPUs of each pod. The agent queries it every second.",
    ]
    kubelet_config: Annotated[
        tuple[Path, ...],
        Setting("--kubelet-config", "PATH[,PATH...]", "", _paths),
        "The kubelet's configuration file, and a directory with files that override it, if any. Only the settings of "
        "the Topology Manager are read, every 5 seconds, and only with --socket. Without them, a label of the node "
        "names the policy; else a required shape must hold for all GPUs that the kubelet may allocate under any "
        "policy.",
    ]
    node_resource_topology: Annotated[
        bool,
        Setting("--node-resource-topology", "on|off", "off", parse_flag("on")),
        "Where the kubelet's configuration file is not known: read policy and scope of the Topology Manager from the "
        "NodeResourceTopology that the topology updater of Node Feature Discovery writes for this node, every 5 "
        "minutes, and only with --socket.",
    ]
    events: Annotated[
        bool,
        Setting("--events", "on|off", "on", parse_flag("on")),
        "Wait for driver events (XID, lost GPU). This keeps the driver in use: a driver upgrade that unloads the "
        "module must stop this agent first, like every NVML client, or run it with `off`.",
    ]
    listen: Annotated[
        tuple[str, int] | None,
        Setting("--listen", "HOST:PORT|off", ":9438", parse_address),
        "The address of /metrics, /healthz and /readyz.",
    ]
    log: Annotated[str, log_setting(), LOG_HELP]
    node_source: Annotated[
        Path | None,
        Setting("--node-source", "FILE", "", parse_path),
        "Publish this recorded machine (`gputopo record`) instead of the real one; the agent reads the file at every "
        "pass. For tests and demonstrations.",
    ]


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> AgentSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    found = settings.read_settings(AgentSettings, flags, environ)
    return found if found.node else msgspec.structs.replace(found, node=socket.gethostname())
