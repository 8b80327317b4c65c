"""The extender's settings: flags, environment variables, defaults. How they are read: ``gputopo.process.settings``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.process.settings import (
    Setting,
    SettingError,
    log_setting,
    parse_address,
    parse_flag,
    parse_number,
    parse_path,
    parse_unless_off,
    read_values,
)
from scheduler_core.policy.policy import Policy
from scheduler_core.runtime.leader_election import LeaseName, parse_lease_name
from scheduler_core.runtime.tls import Certificates

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class ExtenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The extender's settings. ``TABLE`` explains each."""

    verbs: tuple[str, int]
    prefix: str
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None
    plain: bool
    lease: LeaseName | None
    listen: tuple[str, int] | None
    policy: Path | None
    reservations: bool
    shortlist: int
    max_body: int
    decisions: int
    decisions_file: Path | None
    log: str

    @property
    def certificates(self) -> Certificates | None:
        """The files of TLS; None: the verbs are plain."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return Certificates(self.tls_cert, self.tls_key, self.client_ca)


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ExtenderSettings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    settings = ExtenderSettings(**read_values(TABLE, flags, environ))
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingError("--tls-cert and --tls-key go together: give both or none")
    if settings.client_ca is not None and settings.certificates is None:
        raise SettingError("--client-ca needs --tls-cert and --tls-key: without TLS nobody shows a certificate")
    if settings.client_ca is None and not settings.plain and not _is_loopback(settings.verbs[0]):
        raise SettingError(
            f"--verbs {settings.verbs[0] or 'on every address'}: whoever reaches the verbs beyond loopback can make "
            "the scheduler's promises; give --tls-cert, --tls-key and --client-ca, or say --plain allow"
        )
    if settings.decisions_file is not None and not settings.decisions_file.parent.is_dir():
        raise SettingError(
            f"--decisions-file {settings.decisions_file}: there is no folder {settings.decisions_file.parent}"
        )
    return settings


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _verbs(text: str) -> tuple[str, int]:
    found = parse_address(text)
    if found is None:
        raise ValueError("the verbs cannot be off: write HOST:PORT")
    return found


def _prefix(text: str) -> str:
    found = text.rstrip("/")
    if _PREFIX.fullmatch(found) is None:
        raise ValueError("write a path like /gputopo")
    return found


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})(Ki|Mi|Gi)", text)
    if match is None or not int(match[1]):
        raise ValueError("write a size like 64Mi")
    return int(match[1]) * {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[match[2]]


TABLE = (
    Setting(
        "verbs",
        "--verbs",
        "GPUTOPO_VERBS",
        "127.0.0.1:9440",
        "HOST:PORT",
        "Where kube-scheduler calls filter and prioritize. Loopback, since the extender runs beside it in one pod.",
        _verbs,
    ),
    Setting(
        "prefix",
        "--prefix",
        "GPUTOPO_PREFIX",
        "",
        "PATH",
        "What comes before /filter and /prioritize in the path: the path of urlPrefix in KubeSchedulerConfiguration.",
        _prefix,
    ),
    Setting(
        "tls_cert",
        "--tls-cert",
        "GPUTOPO_TLS_CERT",
        "",
        "FILE",
        "The verbs' certificate with its chain, PEM; with it they speak TLS. Read again within seconds of a rotation.",
        parse_path,
    ),
    Setting(
        "tls_key",
        "--tls-key",
        "GPUTOPO_TLS_KEY",
        "",
        "FILE",
        "The key of that certificate, PEM, not encrypted.",
        parse_path,
    ),
    Setting(
        "client_ca",
        "--client-ca",
        "GPUTOPO_CLIENT_CA",
        "",
        "FILE",
        "Who calls the verbs must show a certificate of this CA, PEM. Let it certify nobody but kube-scheduler.",
        parse_path,
    ),
    Setting(
        "plain",
        "--plain",
        "GPUTOPO_PLAIN",
        "off",
        "allow|off",
        "Allow verbs beyond loopback that do not ask for a client certificate. Only where the network itself keeps "
        "everybody but kube-scheduler away.",
        parse_flag("allow"),
    ),
    Setting(
        "lease",
        "--lease",
        "GPUTOPO_LEASE",
        "off",
        "NAMESPACE/NAME|off",
        "Answer only while holding this Lease: where several extenders run behind a Service. Beside a scheduler that "
        "is elected itself, off.",
        parse_unless_off(parse_lease_name),
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9439",
        "HOST:PORT|off",
        "Where /metrics, /healthz, /readyz, /decisions and /explain are served.",
        parse_address,
    ),
    Setting(
        "policy",
        "--policy",
        "GPUTOPO_POLICY",
        "off",
        "FILE|off",
        "A policy file (docs/policies.md), read again within seconds of a change. A bad one ends the start; after a "
        "bad change the old one stays in force.",
        parse_path,
    ),
    Setting(
        "reservations",
        "--reservations",
        "GPUTOPO_RESERVATIONS",
        "on",
        "on|off",
        "Keep what planners reserve for gangs from everybody else, and vouch for what they propose. Where there is no "
        "planner this costs two watches of nothing. With off, plans and this extender's answers may conflict.",
        parse_flag("on"),
    ),
    Setting(
        "shortlist",
        "--shortlist",
        "GPUTOPO_SHORTLIST",
        str(Policy().shortlist),
        "NODES",
        "How many of the nodes that suit a pod filter answers at most, the best first: kube-scheduler then scores "
        "dozens instead of thousands. Pods with preferences of their own among nodes get all.",
        parse_number(1, 100_000),
    ),
    Setting(
        "max_body",
        "--max-body",
        "GPUTOPO_MAX_BODY",
        "64Mi",
        "SIZE",
        "The largest body that is read. With nodeCacheCapable 15,000 nodes are half a MiB; whole nodes are 2 KB each "
        "or more, and all that is read at once is bounded by four times this.",
        _size,
    ),
    Setting(
        "decisions",
        "--decisions",
        "GPUTOPO_DECISIONS",
        "256",
        "COUNT",
        "How many of the last decisions are kept for /decisions, and to recompute them. Less where thousands of nodes "
        "were asked about: their names are the greater part, and bounded together.",
        parse_number(1, 100_000),
    ),
    Setting(
        "decisions_file",
        "--decisions-file",
        "GPUTOPO_DECISIONS_FILE",
        "off",
        "FILE|off",
        "Append every decision to this file, for `gputopo replay`. At 64 MiB it becomes FILE.1 and a new one begins.",
        parse_path,
    ),
    log_setting(),
)
