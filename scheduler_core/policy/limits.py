"""Limits on what the gangs of one namespace may take from others: planning time, and held GPUs. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

_LEAST_HELD = 16  # GPUs: a share of a small cluster is less than one gang of two nodes


class GpuLimit(NamedTuple):
    """A number of GPUs, or a share of all GPUs of the cluster."""

    gpus: int | None = None
    percent: int = 0

    def __str__(self) -> str:
        return f"{self.percent}%" if self.gpus is None else str(self.gpus)

    def max_gpus(self, total: int) -> int:
        """Return the number of GPUs. ``total``: of the cluster."""
        if self.gpus is not None:
            return self.gpus
        return max(_LEAST_HELD, total * self.percent // 100) if self.percent else 0


class NamespaceLimits(NamedTuple):
    """The limits of one namespace."""

    held_gpus: GpuLimit = GpuLimit(percent=50)
    queued_gangs: int = 1_000  # that are planned, single pods included; more wait outside the queue
    gated_pods: int = 10_000  # of these gangs
    # That have places and are not bound yet. Each is in the ledger, whose size decides how long a write of it takes.
    starting_gangs: int = 100


class GangLimits(NamedTuple):
    """The limits of all namespaces."""

    max_hold_age_s: float = 12 * 3600.0  # of a capacity hold; then the namespace gets none for as long
    # From ungating a gang until its rollback. kube-scheduler waits up to 10 minutes for a pod's volumes.
    max_timeout_s: float = 900.0
    default: NamespaceLimits = NamespaceLimits()
    by_namespace: Mapping[str, NamespaceLimits] = MappingProxyType({})

    def limits_of(self, namespace: str) -> NamespaceLimits:
        """Return the limits of a namespace."""
        return self.by_namespace.get(namespace, self.default)


DEFAULT_LIMITS = GangLimits()
LIMITS = ("queuedGangs", "gatedPods", "startingGangs", "heldGpus", "maxHoldAge")  # keys in the policy file


class LimitReached(NamedTuple):
    """The limit because of which a gang is not planned, or holds no capacity."""

    limit: str  # one of ``LIMITS``
    reason: str  # for people; stable while nothing changes


class BackfillMode(Enum):
    """Which gangs may use capacity that is held for another gang."""

    OFF = "off"
    DEADLINE = "deadline"  # of pods that Kubernetes ends before the estimated start of the other gang
    ESTIMATE = "estimate"  # also of pods that only say how long they run: they are evicted before that time


class BackfillPolicy(NamedTuple):
    """The policy of backfill."""

    mode: BackfillMode = BackfillMode.OFF  # else pods must be evicted, which needs a permission
    max_grace_s: float = 30.0  # of pods on held capacity: for so long the other gang may wait for their end


DEFAULT_BACKFILL = BackfillPolicy()
