"""Reservations and ledgers of a planner."""

from __future__ import annotations

from typing import Any

import msgspec

from gputopo.crd.reservations import (
    LEDGER_KIND,
    POOL,
    RESERVATION_KIND,
    HeldCapacity,
    LedgerSpec,
    PlannedMember,
    ReservationSpec,
)
from gputopo.kube.rbac import LEDGERS, RESERVATIONS
from tests.api_objects import Object
from tests.e2e.cluster import Cluster

SEAT = PlannedMember("u-0", "llm-7-0", "gpu-1", (("nvidia.com/gpu", 4),), (0, 1, 2, 3), 0)
PLAN = ReservationSpec(
    "llm-7", (SEAT, PlannedMember("u-1", "llm-7-1")), (HeldCapacity("gpu-2", 2),), 90.0, "clique=7b96.1", 450.0, 2
)


def reservation(cluster: Cluster, spec: Any, name: str = "llm-7-1a2b3c", **metadata: str) -> Object:
    return {
        "apiVersion": RESERVATIONS.api_version,
        "kind": RESERVATION_KIND,
        "metadata": {"name": name, "namespace": cluster.namespace, **metadata},
        "spec": msgspec.to_builtins(spec),
    }


def ledger(spec: LedgerSpec, **metadata: str) -> Object:
    named = {"name": POOL, **metadata}
    builtins = msgspec.to_builtins(spec)
    return {"apiVersion": LEDGERS.api_version, "kind": LEDGER_KIND, "metadata": named, "spec": builtins}
