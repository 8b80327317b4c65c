"""Calls as they go over the wire, against a real HTTP server."""

from __future__ import annotations

import gc
import gzip
import json
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from urllib3.connection import HTTPSConnection

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import ConflictError, GoneError, KubeError, UnavailableError
from gputopo.kube.objects import ObjectMeta, PartialObject
from gputopo.kube.paging import MAX_PAGE_BYTES
from gputopo.kube.rbac import (
    CLEANER,
    ELECTION,
    EVENTS,
    EXTENDER,
    LEASES,
    LEDGER_STATUS,
    LEDGERS,
    NODE_GPUS,
    NODES,
    PLANNER,
    PODS,
    PREEMPTOR,
    READER,
    RESERVATION_STATUS,
    RESERVATIONS,
    Role,
)
from tests.api_server import Answer, Asked, Stream, api_server, kubeconfig

ALL = Role("test", dict.fromkeys((NODES, NODE_GPUS, EVENTS, PODS), ("get", "list", "create", "patch", "delete")))
PATIENCE_S = 20.0
NODE = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "7"}}


def asked(
    answer: Callable[[Asked], Answer], call: Callable[[Kube], Any], folder: Path, role: Role = ALL
) -> tuple[list[Asked], Any]:
    """Return the requests of a call, and its result."""
    with api_server(answer) as server:
        kube = from_kubeconfig(role, server.kubeconfig(folder / "config"))
        try:
            return server.asked, call(kube)
        finally:
            kube.close()


