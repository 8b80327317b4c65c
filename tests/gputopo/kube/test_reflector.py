"""List and watch against a real HTTP server that does what API servers do on bad days."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import pytest

from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.projection import Delta, WatchSource
from gputopo.kube.rbac import NODE_GPUS, NODES, OBSERVER
from gputopo.kube.reflector import (
    LONGEST_BACKOFF_S,
    LONGEST_RETRY_AFTER_S,
    MAX_WATCH_S,
    Reflector,
    ReflectorStatus,
    WatchTiming,
)
from gputopo.timing import MISSING_KIND_RETRY_S
from tests.api_server import Answer, Asked, Stream, api_server
from tests.gputopo.kube.serving import GONE, Script, bookmark, event, page, thing, wait_for


class Thing(msgspec.Struct, frozen=True):
    size: int = 0


class Size(NamedTuple):
    key: str
    size: int


SOURCE: WatchSource[Size] = WatchSource(NODES, Thing, lambda which: which.name, lambda key, each: Size(key, each.size))


class Running(NamedTuple):
    reflector: Reflector[Size]
    deltas: list[Delta[Size]]
    waits: list[float]


class Upper(Random):
    """Chance at its worst: the upper end."""

    def uniform(self, a: float, b: float) -> float:  # noqa: ARG002  the lower end is for luckier days
        return b


@contextmanager
def running(
    script: Script,
    folder: Path,
    *,
    source: WatchSource[Size] = SOURCE,
    clock: float | None = None,
    silence_s: float = 10.0,
    pause: Callable[[], None] = lambda: None,
) -> Iterator[Running]:
    """A reflector on a thread of its own, which does not wait for real."""
    deltas: list[Delta[Size]] = []
    waits: list[float] = []

    def wait(stopped: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return stopped.wait(0.002)

    own_clock = time.monotonic if clock is None else lambda: clock
    timing = WatchTiming(own_clock, lambda: 1_795_000_000.0, wait, Upper(), pause)
    with api_server(script) as server:
        opened = from_kubeconfig(OBSERVER, server.kubeconfig(folder / "config"))
        kube = Kube(opened._api, OBSERVER, silence_s=silence_s)
        reflector = Reflector(kube, source, deltas.append, timing)
        thread = threading.Thread(target=reflector.run, daemon=True)
        thread.start()
        try:
            yield Running(reflector, deltas, waits)
        finally:
            reflector.stop()
            thread.join(5)
            kube.close()
        assert not thread.is_alive()


def ended(*lines: object) -> Stream:
    """A watch that brings that, and ends in good order."""
    stream = Stream(*lines)
    stream.end()
    return stream


def cut(*lines: object) -> Stream:
    """A watch that brings that, and breaks."""
    stream = Stream(*lines)
    stream.cut()
    return stream


def test_pages_make_one_complete_list_and_the_watch_goes_on_from_its_version(tmp_path: Path) -> None:
    stream = Stream()
    script = Script([page(7, thing("a", 3, size=1), following="more"), page(7, thing("b", 4, size=2))], [stream])

    with running(script, tmp_path, source=SOURCE._replace(query=ListOptions(fields="x=y"))) as run:
        wait_for(lambda: script.watched_from, "the watch")
        stream.send(event("ADDED", "c", 8, size=3), event("DELETED", "a", 9))
        wait_for(lambda: len(run.deltas) == 2, "the events")

    assert run.deltas == [
        Delta((Size("a", 1), Size("b", 2)), is_full_list=True),
        Delta((Size("c", 3),), ("a",)),
    ]
    first, second, watch = (each.query for each in script.asked)
    assert first == {"fieldSelector": "x=y", "limit": "500"}  # no resource version: by quorum
    assert second == {**first, "continue": "more"}
    assert watch["resourceVersion"] == "7"
    assert watch["timeoutSeconds"] == str(int(MAX_WATCH_S))
    assert watch["fieldSelector"] == "x=y"
    assert run.waits == []


def test_more_urgent_work_may_pause_it_before_each_object(tmp_path: Path) -> None:
    stream, decoded, seen = Stream(), list[str](), list[tuple[str, ...]]()

    def value(key: str, each: Thing) -> Size:
        decoded.append(key)
        return Size(key, each.size)

    script = Script([page(7, thing("a", 3), thing("b", 4))], [stream])
    source = SOURCE._replace(value=value)
    with running(script, tmp_path, source=source, pause=lambda: seen.append(tuple(decoded))) as run:
        wait_for(lambda: script.watched_from, "the watch")
        stream.send(event("ADDED", "c", 8), bookmark(9), event("ADDED", "d", 10))
        wait_for(lambda: len(run.deltas) == 2, "the events")

    assert seen == [(), ("a",), ("a", "b"), ("a", "b", "c")]


@pytest.mark.parametrize(
    ("last", "following", "version"),
    [
        pytest.param(ended(event("ADDED", "b", 8), bookmark(12)), 0, "12", id="ended after a bookmark"),
        pytest.param(ended(event("ADDED", "b", 8)), 0, "8", id="ended after an event"),
        pytest.param(cut(bookmark(9)), 1, "9", id="broken after a bookmark"),
        pytest.param(cut(), 1, "7", id="broken before anything came"),
        pytest.param(cut(event("MODIFIED", "a", 8), b'{"type":"ADD'), 1, "8", id="broken within a line"),
        pytest.param(Stream(event("MODIFIED", "a", 8), b"garbage\n"), 1, "7", id="garbage in the same piece"),
        pytest.param(Answer({"message": "no"}, 500), 1, "7", id="refused with 500"),
    ],
)
def test_a_watch_resumes_at_the_last_version(
    last: Stream | Answer, following: int, version: str, tmp_path: Path
) -> None:
    script = Script([page(7, thing("a", 3))], [last])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 2, "the second watch")
        assert run.reflector.status.failures == following

    assert script.watched_from == ["7", version]
    assert script.listed == 1


def test_no_event_is_lost_or_delivered_twice_over_broken_streams(tmp_path: Path) -> None:
    breaks = [cut(event("ADDED", f"n{number}", number)) for number in range(8, 28)]
    script = Script([page(7)], list(breaks))

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 21, "the last watch")

    assert [each.updates for each in run.deltas] == [(), *((Size(f"n{number}", 0),) for number in range(8, 28))]


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(Stream(GONE), id="said in the watch"),
        pytest.param(Answer({"message": "too old"}, 410), id="said at once"),
    ],
)
def test_too_old_a_version_means_a_new_list(gone: Stream | Answer, tmp_path: Path) -> None:
    script = Script([page(7, thing("a", 3), thing("b", 3)), page(30, thing("b", 20, size=2))], [gone])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 2, "the second watch")
        wait_for(lambda: run.reflector.status.error is None, "the trouble to be over")
        condition = run.reflector.status

    assert run.deltas == [
        Delta((Size("a", 0), Size("b", 0)), is_full_list=True),
        Delta((Size("b", 2),), is_full_list=True),
    ]
    assert script.watched_from == ["7", "30"]
    assert (condition.relists, condition.failures) == (1, 1)


def test_a_list_that_grows_too_old_between_two_pages_is_begun_again(tmp_path: Path) -> None:
    lists = [page(7, thing("a", 3), following="more"), Answer({"message": "expired"}, 410), page(9, thing("b", 8))]

    with running(Script(lists), tmp_path) as run:
        wait_for(lambda: run.deltas, "the list")

    assert run.deltas == [Delta((Size("b", 0),), is_full_list=True)]


def test_failures_are_retried_with_growing_delays(tmp_path: Path) -> None:
    script = Script([*[Answer({"message": "etcd"}, 500)] * 9, page(7, thing("a", 3))])

    with running(script, tmp_path) as run:
        wait_for(lambda: run.reflector.status.synced, "the list")
        wait_for(lambda: script.watched_from, "the watch")

    assert run.waits == [0.5, 1, 2, 4, 8, 16, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S, LONGEST_BACKOFF_S]


def test_an_event_of_the_watch_resets_the_delay(tmp_path: Path) -> None:
    failed = Answer({"message": "etcd"}, 500)
    script = Script([page(7)], [failed, failed, cut(bookmark(8)), failed])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 5, "the fifth watch")

    assert run.waits == [0.5, 1, 0.5, 1]


@pytest.mark.parametrize(
    ("asked", "waited"),
    [
        pytest.param("7", 7.0, id="longer than the back-off"),
        pytest.param("0", 0.5, id="shorter than the back-off"),
        pytest.param("86400", LONGEST_RETRY_AFTER_S, id="a day"),
    ],
)
def test_a_retry_after_of_the_server_is_honoured_up_to_a_limit(asked: str, waited: float, tmp_path: Path) -> None:
    script = Script([Answer({"message": "busy"}, 429, {"Retry-After": asked}), page(7)])

    with running(script, tmp_path) as run:
        wait_for(lambda: run.deltas, "the list")

    assert run.waits == [waited]


def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_hot_loop(tmp_path: Path) -> None:
    script = Script([page(7)], [ended(), ended()])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 3, "the third watch")

    assert run.waits == [0.5, 1]


def test_a_proxy_that_cuts_quiet_watches_does_not_make_us_slow(tmp_path: Path) -> None:
    times = iter(range(0, 10_000, 20))
    script = Script([page(7)], [cut() for _ in range(4)])

    with api_server(script) as server:
        kube = from_kubeconfig(OBSERVER, server.kubeconfig(tmp_path / "config"))
        waits: list[float] = []
        timing = WatchTiming(lambda: next(times), wait=lambda _, seconds: waits.append(seconds), random=Upper())
        reflector = Reflector(kube, SOURCE, lambda _: None, timing)
        thread = threading.Thread(target=reflector.run)
        thread.start()
        wait_for(lambda: len(script.watched_from) == 5, "the fifth watch")
        reflector.stop()
        thread.join()
        kube.close()

    assert waits == [0.5] * 4


def test_a_kind_that_is_not_served_is_an_empty_list_and_looked_for_again(tmp_path: Path) -> None:
    unknown = Answer("404 page not found\n", 404)
    script = Script([unknown, unknown, page(7, thing("a", 3))])

    with running(script, tmp_path, source=SOURCE._replace(resource=NODE_GPUS)) as run:
        wait_for(lambda: run.waits, "the first look")
        missing = run.reflector.status
        wait_for(lambda: script.watched_from, "the watch")
        wait_for(lambda: run.reflector.status.error is None, "the kind")

    assert run.deltas == [Delta(is_full_list=True), Delta((Size("a", 0),), is_full_list=True)]
    assert run.waits == [MISSING_KIND_RETRY_S, MISSING_KIND_RETRY_S]
    assert missing.synced
    assert missing.error == "the API server does not serve nodegpus (gputopo.io/v1alpha1)"
    assert missing.failures == 0


def test_a_kind_that_is_served_no_more_is_an_empty_list(tmp_path: Path) -> None:
    unknown = Answer("404 page not found\n", 404)
    script = Script([page(7, thing("a", 3)), unknown, page(9, thing("b", 8))], [unknown])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(run.deltas) == 3, "the kind to be back")

    assert run.deltas == [
        Delta((Size("a", 0),), is_full_list=True),
        Delta(is_full_list=True),
        Delta((Size("b", 0),), is_full_list=True),
    ]


def test_a_namespace_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    script = Script([Answer({"message": "no ns", "details": {"name": "ns"}}, 404), page(7)])

    with running(script, tmp_path) as run:
        wait_for(lambda: run.deltas, "the list")

    assert run.waits == [0.5]


def test_a_forbidden_list_is_reported_and_retried(tmp_path: Path) -> None:
    script = Script([Answer({"message": "nodes is forbidden"}, 403)])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(run.waits) >= 3, "some tries")
        condition = run.reflector.status

    assert condition.error == "GET /api/v1/nodes: 403: nodes is forbidden"
    assert not condition.synced
    assert run.deltas == []


def test_an_empty_line_is_a_sign_of_life_and_no_more(tmp_path: Path) -> None:
    stream = Stream()
    stream.send(b"\n")
    stream.cut()
    script = Script([page(7)], [stream])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 2, "the second watch")

    assert script.watched_from == ["7", "7"]
    assert run.deltas == [Delta(is_full_list=True)]


def test_a_silent_watch_is_reopened_without_counting_as_a_failure(tmp_path: Path) -> None:
    silent = Stream(event("ADDED", "a", 8))
    script = Script([page(7)], [silent])

    with running(script, tmp_path, silence_s=0.2) as run:
        wait_for(lambda: len(script.watched_from) == 2, "the second watch")
        condition = run.reflector.status
    silent.end()

    assert script.watched_from == ["7", "8"]
    assert (condition.failures, condition.relists, run.waits) == (0, 0, [])


def test_a_server_that_has_failed_without_closing_its_connections_is_noticed(tmp_path: Path) -> None:
    script = Script([page(7)], [Stream(event("ADDED", "a", 8)), Answer({"message": "shutting down"}, 503)])

    with running(script, tmp_path, silence_s=0.2) as run:
        wait_for(lambda: run.waits, "the failure")

    assert run.waits == [0.5]


def test_it_stops_at_once_while_it_waits_for_events(tmp_path: Path) -> None:
    stream = Stream()
    script = Script([page(7)], [stream])

    with running(script, tmp_path) as run:
        wait_for(lambda: run.reflector._watch is not None, "the watch")
        before = time.monotonic()
    assert time.monotonic() - before < 10  # and not as long as it would have waited
    stream.end()


def test_it_stops_at_once_while_it_waits_to_try_again(tmp_path: Path) -> None:
    with api_server(Script([Answer({"message": "busy"}, 503, {"Retry-After": "50"})])) as server:
        kube = from_kubeconfig(OBSERVER, server.kubeconfig(tmp_path / "config"))
        reflector = Reflector(kube, SOURCE, lambda _: None, WatchTiming())
        thread = threading.Thread(target=reflector.run)
        thread.start()
        wait_for(lambda: reflector.status.failures, "a failure")
        before = time.monotonic()
        reflector.stop()
        thread.join()
        assert time.monotonic() - before < 10  # and not as long as it would have waited
        kube.close()


def test_nothing_is_delivered_after_a_stop_in_the_middle_of_a_list(tmp_path: Path) -> None:
    asked, answered = threading.Event(), threading.Event()
    script = Script([page(7, thing("a", 3), following="more"), page(7, thing("b", 4))])

    def answer(request: Asked) -> Answer:
        made = script(request)
        if script.listed == 2:
            asked.set()
            answered.wait(10)
        return made

    with api_server(answer) as server:
        kube = from_kubeconfig(OBSERVER, server.kubeconfig(tmp_path / "config"))
        deltas: list[Delta[Size]] = []
        reflector = Reflector(kube, SOURCE, deltas.append, WatchTiming())
        thread = threading.Thread(target=reflector.run)
        thread.start()
        asked.wait(10)
        reflector.stop()
        answered.set()
        thread.join(10)
        kube.close()

    assert deltas == []
    assert script.watched_from == []


def test_it_stops_while_a_watch_is_being_opened(tmp_path: Path) -> None:
    asked, answered = threading.Event(), threading.Event()
    script = Script([page(7)], [Stream(event("ADDED", "a", 8))])

    def answer(request: Asked) -> Answer:
        if "watch" in request.query:
            asked.set()
            answered.wait(10)
        return script(request)

    with api_server(answer) as server:
        kube = from_kubeconfig(OBSERVER, server.kubeconfig(tmp_path / "config"))
        deltas: list[Delta[Size]] = []
        reflector = Reflector(kube, SOURCE, deltas.append, WatchTiming())
        thread = threading.Thread(target=reflector.run)
        thread.start()
        asked.wait(10)
        reflector.stop()
        answered.set()
        thread.join(10)
        assert not thread.is_alive()
        kube.close()

    assert deltas == [Delta(is_full_list=True)]


def test_status_of_a_reflector(tmp_path: Path) -> None:
    stream = Stream()
    script = Script([page(7, thing("a", 3))], [stream])

    with running(script, tmp_path, clock=5.0) as run:
        assert Reflector(Kube.__new__(Kube), SOURCE, lambda _: None, WatchTiming()).status == ReflectorStatus()
        wait_for(lambda: script.watched_from, "the watch")
        assert run.reflector.status == ReflectorStatus(synced=True, last_event_at=5.0, moved=5.0)
        created = thing("b", 8)
        created["metadata"]["creationTimestamp"] = "2026-11-18T11:06:38Z"  # two seconds before
        old = thing("a", 9, size="big")
        old["metadata"]["creationTimestamp"] = "2026-11-18T10:00:00Z"
        odd = thing("c", 10)
        odd["metadata"]["creationTimestamp"] = "lately"
        stream.send(
            {"type": "ADDED", "object": created}, {"type": "MODIFIED", "object": old}, {"type": "ADDED", "object": odd}
        )
        wait_for(lambda: len(run.deltas) == 2, "the events")
        condition = run.reflector.status
    stream.end()

    assert condition == ReflectorStatus(
        synced=True,
        last_event_at=5.0,
        lag_s=2.0,
        error="nodes a cannot be read: Expected `int`, got `str` - at `$.size`",
        unreadable=1,
        moved=5.0,
    )


def test_after_a_consumer_failed_everything_is_listed_anew(tmp_path: Path) -> None:
    stream = Stream()
    script = Script([page(7, thing("a", 3, size=1)), page(8, thing("a", 8, size=2))], [stream])
    result: list[Delta[Size]] = []
    waits: list[float] = []

    def wait(stopped: threading.Event, seconds: float) -> bool:
        waits.append(seconds)
        return stopped.wait(0.002)

    def deliver(delta: Delta[Size]) -> None:
        result.append(delta)
        if len(result) in (1, 3):
            raise ValueError("no room")

    with api_server(script) as server:
        kube = from_kubeconfig(OBSERVER, server.kubeconfig(tmp_path / "config"))
        reflector = Reflector(kube, SOURCE, deliver, WatchTiming(wait=wait, random=Upper()))
        thread = threading.Thread(target=reflector.run, daemon=True)
        thread.start()
        wait_for(lambda: script.watched_from, "the watch")
        assert reflector.status.error is None
        stream.send(event("MODIFIED", "a", 9, size=3))
        wait_for(lambda: len(result) == 4, "the list after the failure")
        wait_for(lambda: len(script.watched_from) == 2, "the watch after it")
        assert thread.is_alive()
        reflector.stop()
        thread.join(5)
        kube.close()

    assert result == [
        Delta((Size("a", 1),), is_full_list=True),
        Delta((Size("a", 2),), is_full_list=True),
        Delta((Size("a", 3),)),
        Delta((Size("a", 2),), is_full_list=True),
    ]
    assert script.watched_from == ["8", "8"]
    assert len(waits) == 2
    assert reflector.status.failures == 2


@pytest.mark.parametrize("where", ["list", "watch"])
def test_an_object_that_nests_too_deep_is_read_and_hides_no_other(where: str, tmp_path: Path) -> None:
    deep = '{"f:a":' * 3_000 + "{}" + "}" * 3_000
    metadata = f'{{"name":"x","uid":"u","resourceVersion":"8","managedFields":[{{"fieldsV1":{deep}}}]}}'
    hostile = f'{{"metadata":{metadata},"size":4}}'
    plain = [json.dumps(thing(f"n{number}", 3, size=number)) for number in range(499)]
    stream = Stream()
    if where == "list":
        lists = [Answer('{"metadata":{"resourceVersion":"7"},"items":[' + ",".join([*plain, hostile]) + "]}")]
    else:
        lists = [Answer('{"metadata":{"resourceVersion":"7"},"items":[' + ",".join(plain) + "]}")]
        stream.send(f'{{"type":"ADDED","object":{hostile}}}\n'.encode(), event("ADDED", "y", 9, size=5))

    with running(Script(lists, [stream]), tmp_path) as run:
        wait_for(lambda: sum(len(each.updates) for each in run.deltas) == (500 if where == "list" else 501), "all")
        assert run.reflector.status.failures == 0
        assert run.reflector.status.unreadable == 0

    assert Size("x", 4) in {size for each in run.deltas for size in each.updates}


def test_a_watch_that_is_damaged_twice_at_one_version_is_left_to_a_list(tmp_path: Path) -> None:
    script = Script([page(7), page(9)], [Stream(b"garbage\n"), Stream(b"garbage\n")])

    with running(script, tmp_path) as run:
        wait_for(lambda: len(script.watched_from) == 3, "the watch after the list")
        assert run.reflector.status.failures == 2

    assert script.watched_from == ["7", "7", "9"]
    assert script.listed == 2


def test_an_optional_kind_that_is_forbidden_is_an_empty_list_and_asked_for_again(tmp_path: Path) -> None:
    forbidden = Answer({"message": "leases is forbidden"}, 403)
    script = Script([forbidden, page(7, thing("a", 3)), page(9, thing("b", 8))], [forbidden])

    with running(script, tmp_path, source=SOURCE._replace(optional=True)) as run:
        wait_for(lambda: run.waits, "the first look")
        first = run.reflector.status
        wait_for(lambda: len(run.deltas) == 4, "the kind to be back")

    assert first.synced
    assert first.error is not None
    assert "leases is forbidden" in first.error
    assert run.deltas == [
        Delta(is_full_list=True),
        Delta((Size("a", 0),), is_full_list=True),
        Delta(is_full_list=True),
        Delta((Size("b", 0),), is_full_list=True),
    ]
    assert run.waits == [MISSING_KIND_RETRY_S] * 2
