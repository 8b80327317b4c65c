"""A watch as it goes over the wire, against a real HTTP server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import ForbiddenError, GoneError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.rbac import NODES, OBSERVER, PODS, Role
from gputopo.kube.watch_stream import MAX_LINE_BYTES, WatchEvent, WatchEventType, WatchStream
from tests.api_server import Answer, ApiServer, Stream, api_server, kubeconfig


def event(happening: str, name: str, version: int, **more: Any) -> dict[str, Any]:
    """A line of a watch."""
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"type": happening, "object": {"kind": "Node", "metadata": metadata, **more}}


def said(events: tuple[WatchEvent, ...]) -> list[tuple[str, str, str]]:
    return [(each.type.value, each.identity.name, each.identity.resource_version) for each in events]


@contextmanager
def watching(
    folder: Path,
    answer: Answer,
    *,
    silence_s: float = 10.0,
    query: ListOptions = ListOptions(),  # noqa: B008  frozen
) -> Iterator[tuple[ApiServer, WatchStream]]:
    """A watch of pods from version 7 on."""
    with api_server(lambda _: answer) as server:
        opened = from_kubeconfig(OBSERVER, server.kubeconfig(folder / "config"))
        kube = Kube(opened._api, OBSERVER, silence_s=silence_s)
        watch = kube.watch(PODS, query, "7", 400.4)
        try:
            yield server, watch
        finally:
            watch.close()
            kube.close()


def test_a_watch_asks_for_bookmarks_with_credentials_from_a_version_on(tmp_path: Path) -> None:
    stream = Stream()
    stream.end()

    with watching(tmp_path, Answer(stream), query=ListOptions(fields="status.phase!=Failed")) as (server, watch):
        assert list(watch) == []

    (asked,) = server.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/pods")
    assert asked.query == {
        "watch": "true",
        "resourceVersion": "7",
        "timeoutSeconds": "400",
        "allowWatchBookmarks": "true",
        "fieldSelector": "status.phase!=Failed",
    }
    assert asked.headers["authorization"] == "Bearer s3cret"


def test_events_come_as_they_happen_and_together_where_they_arrive_together(tmp_path: Path) -> None:
    stream = Stream()

    with watching(tmp_path, Answer(stream)) as (_, watch):
        events = iter(watch)
        stream.send(event("ADDED", "a", 8))
        assert said(next(events)) == [("ADDED", "a", "8")]
        stream.send(event("MODIFIED", "a", 9), event("DELETED", "b", 10), event("BOOKMARK", "", 11))
        assert said(next(events)) == [("MODIFIED", "a", "9"), ("DELETED", "b", "10"), ("BOOKMARK", "", "11")]
        stream.end()
        assert list(events) == []


def test_a_thousand_events_in_one_piece_lose_none(tmp_path: Path) -> None:
    stream = Stream(*(event("ADDED", f"n{number}", number) for number in range(1000)))
    stream.end()

    with watching(tmp_path, Answer(stream)) as (_, watch):
        groups = list(watch)

    assert [each.identity.name for group in groups for each in group] == [f"n{number}" for number in range(1000)]
    assert len(groups) < 10


def test_an_event_may_come_byte_by_byte(tmp_path: Path) -> None:
    stream = Stream()
    text = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}\n'
    for at in range(len(text)):
        stream.send(text[at : at + 1])
    stream.end()

    with watching(tmp_path, Answer(stream)) as (_, watch):
        assert [said(group) for group in watch] == [[("ADDED", "a", "8")]]


def test_an_object_may_be_huge(tmp_path: Path) -> None:
    padding = "x" * 3_000_000
    stream = Stream(event("ADDED", "a", 8, padding=padding), event("ADDED", "b", 9))
    stream.end()

    with watching(tmp_path, Answer(stream)) as (_, watch):
        found = [each for group in watch for each in group]

    assert said(tuple(found)) == [("ADDED", "a", "8"), ("ADDED", "b", "9")]
    assert len(bytes(found[0].object)) > len(padding)


def test_a_line_without_end_is_given_up(tmp_path: Path) -> None:
    stream = Stream()
    for _ in range(MAX_LINE_BYTES // 1_000_000 + 1):
        stream.send(b"x" * 1_000_000)

    with (
        watching(tmp_path, Answer(stream)) as (_, watch),
        pytest.raises(UnavailableError, match=f"watch /api/v1/pods: a line of more than {MAX_LINE_BYTES} bytes"),
    ):
        list(watch)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(b"<html>busy</html>\n", r"not a watch event .*<html>busy", id="no JSON"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{"na\n', r"watch event .*truncated", id="half a line"),
        pytest.param(b'{"type":"GUESSED","object":{}}\n', r"watch event .*GUESSED", id="an event of no known type"),
        pytest.param(b'{"type":"ADDED","object":{"kind":"Pod"}}\n', r"not an object .*metadata", id="no metadata"),
        pytest.param(b'{"type":"\xff","object":{}}\n', r"not a watch event", id="no UTF-8"),
    ],
)
def test_an_invalid_watch_event_is_quoted(line: bytes, message: str, tmp_path: Path) -> None:
    stream = Stream(event("ADDED", "a", 8))
    with watching(tmp_path, Answer(stream)) as (_, watch):
        events = iter(watch)
        next(events)
        stream.send(line)
        with pytest.raises(UnavailableError, match=message):
            next(events)


@pytest.mark.parametrize(
    ("status", "error", "message"),
    [
        pytest.param({"code": 410, "message": "too old: 1 (2)"}, GoneError, "410: too old", id="410"),
        pytest.param({"code": 500, "message": "storage"}, UnavailableError, "500: storage", id="500"),
        pytest.param({"code": 403, "message": "no"}, ForbiddenError, "403: no", id="403"),
        pytest.param({"message": "hm"}, UnavailableError, "500: hm", id="no code"),
        pytest.param({"code": 200, "message": "hm"}, UnavailableError, "500: hm", id="a code of success"),
        pytest.param({"code": "x", "message": "hm"}, UnavailableError, "500: hm", id="a code that is no number"),
    ],
)
def test_an_error_event_is_raised_as_what_it_means(
    status: dict[str, Any], error: type[KubeError], message: str, tmp_path: Path
) -> None:
    stream = Stream({"type": "ERROR", "object": {"kind": "Status", "metadata": {}, "status": "Failure", **status}})

    with watching(tmp_path, Answer(stream)) as (_, watch), pytest.raises(error, match=f"watch /api/v1/pods: {message}"):
        list(watch)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(Answer({"message": "too old"}, 410), GoneError, id="410"),
        pytest.param(Answer("404 page not found", 404), NotFoundError, id="no such kind"),
        pytest.param(Answer({"message": "no"}, 403), ForbiddenError, id="403"),
        pytest.param(Answer({"message": "busy"}, 503), UnavailableError, id="503"),
        pytest.param(
            Answer(
                {
                    "message": "Too large resource version: 7, current: 2",
                    "details": {"causes": [{"reason": "ResourceVersionTooLarge"}], "retryAfterSeconds": 1},
                },
                504,
            ),
            GoneError,
            id="a version of another history",
        ),
    ],
)
def test_a_watch_may_be_refused(answer: Answer, error: type[KubeError], tmp_path: Path) -> None:
    with pytest.raises(error, match="GET /api/v1/pods: "), watching(tmp_path, answer):
        pass


def test_the_error_of_a_broken_stream_follows_its_events(tmp_path: Path) -> None:
    stream = Stream(event("ADDED", "a", 8))
    stream.cut()

    with watching(tmp_path, Answer(stream)) as (_, watch):
        events = iter(watch)
        assert said(next(events)) == [("ADDED", "a", "8")]
        with pytest.raises(UnavailableError, match="watch /api/v1/pods: the stream broke"):
            next(events)


def test_a_watch_that_is_silent_too_long_ends_like_a_watch_that_times_out(tmp_path: Path) -> None:
    stream = Stream(event("ADDED", "a", 8), b'{"type":"MODI')

    with watching(tmp_path, Answer(stream), silence_s=0.2) as (_, watch):
        assert [said(group) for group in watch] == [[("ADDED", "a", "8")]]
    stream.end()


def test_a_watch_that_waits_is_closed_by_another_thread_at_once(tmp_path: Path) -> None:
    stream = Stream(event("ADDED", "a", 8))
    with watching(tmp_path, Answer(stream)) as (_, watch):
        events = iter(watch)
        next(events)
        closer = threading.Timer(0.1, watch.close)
        closer.start()
        before = time.monotonic()
        assert list(events) == []
        assert time.monotonic() - before < 10  # and not as long as it would have waited
        closer.join()
    stream.end()


def test_a_watch_that_was_closed_before_it_was_read_brings_nothing(tmp_path: Path) -> None:
    stream = Stream(event("ADDED", "a", 8))
    with watching(tmp_path, Answer(stream)) as (_, watch):
        watch.close()
        watch.close()
        assert list(watch) == []
    stream.end()


def test_a_server_that_does_not_chunk_is_read_as_it_sends(tmp_path: Path) -> None:
    """Old proxies answer in HTTP/1.0, where the end of the connection is the end of the body."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = tmp_path / "config"
        config.write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")))
        kube = from_kubeconfig(OBSERVER, str(config))
        opened: list[WatchStream] = []
        opener = threading.Thread(target=lambda: opened.append(kube.watch(NODES, ListOptions(), "1", 300)))
        opener.start()
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n{"ty')
            opener.join()
            events = iter(opened[0])
            assert [each.type for each in next(events)] == [WatchEventType.ADDED]
        assert list(events) == []
        kube.close()


def test_a_role_that_may_only_list_watches_nothing(tmp_path: Path) -> None:
    with api_server(lambda _: Answer(Stream())) as server:
        lister = Role("lister", {NODES: ("list",)})
        kube = from_kubeconfig(lister, server.kubeconfig(tmp_path / "config"))
        with pytest.raises(AssertionError, match="the role 'lister' may not watch nodes"):
            kube.watch(NODES, ListOptions(), "1", 300)
        assert server.asked == []
        kube.close()