def test_one_object_is_read_with_credentials_and_as_much_of_it_as_is_wanted(tmp_path: Path) -> None:
    query = ListOptions(metadata_only=True, version="0")

    (one,), node = asked(lambda _: Answer(NODE), lambda kube: kube.get(NODES, "n", PartialObject, query), tmp_path)

    assert node == PartialObject(ObjectMeta("n", "u", resource_version="7"))
    assert (one.method, one.path, one.query) == ("GET", "/api/v1/nodes/n", {"resourceVersion": "0"})
    assert one.headers["authorization"] == "Bearer s3cret"
    assert one.headers["accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    assert one.headers["user-agent"].startswith("gputopo-test/")


def test_lists_are_read_page_by_page(tmp_path: Path) -> None:
    def answer(request: Asked) -> Answer:
        last = request.query.get("continue") == "more"
        items = [{"metadata": {"name": "b" if last else "a"}}]
        return Answer({"metadata": {"continue": "" if last else "more", "resourceVersion": "9"}, "items": items})

    query = ListOptions("ns", labels="a=b", fields="status.phase=Running", metadata_only=True)
    requests, pages = asked(answer, lambda kube: list(kube.list_pages(PODS, PartialObject, query)), tmp_path)

    assert [item.metadata.name for page in pages for item in page.items] == ["a", "b"]
    assert pages[-1].metadata.resource_version == "9"
    selected = {"labelSelector": "a=b", "fieldSelector": "status.phase=Running", "limit": "500"}
    assert [each.query for each in requests] == [selected, selected | {"continue": "more"}]
    assert {each.path for each in requests} == {"/api/v1/namespaces/ns/pods"}
    assert requests[0].headers["accept"] == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def test_the_next_page_is_requested_while_the_caller_works_on_the_current_one(tmp_path: Path) -> None:
    requested = threading.Event()

    def answer(request: Asked) -> Answer:
        more = request.query.get("continue") == "more"
        if more:
            requested.set()
        return Answer({"metadata": {"continue": "" if more else "more"}, "items": [NODE]})

    def call(kube: Kube) -> list[bool]:
        return [requested.wait(PATIENCE_S) for _ in kube.list_pages(NODES, PartialObject)]

    assert asked(answer, call, tmp_path)[1] == [True, True]


def test_pages_of_large_objects_have_fewer_objects(tmp_path: Path) -> None:
    """Else a tenant with hundreds of pods of a megabyte ends every program that lists pods."""
    large = '{"metadata":{"name":"n"},"x":"' + "x" * (2 << 20) + '"}'

    def answer(request: Asked) -> Answer:
        begin, size = int(request.query.get("continue", "0")), int(request.query["limit"])
        end = min(40, begin + size)
        following = "" if end == 40 else str(end)
        items = ",".join([large] * (end - begin))
        return Answer(f'{{"metadata":{{"continue":"{following}"}},"items":[{items}]}}')

    requests, pages = asked(answer, lambda kube: list(kube.list_pages(NODES, PartialObject)), tmp_path)

    assert sum(len(each.items) for each in pages) == 40
    assert [int(each.query["limit"]) for each in requests] == [500, 62, 7, 14, 15, 15]
    assert max(len(each.items) for each in pages) * len(large) < MAX_PAGE_BYTES


@pytest.mark.parametrize("chunked", [False, True])
def test_a_page_is_in_memory_once(tmp_path: Path, chunked: bool) -> None:
    body = b'{"metadata":{},"items":[{"metadata":{"name":"n"},"x":"' + b"x" * (16 << 20) + b'"}]}'

    pieces = Stream()
    for at in range(0, len(body), 1 << 16):
        pieces.send(body[at : at + (1 << 16)])
    pieces.end()

    def peak(kube: Kube) -> int:
        tracemalloc.start()
        try:
            kube.list_objects(NODES, PartialObject)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    _, most = asked(lambda _: Answer(pieces if chunked else body), peak, tmp_path)

    assert most < 1.5 * len(body)


def test_a_page_that_a_proxy_compressed_is_read(tmp_path: Path) -> None:
    body = gzip.compress(json.dumps({"metadata": {}, "items": [NODE]}).encode())
    answer = Answer(body, headers={"Content-Encoding": "gzip"})

    _, found = asked(lambda _: answer, lambda kube: kube.list_objects(NODES, PartialObject), tmp_path)

    assert [each.metadata.name for each in found] == ["n"]


def test_a_compressed_answer_that_stays_too_long_is_an_error(tmp_path: Path) -> None:
    body = gzip.compress(b'{"metadata":{},"items":[{"x":"' + b"x" * MAX_PAGE_BYTES + b'"}]}', compresslevel=1)
    answer = Answer(body, headers={"Content-Encoding": "gzip"})

    with pytest.raises(KubeError, match="the answer to limit=1 has more than 64 MiB"):
        asked(lambda _: answer, lambda kube: list(kube.list_pages(NODES, PartialObject)), tmp_path)


def test_an_answer_that_stays_too_long_is_an_error(tmp_path: Path) -> None:
    body = '{"metadata":{},"items":[{"x":"' + "x" * MAX_PAGE_BYTES + '"}]}'

    with pytest.raises(KubeError, match="the answer to limit=1 has more than 64 MiB"):
        asked(lambda _: Answer(body), lambda kube: list(kube.list_pages(NODES, PartialObject)), tmp_path)


def test_a_page_with_a_damaged_object_is_returned_undecoded_and_the_others_decoded(tmp_path: Path) -> None:
    bad = {"metadata": {"name": 5}}

    def answer(request: Asked) -> Answer:
        more = request.query.get("continue") == "more"
        return Answer({"metadata": {"continue": "" if more else "more"}, "items": [NODE, bad] if more else [NODE]})

    _, pages = asked(answer, lambda kube: list(kube.list_readable(NODES, PartialObject)), tmp_path)
    _, found = asked(answer, lambda kube: (kube.list_objects(NODES, PartialObject), kube.unreadable), tmp_path)

    assert [[isinstance(each, msgspec.Raw) for each in page.items] for page in pages] == [[False], [True, True]]
    assert [each.metadata.name for each in found[0]] == ["n", "n"]
    assert [each.plural for each in found[1]] == ["nodes"]


def test_a_list_that_grows_old_between_two_pages_is_read_anew_once(tmp_path: Path) -> None:
    turns = iter([("x", 200), ("", 410), ("x", 200), ("", 200)])

    def answer(_: Asked) -> Answer:
        following, status = next(turns)
        return Answer({"metadata": {"continue": following}, "items": [NODE]}, status)

    requests, items = asked(answer, lambda kube: kube.list_objects(NODES, PartialObject), tmp_path)

    assert (len(requests), len(items)) == (4, 2)


def test_a_list_that_grows_old_twice_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(GoneError, match="GET /api/v1/nodes: 410: expired"):
        asked(
            lambda _: Answer({"message": "expired"}, 410),
            lambda kube: kube.list_objects(NODES, PartialObject),
            tmp_path,
        )


def test_an_empty_list_may_be_null(tmp_path: Path) -> None:
    empty = {"metadata": {"resourceVersion": "1"}, "items": None}

    _, items = asked(lambda _: Answer(empty), lambda kube: kube.list_objects(NODES, PartialObject), tmp_path)

    assert items == []


def test_an_apply_never_forces(tmp_path: Path) -> None:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "uid": "u", "labels": {"a": "1"}}}

    (one,), metadata = asked(lambda _: Answer(NODE), lambda kube: kube.apply(NODES, "us", body), tmp_path)

    assert metadata.resource_version == "7"
    assert (one.method, one.path, one.body) == ("PATCH", "/api/v1/nodes/n", body)
    assert one.query == {"fieldManager": "us", "force": "false", "fieldValidation": "Strict"}
    assert one.headers["content-type"] == "application/apply-patch+yaml"


