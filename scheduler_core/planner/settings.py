"""What an operator can set at the planner. How settings are read: ``gputopo.settings``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gputopo.labels.reservations import POOL
from gputopo.settings import Setting, address, number, one_of, path, seconds, values
from scheduler_core import together
from scheduler_core.gangs.planning import LEVELS, Levels
from scheduler_core.gangs.queue import USUAL, Pace
from scheduler_core.gangs.world import Rollback, Terms
from scheduler_core.lease import LeaseName, lease_name

_LEAST_SILENCE_S = 100.0  # a watch on which all is well may be silent for ``gputopo.kube.client.SILENCE_S``
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")  # a DNS subdomain
_LONGEST = 253


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The planner's settings. ``TABLE`` explains each."""

    lease: LeaseName
    listen: tuple[str, int] | None
    namespace: str | None
    pool: str
    ledger: str
    extenders: int
    settle_s: float
    policy: Path | None
    levels: Levels
    patience_s: float
    back_off_s: float
    rollback: str
    unplaceable: str
    release_after_s: float
    gate_timeout_s: float | None
    max_silence_s: float
    log: str

    @property
    def terms(self) -> Terms:
        """How gangs are committed and rolled back."""
        return Terms(self.pool == "gated", self.extenders, self.settle_s, Rollback(self.rollback))

    @property
    def pace(self) -> Pace:
        """How the queue goes on."""
        return USUAL._replace(patience_s=self.patience_s, first_s=self.back_off_s)


