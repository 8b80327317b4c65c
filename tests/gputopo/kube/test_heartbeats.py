"""Heartbeats in Leases, and which ``NodeGpus`` they confirm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE, Heartbeat, list_heartbeats, with_heartbeat
from gputopo.kube.rbac import LEASES, READER
from tests.api_server import Answer, api_server

WRITTEN, LATER = "2026-11-21T12:00:00Z", "2026-11-21T13:30:00.000000Z"


def observed(heartbeat: Heartbeat | None, own: str = WRITTEN) -> str:
    return with_heartbeat(NodeGpus(own, "1a2b", "0.1.0"), heartbeat).observed_at


@pytest.mark.parametrize(
    ("heartbeat", "expected"),
    [
        pytest.param(Heartbeat(WRITTEN, LATER), LATER, id="confirmed"),
        pytest.param(None, WRITTEN, id="an agent of the version before"),
        pytest.param(Heartbeat("2026-11-21T11:00:00Z", LATER), WRITTEN, id="of the content before"),
        pytest.param(Heartbeat(WRITTEN, "2026-11-21T11:00:00Z"), WRITTEN, id="earlier"),
        pytest.param(Heartbeat(WRITTEN, "yesterday"), WRITTEN, id="no time"),
        pytest.param(Heartbeat(WRITTEN, "2026-11-21T13:30:00"), WRITTEN, id="no zone"),
    ],
)
def test_a_heartbeat_confirms_the_content_that_it_names(heartbeat: Heartbeat | None, expected: str) -> None:
    assert observed(heartbeat) == expected


def test_a_time_that_cannot_be_read_is_replaced_by_a_heartbeat_of_it() -> None:
    assert observed(Heartbeat("x", LATER), own="x") == LATER


def lease(name: str, spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": HEARTBEAT_NAMESPACE}, "spec": spec}


def test_a_damaged_lease_hides_no_other(tmp_path: Path) -> None:
    good = {"holderIdentity": WRITTEN, "renewTime": LATER}
    leases = [
        lease("a", good),
        lease("long", {**good, "holderIdentity": "x" * 65}),
        lease("number", {**good, "renewTime": 7}),
        lease("text", "spec"),
        lease("empty", {}),
        lease("null", {"holderIdentity": None, "renewTime": LATER}),
        lease("b", good),
    ]
    with api_server(lambda _: Answer({"metadata": {}, "items": leases})) as server:
        kube = from_kubeconfig(READER, server.kubeconfig(tmp_path / "config"))
        found = list_heartbeats(kube)
        kube.close()

    assert found == dict.fromkeys("ab", Heartbeat(WRITTEN, LATER))
    assert sorted(each.name for each in kube.unreadable) == [
        f"{HEARTBEAT_NAMESPACE}/{name}" for name in ("long", "number", "text")
    ]
    assert [each.path for each in server.asked] == [LEASES.path(namespace=HEARTBEAT_NAMESPACE)]


def test_a_missing_permission_for_leases_is_reported(tmp_path: Path) -> None:
    with api_server(lambda _: Answer({"message": "leases is forbidden"}, 403)) as server:
        kube = from_kubeconfig(READER, server.kubeconfig(tmp_path / "config"))
        found = list_heartbeats(kube)
        kube.close()

    assert found == {}
    (note,) = kube.unreadable
    assert str(note).startswith(
        f"leases {HEARTBEAT_NAMESPACE} cannot be read: agents count as silent once their NodeGpus"
    )