def test_objects_are_created_in_their_namespace_and_deleted_by_their_uid(tmp_path: Path) -> None:
    event = {"metadata": {"name": "e", "namespace": "default"}, "reason": "R"}

    def both(kube: Kube) -> ObjectMeta:
        made = kube.create(EVENTS, event)
        kube.delete(PODS, ObjectMeta("p", "u", "ns"))
        return made

    requests, made = asked(lambda _: Answer(NODE), both, tmp_path)

    assert made == ObjectMeta("n", "u", resource_version="7")
    assert requests[0].headers["accept"] == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    assert [(each.method, each.path, each.body) for each in requests] == [
        ("POST", "/api/v1/namespaces/default/events", event),
        (
            "DELETE",
            "/api/v1/namespaces/ns/pods/p",
            {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "u"}},
        ),
    ]


def test_a_delete_may_require_an_unchanged_object(tmp_path: Path) -> None:
    pod = ObjectMeta("p", "u", "ns", "7")

    (one,), _ = asked(lambda _: Answer(NODE), lambda kube: kube.delete(PODS, pod, unchanged=True), tmp_path)

    preconditions = {"uid": "u", "resourceVersion": "7"}
    assert one.body == {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}


LEASE = {"metadata": {"name": "l", "namespace": "ns", "resourceVersion": "7"}, "spec": {"holderIdentity": "a"}}


def test_an_object_is_replaced_by_its_resource_version(tmp_path: Path) -> None:
    written = {"metadata": {"name": "l", "resourceVersion": "8", "generation": 3}}

    (one,), metadata = asked(lambda _: Answer(written), lambda kube: kube.replace(LEASES, LEASE), tmp_path, ELECTION)

    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    assert (one.method, one.path, one.query, one.body) == ("PUT", path, {}, LEASE)
    assert metadata == ObjectMeta("l", resource_version="8", generation=3)


POD = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}


def test_a_patch_names_the_very_object_as_it_was_seen(tmp_path: Path) -> None:
    body = {"metadata": POD, "spec": {"schedulingGates": None}}

    (one,), metadata = asked(lambda _: Answer(NODE), lambda kube: kube.patch(PODS, body), tmp_path, PLANNER)

    assert (one.method, one.path, one.query, one.body) == ("PATCH", "/api/v1/namespaces/ns/pods/p", {}, body)
    assert one.headers["content-type"] == "application/merge-patch+json"
    assert metadata.resource_version == "7"


