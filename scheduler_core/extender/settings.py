"""The extender's settings. ``gputopo.process.settings`` reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from gputopo.process import settings
from gputopo.process.settings import (
    LOG_HELP,
    PAGES_HELP,
    PAGES_SETTING,
    Setting,
    SettingError,
    is_loopback,
    log_setting,
    parse_address,
    parse_flag,
    parse_number,
    parse_path,
    parse_required_address,
    parse_unless_off,
)
from scheduler_core.policy.policy import Policy
from scheduler_core.runtime.leader_election import LeaseName, parse_lease_name
from scheduler_core.runtime.tls import (
    TLS_CERT_HELP,
    TLS_CERT_SETTING,
    TLS_KEY_HELP,
    TLS_KEY_SETTING,
    Certificates,
    certificates_of,
)

_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def _parse_prefix(text: str) -> str:
    found = text.rstrip("/")
    if _PREFIX.fullmatch(found) is None:
        raise ValueError("expected a path such as /gputopo")
    return found


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})(Ki|Mi|Gi)", text)
    if match is None or not int(match[1]):
        raise ValueError("expected a size such as 64Mi")
    return int(match[1]) * {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[match[2]]


class ExtenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The extender's settings."""

    verbs: Annotated[
        tuple[str, int],
        Setting("--verbs", "HOST:PORT", "127.0.0.1:9440", parse_required_address),
        "The address where kube-scheduler calls filter and prioritize. Loopback, because the extender runs in the pod "
        "of kube-scheduler.",
    ]
    prefix: Annotated[
        str,
        Setting("--prefix", "PATH", "", _parse_prefix),
        "The part of the path before /filter and /prioritize: the path of urlPrefix in KubeSchedulerConfiguration.",
    ]
    tls_cert: Annotated[Path | None, TLS_CERT_SETTING, TLS_CERT_HELP]
    tls_key: Annotated[Path | None, TLS_KEY_SETTING, TLS_KEY_HELP]
    client_ca: Annotated[
        Path | None,
        Setting("--client-ca", "FILE", "", parse_path),
        "Callers of the verbs must show a certificate of this CA, PEM. The CA must certify only kube-scheduler.",
    ]
    client_name: Annotated[
        str,
        Setting("--client-name", "NAME", "kube-scheduler", str),
        "The name that the certificate of a caller must have: a subject alternative name, or without any the common "
        "name. Empty: every certificate of --client-ca may call.",
    ]
    plain: Annotated[
        bool,
        Setting("--plain", "allow|off", "off", parse_flag("allow")),
        "allow: serve the verbs beyond loopback without client certificates. Only safe if the network itself admits "
        "no caller but kube-scheduler.",
    ]
    lease: Annotated[
        LeaseName | None,
        Setting("--lease", "NAMESPACE/NAME|off", "off", parse_unless_off(parse_lease_name)),
        "Answer only while holding this Lease: for several extenders behind one Service. off: for an extender in the "
        "pod of a kube-scheduler, which has its own leader election.",
    ]
    listen: Annotated[
        tuple[str, int] | None,
        Setting("--listen", "HOST:PORT|off", ":9439", parse_address),
        "The address of /metrics, /healthz, /readyz, /decisions and /explain.",
    ]
    pages: Annotated[str, PAGES_SETTING, PAGES_HELP]
    policy: Annotated[
        Path | None,
        Setting("--policy", "FILE|off", "off", parse_path),
        "A policy file (docs/policies.md), reloaded within seconds of a change. An invalid file fails start-up; after "
        "an invalid change the previous policy stays in force.",
    ]
    reservations: Annotated[
        bool,
        Setting("--reservations", "on|off", "on", parse_flag("on")),
        "Keep the GPUs that planners reserve for gangs from other pods, and acknowledge the proposals of planners. "
        "Without a planner this costs two idle watches. With off, plans and this extender's answers may conflict.",
    ]
    shortlist: Annotated[
        int,
        Setting("--shortlist", "NODES", str(Policy().shortlist), parse_number(1, 100_000)),
        "The maximum number of suitable nodes that filter returns, best first: kube-scheduler then scores dozens of "
        "nodes instead of thousands. Pods with node preferences of their own get all suitable nodes.",
    ]
    max_body: Annotated[
        int,
        Setting("--max-body", "SIZE", "64Mi", _parse_size),
        "The maximum size of a request body. With nodeCacheCapable, 15,000 nodes take half a MiB; complete nodes take "
        "2 KB each or more. All bodies that are being read together may have four times this size.",
    ]
    decisions: Annotated[
        int,
        Setting("--decisions", "COUNT", "256", parse_number(1, 100_000)),
        "The number of recent decisions kept for /decisions, and to recompute them. Fewer are kept if calls name "
        "thousands of nodes: the names take most of the memory, and their total is limited.",
    ]
    decisions_file: Annotated[
        Path | None,
        Setting("--decisions-file", "FILE|off", "off", parse_path),
        "Append every decision to this file, for `gputopo replay`. At 64 MiB it is renamed to FILE.1.",
    ]
    log: Annotated[str, log_setting(), LOG_HELP]

    @property
    def certificates(self) -> Certificates | None:
        """Return the TLS files; None if the verbs are plain HTTP."""
        return certificates_of(self.tls_cert, self.tls_key, self.client_ca, self.client_name)


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> ExtenderSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    found = settings.read_settings(ExtenderSettings, flags, environ)
    certificates_of(found.tls_cert, found.tls_key, found.client_ca)
    if found.client_ca is None and not found.plain and not is_loopback(found.verbs[0]):
        raise SettingError(
            f"--verbs {found.verbs[0] or 'on every address'}: every client that reaches the verbs could reserve GPUs "
            "in the name of kube-scheduler; give --tls-cert, --tls-key and --client-ca, or --plain allow"
        )
    if found.decisions_file is not None and not found.decisions_file.parent.is_dir():
        raise SettingError(
            f"--decisions-file {found.decisions_file}: the directory {found.decisions_file.parent} does not exist"
        )
    return found