def read(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """The settings; ``flags`` by field, None where not given. Raises ``SettingError``."""
    return Settings(**values(TABLE, flags, environ))


def levels(text: str) -> Levels:
    """``rack=KEY|KEY,block=KEY``: of each level named there the labels, narrowest level first; "": the usual ones."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, text.split(",")):
        name, equals, keys = part.partition("=")
        labels = tuple(keys.split("|"))
        if not (name and equals) or not all(map(_LABEL.fullmatch, labels)):
            raise ValueError("write NAME=LABEL, more labels of one level after a |, narrowest first: rack=a|b,zone=c")
        if name not in together.LEVELS:  # a pod could not ask for it
            known = ", ".join(together.LEVELS)
            raise ValueError(f"{name!r} is no level: there are {known}; pods ask for any other label by its key")
        found[name] = labels
    return found or LEVELS


def _unless_off(text: str) -> float | None:
    return None if text == "off" else seconds(1)(text)


def _name(text: str) -> str:
    if len(text) > _LONGEST or _NAME.fullmatch(text) is None:
        raise ValueError(
            "write the name of an object: lower-case letters, digits, - and ., beginning and ending with a letter or "
            f"digit, each part between dots too, at most {_LONGEST} characters"
        )
    return text


def _namespace(text: str) -> str | None:
    return text or None


TABLE = (
    Setting(
        "lease",
        "--lease",
        "GPUTOPO_LEASE",
        "gputopo/gputopo-planner",
        "NAMESPACE/NAME",
        "Which of several planners plans: the holder of this Lease. Run two: without any planner nobody takes gates "
        "away.",
        lease_name,
    ),
    Setting(
        "listen",
        "--listen",
        "GPUTOPO_LISTEN",
        ":9439",
        "HOST:PORT|off",
        "Where /metrics, /healthz, /readyz and /gangs are served.",
        address,
    ),
    Setting(
        "namespace",
        "--namespace",
        "GPUTOPO_NAMESPACE",
        "",
        "NAME",
        "Where the reservations of single pods are written; where nothing is said, the planner's own namespace.",
        _namespace,
    ),
    Setting(
        "pool",
        "--pool",
        "GPUTOPO_POOL",
        "mixed",
        "mixed|gated",
        "mixed: GPU pods without our gate land on the same nodes, so extenders vouch for each plan before it counts. "
        "gated: every GPU pod of these nodes has our gate, and nobody needs to.",
        one_of("mixed", "gated"),
    ),
    Setting(
        "ledger",
        "--ledger",
        "GPUTOPO_LEDGER",
        POOL,
        "NAME",
        "The PlacementLedger that says what counts. Two installations on the same nodes must share one.",
        _name,
    ),
    Setting(
        "extenders",
        "--extenders",
        "GPUTOPO_EXTENDERS",
        "1",
        "COUNT",
        "How many extenders must be registered at the ledger at least before anything is committed in a mixed pool: "
        "with fewer, one that answers may not have been heard of yet.",
        number(0, 1000),
    ),
    Setting(
        "settle_s",
        "--settle",
        "GPUTOPO_SETTLE",
        "45s",
        "SECONDS",
        "How long after the ledger was made the first plan is proposed in a mixed pool: an extender looks every 30 "
        "seconds for a kind that was not served before.",
        seconds(0),
    ),
    Setting(
        "policy",
        "--policy",
        "GPUTOPO_POLICY",
        "off",
        "FILE|off",
        "The extender's policy file (docs/policies.md): both must judge nodes alike. Read again after a change.",
        path,
    ),
    Setting(
        "levels",
        "--levels",
        "GPUTOPO_LEVELS",
        "",
        "NAME=LABEL,...",
        "The labels of clique, rack, block and zone, narrowest first, those that there are: rack=a|b,block=c,zone=d. "
        "Where nothing is said: all four, by the usual labels.",
        levels,
    ),
    Setting(
        "patience_s",
        "--patience",
        "GPUTOPO_PATIENCE",
        "5m",
        "SECONDS",
        "How long a gang or single pod that does not fit lets smaller ones pass; then what becomes free where it will fit "
        "is held.",
        seconds(1),
    ),
    Setting(
        "back_off_s",
        "--back-off",
        "GPUTOPO_BACK_OFF",
        "10s",
        "SECONDS",
        "How long a gang that was taken back waits before it is planned again; doubled by each time that follows, to "
        "5 minutes at most.",
        seconds(1),
    ),
    Setting(
        "rollback",
        "--rollback",
        "GPUTOPO_ROLLBACK",
        "gang",
        "gang|unstarted",
        "Which members are deleted, to come again gated, where not all were bound in time: all that were let go, or "
        "only those that have not started.",
        one_of("gang", "unstarted"),
    ),
    Setting(
        "unplaceable",
        "--unplaceable",
        "GPUTOPO_UNPLACEABLE",
        "wait",
        "wait|release",
        "What becomes of a gang that fits nowhere: it waits, gated, or its pods are released unpinned, so that a "
        "cluster autoscaler sees them. Released pods are no gang any more: some may start and others not.",
        one_of("wait", "release"),
    ),
    Setting(
        "release_after_s",
        "--release-after",
        "GPUTOPO_RELEASE_AFTER",
        "10m",
        "SECONDS",
        "With --unplaceable release: how long after it could first be planned.",
        seconds(1),
    ),
    Setting(
        "gate_timeout_s",
        "--gate-timeout",
        "GPUTOPO_GATE_TIMEOUT",
        "10m",
        "SECONDS|off",
        "How long a single pod (gputopo.io/planned) may wait for a place; then it is released to ordinary scheduling. "
        "Members of gangs are not: half a gang that starts is what gates are there to prevent.",
        _unless_off,
    ),
    Setting(
        "max_silence_s",
        "--max-silence",
        "GPUTOPO_MAX_SILENCE",
        "2m",
        "SECONDS",
        "How long a watch may have heard nothing, not even a bookmark, before /readyz says so. The planner goes on "
        "with what it knows.",
        seconds(_LEAST_SILENCE_S),
    ),
    Setting(
        "log",
        "--log",
        "GPUTOPO_LOG",
        "json",
        "json|text",
        "The form of the log on standard error: one line an event, with fields.",
        one_of("json", "text"),
    ),
)