def test_an_eviction_names_the_very_pod(tmp_path: Path) -> None:
    pod = ObjectMeta("p", "u", "ns")

    (one,), _ = asked(lambda _: Answer({}), lambda kube: kube.evict(pod), tmp_path, PREEMPTOR)

    assert (one.method, one.path) == ("POST", "/api/v1/namespaces/ns/pods/p/eviction")
    assert one.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "u"}},
    }
    (one,), _ = asked(lambda _: Answer({}), lambda kube: kube.evict(pod, 40), tmp_path, PREEMPTOR)
    assert one.body["deleteOptions"] == {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 40}
    assert one.query == {}
    (one,), _ = asked(lambda _: Answer({}), lambda kube: kube.evict(pod, dry_run=True), tmp_path, PREEMPTOR)
    assert one.query == {"dryRun": "All"}
    with pytest.raises(AssertionError, match="may not create pods/eviction"):
        asked(lambda _: Answer({}), lambda kube: kube.evict(pod), tmp_path, PLANNER)


def test_the_status_is_written_apart(tmp_path: Path) -> None:
    ledger = {"metadata": {"name": "gpus", "resourceVersion": "7"}, "status": {}}
    reservation = {"metadata": POD, "status": {"state": "Held"}}

    def planner(kube: Kube) -> None:
        kube.replace(LEDGER_STATUS, ledger)
        kube.patch(RESERVATION_STATUS, reservation)

    requests, _ = asked(lambda _: Answer(NODE), planner, tmp_path, PLANNER)
    (acknowledgement,), _ = asked(
        lambda _: Answer(NODE), lambda kube: kube.apply(LEDGER_STATUS, "x", ledger), tmp_path, EXTENDER
    )

    assert [(each.method, each.path) for each in (*requests, acknowledgement)] == [
        ("PUT", "/apis/gputopo.io/v1alpha1/placementledgers/gpus/status"),
        ("PATCH", "/apis/gputopo.io/v1alpha1/namespaces/ns/placementreservations/p/status"),
        ("PATCH", "/apis/gputopo.io/v1alpha1/placementledgers/gpus/status"),
    ]


@pytest.mark.parametrize(
    ("call", "missing"),
    [
        pytest.param(
            lambda kube: kube.replace(LEDGERS, {"metadata": {"name": "l"}}),
            "placementledgers l: without its resourceVersion",
            id="a replacement without a resource version",
        ),
        pytest.param(
            lambda kube: kube.patch(PODS, {"metadata": {"name": "p", "resourceVersion": "7"}}),
            "pods p: without its uid",
            id="a patch without a uid",
        ),
        pytest.param(
            lambda kube: kube.patch(RESERVATION_STATUS, {"metadata": {"name": "r", "uid": "u"}}),
            "placementreservations/status r: without its resourceVersion",
            id="a patch without a resource version",
        ),
    ],
)
def test_nothing_is_changed_blindly(call: Callable[[Kube], Any], missing: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"{missing}, changes by other clients would be lost"):
        asked(lambda _: Answer(NODE), call, tmp_path, PLANNER)


def test_an_error_has_the_request_and_the_answer(tmp_path: Path) -> None:
    busy = Answer({"message": "too busy"}, 429, {"Retry-After": "5"})

    with pytest.raises(UnavailableError, match="GET /api/v1/nodes/n: 429: too busy") as caught:
        asked(lambda _: busy, lambda kube: kube.get(NODES, "n", PartialObject), tmp_path)

    assert caught.value.retry_after == 5


def test_a_conflict_names_the_owners_of_the_fields(tmp_path: Path) -> None:
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "nfd" using v1', "field": ".metadata.labels.a"}
    refused = Answer({"message": "no", "details": {"causes": [cause]}}, 409)
    body = {"metadata": {"name": "n", "uid": "u"}}

    with pytest.raises(ConflictError) as caught:
        asked(lambda _: refused, lambda kube: kube.apply(NODES, "us", body), tmp_path)

    assert caught.value.fields == {".metadata.labels.a": "nfd"}


def test_an_answer_that_cannot_be_read_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match=r"/api/v1/nodes/n: the response cannot be decoded .*<html>"):
        asked(lambda _: Answer("<html>hello"), lambda kube: kube.get(NODES, "n", PartialObject), tmp_path)


def test_an_answer_that_breaks_off_is_no_answer(tmp_path: Path) -> None:
    half = Stream(b'{"metadata":')
    half.cut()

    with pytest.raises(UnavailableError, match=r"GET /api/v1/nodes/n: no answer from http://127.*: .*"):
        asked(lambda _: Answer(half), lambda kube: kube.get(NODES, "n", PartialObject), tmp_path)


