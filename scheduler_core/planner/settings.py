"""What an operator can set at the planner. How settings are read: ``gputopo.process.settings``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.process.settings import (
    Setting,
    log_setting,
    parse_address,
    parse_one_of,
    parse_path,
    parse_seconds,
    parse_unless_off,
    read_values,
)
from gputopo.timing import LEDGER_SETTLE_S
from scheduler_core.planner.commit.state import CommitTerms, Rollback
from scheduler_core.planner.leader.queue import DEFAULT_TIMING, QueueTiming
from scheduler_core.planner.packing.model import LEVELS, Levels
from scheduler_core.request import gang_annotations
from scheduler_core.runtime.leader_election import LeaseName, parse_lease_name

_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class PlannerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's settings. ``TABLE`` explains each."""

    lease: LeaseName
    listen: tuple[str, int] | None
    pool: str
    settle_s: float
    annotations: str
    policy: Path | None
    levels: Levels
    patience_s: float
    back_off_s: float
    rollback: str
    release_after_s: float | None
    gate_timeout_s: float | None
    log: str

    @property
    def terms(self) -> CommitTerms:
        """How gangs are committed and rolled back."""
        lease = f"{self.lease.namespace}/{self.lease.name}"
        rollback, levels, guarded = Rollback(self.rollback), format_levels(self.levels), self.annotations == "guarded"
        return CommitTerms(self.pool == "gated", self.settle_s, rollback, lease=lease, levels=levels, guarded=guarded)

    @property
    def pace(self) -> QueueTiming:
        """How the queue goes on."""
        return DEFAULT_TIMING._replace(patience_s=self.patience_s, first_s=self.back_off_s)


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> PlannerSettings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    return PlannerSettings(**read_values(TABLE, flags, environ))


def parse_levels(text: str) -> Levels:
    """``rack=KEY|KEY,block=KEY``: of each level named there the labels, narrowest level first; "": the usual ones."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(",")):
        name, equals, keys = part.partition("=")
        labels = tuple(keys.split("|"))
        if not (name and equals) or not all(map(_LABEL.fullmatch, labels)):
            raise ValueError("write NAME=LABEL, more labels of one level after a |, narrowest first: rack=a|b,zone=c")
        if name not in gang_annotations.LEVELS:  # a pod could not ask for it
            known = ", ".join(gang_annotations.LEVELS)
            raise ValueError(f"{name!r} is no level: there are {known}; pods ask for any other label by its key")
        if name in found:
            raise ValueError(f"{name} is there twice: write more labels of one level after a |: rack=a|b")
        found[name] = labels
    if list(found) != [name for name in gang_annotations.LEVELS if name in found]:
        raise ValueError(f"write the narrowest level first: {', '.join(gang_annotations.LEVELS)}")
    return found or LEVELS


def format_levels(found: Levels) -> str:
    """As ``levels`` reads them."""
    return ",".join(f"{name}={'|'.join(keys)}" for name, keys in found.items())


TABLE = (
    Setting(
        "lease",
        "--lease",
        "GPUTOPO_LEASE",
        "gputopo/gputopo-planner",
        "NAMESPACE/NAME",
        "Which of several planners plans: the holder of this Lease. Run two: without any planner nobody takes gates "
        "away. The reservations of single pods are in its namespace.",
        parse_lease_name,
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9439",
        "HOST:PORT|off",
        "Where /metrics, /healthz, /readyz and /gangs are served.",
        parse_address,
    ),
    Setting(
        "pool",
        "--pool",
        "GPUTOPO_POOL",
        "mixed",
        "mixed|gated",
        "mixed: GPU pods without our gate land on the same nodes, so extenders vouch for each plan before it counts. "
        "gated: every GPU pod of these nodes has our gate, and nobody needs to.",
        parse_one_of("mixed", "gated"),
    ),
    Setting(
        "settle_s",
        "--settle",
        "GPUTOPO_SETTLE",
        f"{LEDGER_SETTLE_S:g}s",
        "SECONDS",
        "How long after the ledger was made the first plan is proposed in a mixed pool: an extender looks every 30 "
        "seconds for a kind that was not served before.",
        parse_seconds(0),
    ),
    Setting(
        "annotations",
        "--annotations",
        "GPUTOPO_ANNOTATIONS",
        "unguarded",
        "guarded|unguarded",
        "guarded: the admission policy gputopo-pod-annotations is in force, so only the planner writes its annotations "
        "on pods, and reservations that were deleted by hand are recovered from what pods say. unguarded: only those "
        "that this process saw itself are.",
        parse_one_of("guarded", "unguarded"),
    ),
    Setting(
        "policy",
        "--policy",
        "GPUTOPO_POLICY",
        "off",
        "FILE|off",
        "The extender's policy file (docs/policies.md): both must judge nodes alike. Read again after a change.",
        parse_path,
    ),
    Setting(
        "levels",
        "--levels",
        "GPUTOPO_LEVELS",
        "",
        "NAME=LABEL,...",
        "The labels of clique, rack, block and zone, narrowest first, those that there are: rack=a|b,block=c,zone=d. "
        "Where nothing is said: all four, by the usual labels.",
        parse_levels,
    ),
    Setting(
        "patience_s",
        "--patience",
        "GPUTOPO_PATIENCE",
        "5m",
        "SECONDS",
        "How long a gang or single pod that does not fit lets smaller ones pass; then what becomes free where it will "
        "fit is held.",
        parse_seconds(1),
    ),
    Setting(
        "back_off_s",
        "--back-off",
        "GPUTOPO_BACK_OFF",
        "10s",
        "SECONDS",
        "How long a gang that was taken back waits before it is planned again; doubled by each time that follows, to "
        "5 minutes at most.",
        parse_seconds(1, DEFAULT_TIMING.most_s),
    ),
    Setting(
        "rollback",
        "--rollback",
        "GPUTOPO_ROLLBACK",
        "gang",
        "gang|unstarted",
        "Which members are deleted, to come again gated, where not all were bound in time: all that were let go, or "
        "only those that have not started.",
        parse_one_of("gang", "unstarted"),
    ),
    Setting(
        "release_after_s",
        "--release-after",
        "GPUTOPO_RELEASE_AFTER",
        "off",
        "SECONDS|off",
        "After how long a gang that fits nowhere is released: its pods lose our gate, unpinned, so that a cluster "
        "autoscaler sees them. They are no gang any more: some may start and others not. off: it waits.",
        parse_unless_off(parse_seconds(1)),
    ),
    Setting(
        "gate_timeout_s",
        "--gate-timeout",
        "GPUTOPO_GATE_TIMEOUT",
        "10m",
        "SECONDS|off",
        "How long a single pod (gputopo.io/planned) may wait for a place; then it is released to ordinary scheduling. "
        "Members of gangs are not: half a gang that starts is what gates are there to prevent.",
        parse_unless_off(parse_seconds(1)),
    ),
    log_setting(),
)
