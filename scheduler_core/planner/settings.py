"""The planner's settings. ``gputopo.process.settings`` reads them."""

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
    log_setting,
    parse_address,
    parse_one_of,
    parse_path,
    parse_seconds,
    parse_unless_off,
)
from gputopo.timing import LEDGER_SETTLE_S
from scheduler_core.planner.commit.state import CommitTerms, Rollback
from scheduler_core.planner.leader.queue import DEFAULT_TIMING, QueueTiming
from scheduler_core.planner.packing.model import LEVELS, Levels
from scheduler_core.request import gang_annotations
from scheduler_core.runtime.leader_election import LeaseName, parse_lease_name

_CLASS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LONGEST_CLASS = 253  # characters
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def parse_levels(text: str) -> Levels:
    """Return the labels of each level from ``rack=KEY|KEY,block=KEY``, narrowest level first; "" for the defaults."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(",")):
        name, equals, keys = part.partition("=")
        labels = tuple(keys.split("|"))
        if not (name and equals) or not all(map(_LABEL.fullmatch, labels)):
            raise ValueError(
                "write NAME=LABEL, narrowest level first, labels of one level separated by |: rack=a|b,zone=c"
            )
        if name not in gang_annotations.LEVELS:  # a pod could not request it
            known = ", ".join(gang_annotations.LEVELS)
            raise ValueError(f"{name!r} is not a level: expected {known}; pods request any other label by its key")
        if name in found:
            raise ValueError(f"{name} is given twice: separate the labels of one level by |: rack=a|b")
        found[name] = labels
    if list(found) != [name for name in gang_annotations.LEVELS if name in found]:
        raise ValueError(f"write the narrowest level first: {', '.join(gang_annotations.LEVELS)}")
    return found or LEVELS


def parse_provisioning_class(text: str) -> str:
    """Return the name of a class of ProvisioningRequests. Raises ``ValueError``."""
    if len(text) > _LONGEST_CLASS or _CLASS.fullmatch(text) is None:
        raise ValueError("expected the name of a class, such as check-capacity.autoscaling.x-k8s.io, or off")
    return text


def format_levels(found: Levels) -> str:
    """Return the text that ``parse_levels`` reads."""
    return ",".join(f"{name}={'|'.join(keys)}" for name, keys in found.items())


class PlannerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's settings."""

    lease: Annotated[
        LeaseName,
        Setting("--lease", "NAMESPACE/NAME", "gputopo/gputopo-planner", parse_lease_name),
        "Of several planners, the holder of this Lease plans. Run two: without a planner, no gates are removed. The "
        "reservations of single pods are in the namespace of the Lease.",
    ]
    listen: Annotated[
        tuple[str, int] | None,
        Setting("--listen", "HOST:PORT|off", ":9439", parse_address),
        "The address of /metrics, /healthz, /readyz and /gangs.",
    ]
    pages: Annotated[str, PAGES_SETTING, PAGES_HELP]
    pool: Annotated[
        str,
        Setting("--pool", "mixed|gated", "mixed", parse_one_of("mixed", "gated")),
        "mixed: GPU pods without gputopo's gate use the same nodes, so extenders acknowledge each plan before it "
        "counts. gated: every GPU pod of these nodes has gputopo's gate, and no acknowledgement is needed.",
    ]
    settle_s: Annotated[
        float,
        Setting("--settle", "SECONDS", f"{LEDGER_SETTLE_S:g}s", parse_seconds(0)),
        "How long after the creation of the ledger the planner proposes the first plan in a mixed pool: an extender "
        "checks every 30 seconds for kinds that the API server did not serve before.",
    ]
    annotations: Annotated[
        str,
        Setting("--annotations", "guarded|unguarded", "unguarded", parse_one_of("guarded", "unguarded")),
        "guarded: the admission policy gputopo-pod-annotations is in force, so only the planner writes its annotations "
        "on pods, and the planner recovers manually deleted reservations from these annotations. unguarded: it "
        "recovers only reservations that this process observed.",
    ]
    policy: Annotated[
        Path | None,
        Setting("--policy", "FILE|off", "off", parse_path),
        "The extender's policy file (docs/policies.md): both must use the same policy. Reloaded after a change.",
    ]
    levels: Annotated[
        Levels,
        Setting("--levels", "NAME=LABEL,...", "", parse_levels),
        "The node labels of the levels clique, rack, block and zone that the cluster has, narrowest level first: "
        "rack=a|b,block=c,zone=d. Without this option: all four levels, with the usual labels.",
    ]
    patience_s: Annotated[
        float,
        Setting("--patience", "SECONDS", "5m", parse_seconds(1)),
        "How long smaller gangs and pods may overtake a gang or single pod that does not fit. After this time the "
        "planner holds the capacity that becomes free on the nodes where it will fit.",
    ]
    back_off_s: Annotated[
        float,
        Setting("--back-off", "SECONDS", "10s", parse_seconds(1, DEFAULT_TIMING.most_s)),
        "How long a gang that was rolled back waits before the planner plans it again; doubled at every further "
        "rollback, up to 5 minutes.",
    ]
    rollback: Annotated[
        str,
        Setting("--rollback", "gang|unstarted", "gang", parse_one_of("gang", "unstarted")),
        "The members to delete, so that their controllers create them again with the gate, if not all members are "
        "bound in time: all ungated members, or only the members that have not started.",
    ]
    release_after_s: Annotated[
        float | None,
        Setting("--release-after", "SECONDS|off", "off", parse_unless_off(parse_seconds(1))),
        "Release a gang that fits nowhere after this time: its pods lose gputopo's gate without a pin, so that a "
        "cluster autoscaler sees them. They are no longer a gang: some may start without the others. off: it waits.",
    ]
    gate_timeout_s: Annotated[
        float | None,
        Setting("--gate-timeout", "SECONDS|off", "10m", parse_unless_off(parse_seconds(1))),
        "How long a single pod (gputopo.io/planned) may wait for a node; then it is released to ordinary scheduling. "
        "Members of gangs are not released: gates exist to prevent gangs that start in part.",
    ]
    provisioning_class: Annotated[
        str | None,
        Setting("--provisioning-class", "CLASS|off", "off", parse_unless_off(parse_provisioning_class)),
        "Ask the cluster autoscaler for nodes for gangs that do not fit: create a ProvisioningRequest of this class, "
        "for example check-capacity.autoscaling.x-k8s.io or best-effort-atomic-scale-up.autoscaling.x-k8s.io.",
    ]
    log: Annotated[str, log_setting(), LOG_HELP]

    @property
    def terms(self) -> CommitTerms:
        """Return how gangs are committed and rolled back."""
        lease = f"{self.lease.namespace}/{self.lease.name}"
        rollback, levels, guarded = Rollback(self.rollback), format_levels(self.levels), self.annotations == "guarded"
        return CommitTerms(self.pool == "gated", self.settle_s, rollback, lease=lease, levels=levels, guarded=guarded)

    @property
    def pace(self) -> QueueTiming:
        """Return the timing of the queue."""
        return DEFAULT_TIMING._replace(patience_s=self.patience_s, first_s=self.back_off_s)


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> PlannerSettings:
    """Return the settings. ``flags``: values by field, None where not given. Raises ``SettingError``."""
    return settings.read_settings(PlannerSettings, flags, environ)