def test_an_unreachable_server_is_named_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    path = tmp_path / "config"
    import yaml

    path.write_text(yaml.safe_dump(kubeconfig(url, "t")))
    kube = from_kubeconfig(ALL, str(path))

    with pytest.raises(UnavailableError, match=rf"GET /api/v1/nodes/n: no answer from {url}") as caught:
        kube.get(NODES, "n", PartialObject)

    assert caught.value.retry_after is None
    kube.close()


def test_a_server_that_never_answers_is_not_waited_for(tmp_path: Path) -> None:
    released = threading.Event()

    def answer(_: Asked) -> Answer:
        released.wait(10)
        return Answer(NODE)

    with api_server(answer) as server:
        slow = from_kubeconfig(ALL, server.kubeconfig(tmp_path / "config"))
        kube = slow.with_timeout(0.2)
        with pytest.raises(UnavailableError, match=r"no answer .*: it did not answer in time, within 0\.2 s"):
            kube.get(NODES, "n", PartialObject)
        released.set()
        kube.close()


def test_a_connection_reset_before_the_tls_handshake_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that an API server had not accepted when it died ends like this."""
    listener = socket.create_server(("127.0.0.1", 0))
    connect = HTTPSConnection._new_conn

    def connect_and_be_reset(connection: HTTPSConnection) -> socket.socket:
        connected = connect(connection)
        peer, _ = listener.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        return connected

    monkeypatch.setattr(HTTPSConnection, "_new_conn", connect_and_be_reset)
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(f"https://127.0.0.1:{listener.getsockname()[1]}", "t")))
    kube = from_kubeconfig(ALL, str(tmp_path / "config"))
    with listener, pytest.raises(UnavailableError, match="reset by peer") as raised:
        kube.get(NODES, "n", PartialObject)
    kube.close()
    del raised  # its traceback
    gc.collect()  # warns of each socket that is still open, and warnings are errors


@pytest.mark.parametrize(
    ("role", "call", "denied"),
    [
        pytest.param(READER, lambda kube: kube.apply(NODES, "us", NODE), "patch nodes", id="a reader applies"),
        pytest.param(READER, lambda kube: kube.get(PODS, "p", PartialObject), "get pods", id="a reader gets a pod"),
        pytest.param(CLEANER, lambda kube: kube.create(EVENTS, NODE), "create events", id="a cleaner creates"),
        pytest.param(
            Role("patcher", {NODES: ("patch",)}),
            lambda kube: kube.apply(NODES, "us", {"metadata": {"name": "n"}}),
            "create nodes",
            id="an apply that could create, without the right to",
        ),
        pytest.param(READER, lambda kube: kube.replace(NODES, NODE), "update nodes", id="a reader replaces"),
        pytest.param(EXTENDER, lambda kube: kube.patch(PODS, NODE), "patch pods", id="an extender patches a pod"),
        pytest.param(
            EXTENDER,
            lambda kube: kube.apply(LEDGERS, "us", NODE),
            "patch placementledgers",
            id="an extender writes more of the ledger than the status",
        ),
        pytest.param(
            PLANNER,
            lambda kube: kube.replace(RESERVATIONS, NODE),
            "update placementreservations",
            id="a planner changes a plan",
        ),
        pytest.param(READER, lambda kube: kube.delete(NODES, ObjectMeta("n")), "delete nodes", id="a reader deletes"),
        pytest.param(
            Role("nothing", {}),
            lambda kube: list(kube.list_pages(NODES, PartialObject)),
            "list nodes",
            id="nobody lists",
        ),
    ],
)
def test_a_role_can_do_nothing_that_it_does_not_list(
    role: Role, call: Callable[[Kube], Any], denied: str, tmp_path: Path
) -> None:
    with api_server(lambda _: Answer(NODE)) as server:
        kube = from_kubeconfig(role, server.kubeconfig(tmp_path / "config"))
        with pytest.raises(AssertionError, match=rf"the role '{role.name}' may not {denied}"):
            call(kube)

        assert server.asked == []
        kube.close()
