"""Publishing to a Node with a difficult API server. ``tests/e2e/agent`` uses a real one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.publish import PublishError, PublishOutcome
from agent.publish.node import NodePublisher
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import AGENT
from gputopo.labels import EncodedTopology
from gputopo.labels.keys import FIELD_MANAGER
from tests.api_server import Answer, ApiServer, Asked, api_server

FACTS = EncodedTopology(labels={}, annotations={}, mirrors={"a": "1", "b": "2", "c": "3", "d": "4"})


def node(version: str = "7", **more: object) -> Answer:
    return Answer({"metadata": {"name": "n", "uid": "u", "resourceVersion": version, **more}})


def conflict(path: str) -> Answer:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "nfd" using v1', "field": path}
    return Answer({"message": "Apply failed", "details": {"causes": [cause]}}, 409)


@contextmanager
def publisher(answer: Callable[[Asked], Answer], folder: Path) -> Iterator[tuple[ApiServer, NodePublisher]]:
    with api_server(answer) as server:
        kube = from_kubeconfig(AGENT, server.kubeconfig(folder / "config"))
        yield server, NodePublisher(kube, "n")
        kube.close()


def test_a_node_is_read_from_the_cache_but_not_older_than_our_last_write(tmp_path: Path) -> None:
    own = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}
    reads = iter([node("7"), node("9", labels={"a": "1"}, managedFields=[own]), node("9")])

    def answer(request: Asked) -> Answer:
        return node("8") if request.method == "PATCH" else next(reads)

    with publisher(answer, tmp_path) as (server, publish):
        facts = FACTS._replace(labels={"a": "1"}, mirrors={})
        written = [publish.publish_facts(facts).written for _ in range(3)]

    assert written == [True, False, True]
    assert [each.query["resourceVersion"] for each in server.asked if each.method == "GET"] == ["0", "8", "9"]


def test_a_heartbeat_of_a_quiet_node_is_two_requests(tmp_path: Path) -> None:
    """15,000 nodes send them every five minutes. Before, there were four."""
    own = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}}
    quiet = node("9", labels={"a": "1"}, managedFields=[own])

    with publisher(lambda _: quiet, tmp_path) as (server, publish):
        publish.publish_facts(FACTS._replace(labels={"a": "1"}, mirrors={}))
        publish.write_state(NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ()))

    assert [(each.method, each.path) for each in server.asked] == [
        ("GET", "/api/v1/nodes/n"),
        ("PATCH", "/apis/gputopo.io/v1alpha1/nodegpus/n"),
    ]


def test_a_version_that_the_server_does_not_reach_is_forgotten(tmp_path: Path) -> None:
    """After etcd is restored from a backup every read at the old version is a 504 "Too large resource version"."""

    def answer(request: Asked) -> Answer:
        if request.method == "GET" and request.query["resourceVersion"] == "900":
            return Answer({"message": "Timeout: Too large resource version: 900, current: 7"}, 504)
        return node("900") if request.method == "PATCH" else node("7")

    with publisher(answer, tmp_path) as (server, publish):
        publish.publish_facts(FACTS)
        with pytest.raises(PublishError, match="Too large resource version"):
            publish.publish_facts(FACTS)
        assert publish.publish_facts(FACTS) == PublishOutcome(written=True)

    assert [each.query["resourceVersion"] for each in server.asked if each.method == "GET"] == ["0", "900", "0"]


def test_keys_of_a_conflict_are_left_out_and_the_others_applied(tmp_path: Path) -> None:
    turns = iter([conflict(".metadata.labels.b"), node("8")])

    with publisher(lambda request: next(turns) if request.method == "PATCH" else node(), tmp_path) as (server, publish):
        outcome = publish.publish_facts(FACTS)

    assert outcome == PublishOutcome(written=True, kept_by_others=("b",))
    assert [each.body["metadata"]["labels"] for each in server.asked if each.method == "PATCH"] == [
        {"a": "1", "b": "2", "c": "3", "d": "4"},
        {"a": "1", "c": "3", "d": "4"},
    ]


def test_repeated_conflicts_end_in_an_error(tmp_path: Path) -> None:
    turns = iter([conflict(f".metadata.labels.{key}") for key in "abcd"])

    with publisher(lambda request: next(turns) if request.method == "PATCH" else node(), tmp_path) as running:
        server, publish = running
        message = r"other field managers keep taking keys of gputopo-mirror: a \(nfd\), b \(nfd\), c \(nfd\)"
        with pytest.raises(PublishError, match=message):
            publish.publish_facts(FACTS)

    assert len([each for each in server.asked if each.method == "PATCH"]) == 3


def test_a_conflict_about_something_else_is_an_error(tmp_path: Path) -> None:
    refuse = conflict(".spec.taints")

    def answer(request: Asked) -> Answer:
        return refuse if request.method == "PATCH" else node()

    with publisher(answer, tmp_path) as (_, publish), pytest.raises(PublishError, match="409: Apply failed"):
        publish.publish_facts(FACTS)


def test_retry_after_is_passed_on(tmp_path: Path) -> None:
    busy = Answer({"message": "busy"}, 429, {"Retry-After": "3"})

    with publisher(lambda _: busy, tmp_path) as (_, publish), pytest.raises(PublishError) as caught:
        publish.publish_facts(FACTS)

    assert caught.value.retry_after == 3


def test_keys_of_other_owners_are_logged_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def owned(*keys: str) -> Answer:
        fields: object = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in keys}}}
        labels = dict.fromkeys(keys, "theirs")
        return node(labels=labels, managedFields=[{"manager": "nfd", "operation": "Update", "fieldsV1": fields}])

    reads = iter([owned("a"), owned("a"), owned("a", "b"), owned(), owned("a")])
    with (
        caplog.at_level(logging.WARNING),
        publisher(lambda request: node() if request.method == "PATCH" else next(reads), tmp_path) as (_, publish),
    ):
        for _ in range(5):
            publish.publish_facts(FACTS)

    assert [record.getMessage() for record in caplog.records] == [
        "keys of Node n that other field managers own are left unchanged: a (nfd)",
        "keys of Node n that other field managers own are left unchanged: a (nfd), b (nfd)",
        "keys of Node n that other field managers own are left unchanged: a (nfd)",
    ]
