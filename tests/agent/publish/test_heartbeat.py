"""Heartbeats in a Lease, with an API server that keeps NodeGpus and Leases. ``tests/e2e/agent`` uses a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.publish import PublishError
from agent.publish.state import StateWriter, WriterClock
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import AGENT, LEASES, NODE_GPUS, NODES
from gputopo.timing import HEARTBEAT_S, HEARTBEAT_TRANSITION_S, STATE_REPAIR_S
from tests.api_server import Answer, Asked, api_server

LEASE, STATE = LEASES.path("n", HEARTBEAT_NAMESPACE), NODE_GPUS.path("n")
IDLE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())


def at(minute: int, state: NodeGpus = IDLE) -> NodeGpus:
    return msgspec.structs.replace(state, observed_at=f"2026-11-21T12:{minute:02}:00Z")


class Server:
    """Keeps one NodeGpus and one Lease, with resource versions, and counts what it stores."""

    def __init__(self) -> None:
        self.version = 0
        self.node_uid = "u"
        self.stored: dict[str, dict[str, Any]] = {}
        self.asked: list[Asked] = []
        self.refusal: Answer | None = None  # of writes of Leases

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if asked.path == NODES.path("n"):
            return Answer({"metadata": {"name": "n", "uid": self.node_uid, "resourceVersion": "1"}})
        lease = asked.path.startswith(LEASES.path(namespace=HEARTBEAT_NAMESPACE))
        if lease and self.refusal is not None and asked.method != "GET":
            return self.refusal
        path = LEASE if lease else asked.path
        found = self.stored.get(path)
        if asked.method == "GET":
            return Answer({"reason": "NotFound", "message": "no"}, 404) if found is None else Answer(found)
        if lease and asked.method == "PATCH":
            if found is None:
                return Answer({"reason": "NotFound", "message": "no", "details": {"name": "n", "kind": "leases"}}, 404)
            wanted = asked.body["metadata"]
            if wanted["resourceVersion"] != found["metadata"]["resourceVersion"]:
                return Answer({"reason": "Conflict", "message": "changed"}, 409)
        fields = {name: value for name, value in asked.body.items() if name != "metadata"}
        if found is None or any(found.get(name) != value for name, value in fields.items()):
            self.version += 1
            metadata = {"name": "n", "uid": "x", "resourceVersion": str(self.version)}
            self.stored[path] = {**fields, "metadata": metadata}
        return Answer(self.stored[path])

    def calls(self) -> list[tuple[str, str]]:
        """The calls since the last time, without those about the Node."""
        found = [(each.method, "lease" if "leases" in each.path else "nodegpus") for each in self.asked]
        self.asked.clear()
        return [each for each in found if each != ("GET", "nodegpus")]

    @property
    def lease(self) -> dict[str, str]:
        return dict(self.stored[LEASE]["spec"])


class Writer:
    """The writer under test, and its clock."""

    def __init__(self, kubeconfig: str, lease_after_s: float | None) -> None:
        self.seconds = 0.0
        self.kube = from_kubeconfig(AGENT, kubeconfig)
        clock = WriterClock(lambda: datetime(2026, 11, 21, tzinfo=UTC), lambda: self.seconds)
        self._writer = StateWriter(self.kube, "n", lease_after_s, clock)
        self.set_node_uid, self.write = self._writer.set_node_uid, self._writer.write_state


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def kubeconfig(server: Server, tmp_path: Path) -> Iterator[str]:
    with api_server(server.answer) as running:
        yield running.kubeconfig(tmp_path / "config")


@pytest.fixture
def writer(kubeconfig: str) -> Iterator[Writer]:
    """Past the transition from the start."""
    found = Writer(kubeconfig, 0.0)
    yield found
    found.kube.close()


def test_a_heartbeat_of_a_quiet_node_is_one_small_request(server: Server, writer: Writer) -> None:
    writer.write(at(0))
    writer.write(at(5))  # creates the Lease
    writer.write(at(10))
    server.calls()

    for minute in (15, 20, 25):
        outcome = writer.write(at(minute))
        assert (outcome.written, outcome.renewed) == (False, True)
    sent = [len(json.dumps(each.body)) for each in server.asked]

    assert server.calls() == [("PATCH", "lease")] * 3
    assert max(sent) < 250
    assert server.stored[STATE]["observedAt"] == "2026-11-21T12:00:00Z"
    assert server.lease == {"holderIdentity": "2026-11-21T12:00:00Z", "renewTime": "2026-11-21T12:25:00.000000Z"}


def test_the_managed_fields_of_the_lease_are_removed_once(server: Server, writer: Writer) -> None:
    for minute in (0, 5, 10, 15):
        writer.write(at(minute))

    patches = [each.body["metadata"] for each in server.asked if each.method == "PATCH" and each.path == LEASE]
    assert [each.get("managedFields") for each in patches] == [[{}], None]


def test_both_are_written_while_readers_of_the_version_before_may_run(server: Server, kubeconfig: str) -> None:
    writer = Writer(kubeconfig, HEARTBEAT_TRANSITION_S)
    writer.write(at(0))
    for minute in (5, 10):
        writer.seconds += HEARTBEAT_S
        writer.write(at(minute))
        assert server.stored[STATE]["observedAt"] == at(minute).observed_at
        assert server.lease["holderIdentity"] == at(minute).observed_at
    writer.seconds = HEARTBEAT_TRANSITION_S
    writer.write(at(55))
    writer.kube.close()

    assert server.stored[STATE]["observedAt"] == at(10).observed_at
    assert server.lease["renewTime"] == "2026-11-21T12:55:00.000000Z"


def test_without_leases_each_heartbeat_is_in_the_node_gpus(server: Server, kubeconfig: str) -> None:
    writer = Writer(kubeconfig, None)
    for minute in (0, 5, 10):
        writer.write(at(minute))
    writer.kube.close()

    assert server.calls() == [("PATCH", "nodegpus")] * 3


def test_a_change_is_written_at_once_and_the_next_heartbeat_names_it(server: Server, writer: Writer) -> None:
    writer.write(at(0))
    writer.write(at(5))
    writer.write(msgspec.structs.replace(at(6), content_hash="3c4d"))

    assert (server.stored[STATE]["contentHash"], server.stored[STATE]["observedAt"]) == ("3c4d", at(6).observed_at)
    assert server.lease["holderIdentity"] == at(0).observed_at
    writer.write(msgspec.structs.replace(at(11), content_hash="3c4d"))
    assert server.lease["holderIdentity"] == at(6).observed_at


def test_two_contents_of_one_pass_have_different_times(server: Server, writer: Writer) -> None:
    """Allocations change between two passes over the GPUs. A heartbeat of the first must not confirm the second."""
    writer.write(at(0))
    times = []
    for content in ("b", "c", "d"):
        writer.write(msgspec.structs.replace(at(0), content_hash=content))
        times.append(server.stored[STATE]["observedAt"])

    assert times == [f"2026-11-21T12:00:00.00{number}000Z" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "refusal",
    [
        pytest.param(Answer({"reason": "Forbidden", "message": "no right"}, 403), id="no right"),
        pytest.param(Answer({"reason": "NotFound", "message": "no namespace"}, 404), id="no namespace"),
    ],
)
def test_where_leases_cannot_be_written_the_node_gpus_is_the_heartbeat(
    server: Server, writer: Writer, refusal: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    server.refusal = refusal
    for minute in (0, 5, 10):
        writer.write(at(minute))
        assert server.stored[STATE]["observedAt"] == at(minute).observed_at
    said = [each.fields["lease"] for each in caplog.records if each.getMessage() == "heartbeat"]  # type: ignore[attr-defined]
    assert len(said) == 1

    server.refusal = None
    writer.write(at(15))
    assert server.stored[STATE]["observedAt"] == at(10).observed_at
    assert server.lease["renewTime"] == "2026-11-21T12:15:00.000000Z"


def test_a_server_that_does_not_answer_is_asked_again_later(server: Server, writer: Writer) -> None:
    writer.write(at(0))
    server.refusal = Answer({"message": "busy"}, 503)

    with pytest.raises(PublishError, match="busy"):
        writer.write(at(5))
    assert server.stored[STATE]["observedAt"] == at(0).observed_at


def test_a_lease_that_another_client_wrote_makes_the_agent_write_everything_again(
    server: Server, writer: Writer
) -> None:
    """So does an etcd that was restored from a backup: its NodeGpus may be an older one."""
    for minute in (0, 5):
        writer.write(at(minute))
    server.stored[LEASE]["metadata"]["resourceVersion"] = "999"
    server.calls()

    writer.write(at(10))
    assert server.calls() == [("PATCH", "lease"), ("PATCH", "nodegpus")]
    writer.write(at(15))
    assert server.calls() == [("GET", "lease"), ("PATCH", "lease")]
    assert server.lease == {"holderIdentity": at(10).observed_at, "renewTime": "2026-11-21T12:15:00.000000Z"}


def test_an_unchanged_state_is_applied_again_now_and_then_with_its_time(server: Server, writer: Writer) -> None:
    writer.write(at(0))
    writer.write(at(5))
    server.stored[STATE]["contentHash"] = "edited"
    writer.seconds = STATE_REPAIR_S
    server.calls()

    outcome = writer.write(at(30))

    assert (outcome.written, outcome.renewed) == (True, True)
    assert server.calls() == [("PATCH", "nodegpus"), ("PATCH", "lease")]
    assert (server.stored[STATE]["contentHash"], server.stored[STATE]["observedAt"]) == ("1a2b", at(0).observed_at)
    writer.write(at(35))
    assert server.calls() == [("PATCH", "lease")]


def test_the_lease_of_a_node_that_was_created_again_has_the_new_owner(server: Server, writer: Writer) -> None:
    writer.set_node_uid("u")
    for minute in (0, 5):
        writer.write(at(minute))
    server.stored.clear()  # what the garbage collector does
    writer.set_node_uid("v")
    assert server.stored[STATE]["observedAt"] == at(0).observed_at
    server.asked.clear()

    writer.write(at(10))

    (created,) = [each.body for each in server.asked if each.method == "POST"]
    assert [owner["uid"] for owner in created["metadata"]["ownerReferences"]] == ["v"]
