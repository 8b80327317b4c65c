"""The real API server accepts, rejects and shows the objects that the planner and extenders write."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import (
    LEDGER_KIND,
    POOL,
    EntryPhase,
    ExtenderAck,
    LedgerEntry,
    LedgerSpec,
    LedgerStatus,
    PlannedMember,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
    spec_hash,
)
from gputopo.kube.client import Kube
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError
from gputopo.kube.objects import PlacementLedger
from gputopo.kube.rbac import EXTENDER, LEDGER_STATUS, LEDGERS, PLANNER, PODS, RESERVATION_STATUS, RESERVATIONS
from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.daemonset.tools import tool
from tests.e2e.agent.access import grant, open_kube
from tests.e2e.cluster import Cluster
from tests.e2e.daemonset.installed import apply, documents
from tests.e2e.daemonset.planner_objects import PLAN, ledger, reservation

pytestmark = pytest.mark.e2e
STATUS = ReservationStatus(ReservationState.COMMITTED, "waits for gpu-1", 1, 2, 1, 4, "2026-11-21T12:00:30Z")


@pytest.fixture
def planner(cluster: Cluster, tmp_path: Path) -> Iterator[Kube]:
    """A connection that may do what a planner may, in a cluster that has the kinds."""
    apply(cluster, documents("scheduler/planner-without-gates/crds.yaml"))
    grant(cluster, "planner", PLANNER)
    kube = open_kube(cluster, "planner", PLANNER, tmp_path)
    yield kube
    kube.close()


@pytest.fixture
def extender(cluster: Cluster, planner: Kube, tmp_path: Path) -> Iterator[Kube]:
    """A client with the role of an extender."""
    assert planner is not None
    grant(cluster, "extender", EXTENDER)
    kube = open_kube(cluster, "extender", EXTENDER, tmp_path)
    yield kube
    kube.close()


def ledger_status(**extenders: ExtenderAck) -> Object:
    status = msgspec.to_builtins(LedgerStatus(extenders))
    return {"apiVersion": LEDGERS.api_version, "kind": LEDGER_KIND, "metadata": {"name": POOL}, "status": status}


def test_a_plan_is_kept_as_it_was_written_and_never_changed(cluster: Cluster, planner: Kube) -> None:
    made = planner.create(RESERVATIONS, reservation(cluster, PLAN))

    path = RESERVATIONS.path("llm-7-1a2b3c", cluster.namespace)
    kept = cluster.api.get(path)
    assert (made.uid, made.resource_version) == (kept["metadata"]["uid"], kept["metadata"]["resourceVersion"])
    assert msgspec.convert(kept["spec"], ReservationSpec) == PLAN
    assert spec_hash(msgspec.convert(kept["spec"], ReservationSpec)) == spec_hash(PLAN)
    with pytest.raises(Exception, match="a plan is immutable: create another reservation for another plan"):
        cluster.api.patch(path, {"spec": {"attempt": 3}})


def test_the_status_is_written_apart_and_shown_in_columns(cluster: Cluster, planner: Kube, tmp_path: Path) -> None:
    made = planner.create(RESERVATIONS, reservation(cluster, PLAN))
    metadata = {"name": made.name, "namespace": made.namespace, "uid": made.uid}
    written = planner.patch(
        RESERVATION_STATUS,
        {"metadata": {**metadata, "resourceVersion": made.resource_version}, "status": msgspec.to_builtins(STATUS)},
    )

    assert (made.generation, written.generation) == (1, 1)
    with pytest.raises(ConflictError):
        planner.patch(RESERVATION_STATUS, {"metadata": {**metadata, "resourceVersion": made.resource_version}})
    config = str(cluster.kubeconfig(tmp_path / "admin.kubeconfig"))
    command = [tool("kubectl"), "--kubeconfig", config, "get", "pres", "-n", cluster.namespace, "-o", "wide"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[:-1] for line in shown] == [
        ["NAME", "GANG", "STATE", "MEMBERS", "BOUND", "NODES", "GPUS", "BANDWIDTH", "DOMAIN", "DEADLINE", "REASON"],
        [
            *("llm-7-1a2b3c", "llm-7", "Committed", "2", "1", "1", "4", "450", "clique=7b96.1"),
            *("2026-11-21T12:00:30Z", "waits", "for", "gpu-1"),
        ],
    ]


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        pytest.param({}, "spec.gang: Required value", id="nobody's"),
        pytest.param({"gang": "g", "seats": [{"uid": "u"}]}, "spec.seats[0].name: Required value", id="half a seat"),
        pytest.param({"gang": "g", "timeoutS": "30s"}, 'must be of type number: "string"', id="a time with a unit"),
        pytest.param(
            {"gang": "g", "held": [{"node": "n", "gpus": -1}]},
            "should be greater than or equal to 0",
            id="no GPUs less",
        ),
        pytest.param({"gang": "g" * 254}, "may not be more than 253 bytes", id="a name that no gang has"),
    ],
)
def test_an_invalid_plan_is_refused(cluster: Cluster, planner: Kube, spec: Any, complaint: str) -> None:
    with pytest.raises(KubeError, match="422") as refused:
        planner.create(RESERVATIONS, reservation(cluster, spec))

    assert complaint in str(refused.value)


def test_the_plan_of_a_very_large_gang_is_taken(cluster: Cluster, planner: Kube) -> None:
    """Names as long as controllers make them. An object of etcd has 1.5 MiB."""
    uid = "7b968a6d-c8aa-45e1-9e07-{:012d}"
    seats = [
        PlannedMember(
            uid.format(n), f"llama-pretraining-worker-{n}-x7k2p", f"gpu-node-{n}", (("nvidia.com/gpu", 8),), (), n
        )
        for n in range(5000)
    ]

    made = planner.create(RESERVATIONS, reservation(cluster, ReservationSpec("llama-pretraining", tuple(seats))))

    kept = cluster.api.get(RESERVATIONS.path(made.name, cluster.namespace))
    assert len(kept["spec"]["seats"]) == 5000
    metadata = {
        "name": made.name,
        "namespace": made.namespace,
        "uid": made.uid,
        "resourceVersion": made.resource_version,
    }
    planner.patch(RESERVATION_STATUS, {"metadata": metadata, "status": msgspec.to_builtins(STATUS)})


def test_one_write_of_a_version_counts_and_the_other_is_a_conflict(cluster: Cluster, planner: Kube) -> None:
    made = planner.create(LEDGERS, ledger(LedgerSpec("planner-0", 1)))
    entry = LedgerEntry("r-0", cluster.namespace, "llm-7-1a2b3c", spec_hash(PLAN), EntryPhase.PROPOSED)

    first = planner.replace(
        LEDGERS, ledger(LedgerSpec("planner-0", 1, (entry,)), resourceVersion=made.resource_version)
    )
    with pytest.raises(ConflictError):
        planner.replace(LEDGERS, ledger(LedgerSpec("planner-1", 2), resourceVersion=made.resource_version))
    with pytest.raises(ConflictError):
        planner.create(LEDGERS, ledger(LedgerSpec("planner-1", 2)))

    assert (made.generation, first.generation) == (1, 2)
    assert planner.get(LEDGERS, POOL, PlacementLedger).spec == LedgerSpec("planner-0", 1, (entry,))


def test_extenders_register_side_by_side_and_a_registration_is_a_new_version(planner: Kube, extender: Kube) -> None:
    one, other = ExtenderAck("gputopo/a", 1, ("r-0",)), ExtenderAck("gputopo/b")
    made = planner.create(LEDGERS, ledger(LedgerSpec("planner-0", 1)))

    extender.apply(LEDGER_STATUS, "gputopo-extender-a", ledger_status(a=one))
    extender.apply(LEDGER_STATUS, "gputopo-extender-b", ledger_status(b=other))

    found = planner.get(LEDGERS, POOL, PlacementLedger)
    assert found.status.extenders == {"a": one, "b": other}
    assert found.metadata.generation == made.generation
    with pytest.raises(ConflictError):  # so what was read before a registration commits nothing
        planner.replace(LEDGERS, ledger(LedgerSpec("planner-0", 2), resourceVersion=made.resource_version))

    extender.apply(LEDGER_STATUS, "gputopo-extender-a", ledger_status())
    assert planner.get(LEDGERS, POOL, PlacementLedger).status.extenders == {"b": other}

    found = planner.get(LEDGERS, POOL, PlacementLedger)
    gone = ledger_status() | {"metadata": {"name": POOL, "resourceVersion": found.metadata.resource_version}}
    planner.replace(LEDGER_STATUS, gone | {"spec": {}})
    left = planner.get(LEDGERS, POOL, PlacementLedger)
    assert (left.spec, left.status.extenders) == (LedgerSpec("planner-0", 1), {})

    extender.apply(LEDGER_STATUS, "gputopo-extender-b", ledger_status(b=one))
    assert planner.get(LEDGERS, POOL, PlacementLedger).status.extenders == {"b": one}


def test_a_patch_meets_the_very_pod_as_it_was_seen_or_nothing(cluster: Cluster, planner: Kube) -> None:
    gate, others = {"name": keys.GATE}, {"name": "example.com/other"}
    made = cluster.create_pod(pod("train", 1, schedulingGates=[gate, others]))["metadata"]
    seen = {name: made[name] for name in ("name", "namespace", "uid", "resourceVersion")}
    spec = {"schedulingGates": [others]}
    changed = cluster.api.patch(cluster.pods("train"), {"metadata": {"labels": {"a": "b"}}})["metadata"]

    with pytest.raises(ConflictError):
        planner.patch(PODS, {"metadata": seen, "spec": spec})
    assert cluster.pod("train")["spec"]["schedulingGates"] == [gate, others]

    now = {**seen, "resourceVersion": changed["resourceVersion"]}
    patched = planner.patch(PODS, {"metadata": now, "spec": spec})
    assert cluster.pod("train")["spec"]["schedulingGates"] == [others]
    planner.patch(
        PODS, {"metadata": {**now, "resourceVersion": patched.resource_version}, "spec": {"schedulingGates": None}}
    )
    assert "schedulingGates" not in cluster.pod("train")["spec"]

    cluster.api.delete(cluster.pods("train"))
    with pytest.raises(NotFoundError):
        planner.patch(PODS, {"metadata": seen, "spec": spec})
    again = cluster.create_pod(pod("train", 1, schedulingGates=[gate, others]))["metadata"]
    with pytest.raises(ConflictError):
        planner.patch(PODS, {"metadata": seen, "spec": spec})
    confused = {**seen, "resourceVersion": again["resourceVersion"]}  # which nobody has seen together
    with pytest.raises(KubeError, match=r"422: .*metadata.uid"):
        planner.patch(PODS, {"metadata": confused, "spec": spec})


def test_the_api_server_refuses_writes_that_the_planner_and_extenders_never_make(
    cluster: Cluster, planner: Kube
) -> None:
    grant(cluster, "extender", EXTENDER)
    planner.create(LEDGERS, ledger(LedgerSpec("planner-0", 1)))
    planner.create(RESERVATIONS, reservation(cluster, PLAN))
    as_extender, as_planner = (cluster.client(cluster.token(account)) for account in ("extender", "planner"))

    refused = [
        (as_extender, LEDGERS.path(POOL), {"spec": {"epoch": 9}}),
        (as_extender, RESERVATION_STATUS.path("llm-7-1a2b3c", cluster.namespace), {"status": {"bound": 9}}),
        (as_planner, RESERVATIONS.path("llm-7-1a2b3c", cluster.namespace), {"metadata": {"labels": {"a": "b"}}}),
    ]
    for client, path, body in refused:
        with pytest.raises(Exception, match="403 Forbidden"):
            client.patch(path, body)
    as_extender.close()
    as_planner.close()
