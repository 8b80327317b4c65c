"""An extender beside ledgers, with a real API server: what it writes, when it answers, and whom it lets in."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gputopo.crd import reservations
from gputopo.crd.reservations import PlannedMember, ReservationSpec, spec_hash
from gputopo.kube.rbac import LEDGERS, RESERVATIONS
from gputopo.labels.keys import GATE
from gputopo.labels.reasons import Reason
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from tests.api_client import ApiError
from tests.api_objects import GPU, Object
from tests.e2e.agent.access import define
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition, gpu_pod, prepare, running, started, writes
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("served")]
LEDGER = LEDGERS.path("gpus")


@pytest.fixture
def served(cluster: Cluster) -> Iterator[None]:
    """The API server serves reservations and ledgers."""
    for definition in (reservations.reservation_crd(), reservations.ledger_crd()):
        try:
            define(cluster, definition)
        except ApiError as refused:
            if refused.status != 409:
                raise
    yield
    try:
        cluster.api.delete(LEDGER)
    except ApiError as refused:
        if refused.status != 404:
            raise


def extenders(cluster: Cluster) -> dict[str, Any]:
    return dict((cluster.api.get(LEDGER).get("status") or {}).get("extenders") or {})


def acknowledgement(cluster: Cluster) -> Any:
    """The acknowledgement of the only extender."""
    (said,) = extenders(cluster).values()
    return said


def reserve(cluster: Cluster, name: str, *seats: PlannedMember) -> Object:
    """Create a reservation; what a ledger says of it."""
    spec = ReservationSpec("llm", seats)
    body = {
        "apiVersion": RESERVATIONS.api_version,
        "kind": reservations.RESERVATION_KIND,
        "metadata": {"name": name},
        "spec": {"gang": "llm", "seats": [_written(seat) for seat in seats]},
    }
    made = cluster.api.create(RESERVATIONS.path(namespace=cluster.namespace), body)
    metadata = made["metadata"]
    said = {"uid": metadata["uid"], "namespace": cluster.namespace, "name": name}
    return {**said, "hash": spec_hash(spec), "phase": "Proposed"}


def gated(cluster: Cluster, name: str, gpus: int) -> Object:
    """Create a pod that waits for its gang, and a reservation for it; what a ledger says of that."""
    made = cluster.create_pod(gpu_pod(name, gpus, schedulingGates=[{"name": GATE}]))
    return reserve(cluster, f"{name}-1", PlannedMember(made["metadata"]["uid"], name, "gpu-0", ((GPU, gpus),)))


def _written(seat: PlannedMember) -> Object:
    return {"uid": seat.uid, "name": seat.name, "node": seat.node, "gpus": [list(each) for each in seat.gpus]}


def write(cluster: Cluster, *entries: Object) -> int:
    """Write the ledger; its generation then."""
    written = cluster.api.patch(LEDGER, {"spec": {"entries": list(entries)}})
    return int(written["metadata"]["generation"])


def start_ledger(cluster: Cluster) -> None:
    body = {"apiVersion": LEDGERS.api_version, "kind": reservations.LEDGER_KIND, "metadata": {"name": "gpus"}}
    cluster.api.create(LEDGERS.path(), {**body, "spec": {"planner": "test", "epoch": 1}})


def test_from_registering_to_leaving(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler
) -> None:
    prepare(cluster)
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    agents_of()
    with running(cluster) as extender:
        extender.wait_until_ready()
        ready = time.monotonic()
        scheduler(extender.configuration())
        assert writes(cluster) == []

        start_ledger(cluster)
        wait_for(lambda: extenders(cluster), "the registration")
        wait_for(lambda: extender.ready, "an extender that answers")
        assert acknowledgement(cluster) == {"pod": "", "generation": 0, "blocked": [], "term": 0}
        assert writes(cluster) == [("placementledgers/status", "patch")]

        cluster.create_pod(gpu_pod("early", 2))
        started(cluster, "early")
        small, large = (gated(cluster, name, gpus) for name, gpus in (("member", 5), ("second", 4)))
        generation = write(cluster, small, large)
        wait_for(
            lambda: acknowledgement(cluster)["generation"] == generation,
            "the acknowledgement",
            ASSUMED_POD_LIFETIME_S + 60,
        )
        assert time.monotonic() - ready >= ASSUMED_POD_LIFETIME_S - 5
        assert acknowledgement(cluster)["blocked"] == sorted([small["uid"], large["uid"]])  # not both of them

        generation = write(cluster, small)
        wait_for(
            lambda: acknowledgement(cluster) == {"pod": "", "generation": generation, "blocked": [], "term": 0},
            "the first alone",
        )
        write(cluster, {**small, "phase": "Committed"})
        cluster.create_pod(gpu_pod("late", 2))
        wait_for(lambda: condition(cluster.pod("late")), "what the scheduler says of another pod")

        let_go(cluster, "member", "gpu-0")
        started(cluster, "member")
        assert "nodeName" not in cluster.pod("late")["spec"]
        write(cluster)
        time.sleep(1)
        assert writes(cluster).count(("placementledgers/status", "patch")) <= 4

        extender.server.send(signal.SIGTERM)
        wait_for(lambda: extenders(cluster) == {}, "that it has left")


def test_room_that_is_held_is_no_reason_to_ask_again(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler
) -> None:
    prepare(cluster)
    fleet.add(NodeSpec(name="gpu-0", shape=islands_4_4()))
    agents_of()
    start_ledger(cluster)
    spec = {"gang": "big", "held": [{"node": "gpu-0", "gpus": 8}]}
    body = {"apiVersion": RESERVATIONS.api_version, "kind": reservations.RESERVATION_KIND, "spec": spec}
    made = cluster.api.create(RESERVATIONS.path(namespace=cluster.namespace), {**body, "metadata": {"name": "big-1"}})
    uid = made["metadata"]["uid"]
    hashed = spec_hash(ReservationSpec("big", (), (reservations.HeldCapacity("gpu-0", 8),)))
    write(
        cluster,
        {"uid": uid, "namespace": cluster.namespace, "name": "big-1", "hash": hashed, "phase": "Held"},
    )
    with running(cluster) as extender:
        extender.wait_until_ready()
        scheduler(extender.configuration())
        cluster.create_pod(gpu_pod("late", 1))

        said = wait_for(lambda: condition(cluster.pod("late")).get("message"), "the scheduler's sentence")
        assert said.startswith(f"0/1 nodes are available: 1 {Reason.RESERVED.value}. "), said
        time.sleep(1)
        calls = extender.filter_calls
        time.sleep(3)
        assert extender.filter_calls == calls


def let_go(cluster: Cluster, name: str, node: str) -> None:
    """Ungate and pin a pod by one patch, as the planner does."""
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    spec: Object = {"schedulingGates": None, "affinity": affinity}
    cluster.api.patch(f"{cluster.pods()}/{name}", {"spec": spec})
