"""Garbage collection at chosen times."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from itertools import count

import pytest

from scheduler_core.runtime.garbage import (
    FULL_S,
    LATEST_S,
    LONG_PAUSE_S,
    NEW_S,
    PAUSE_S,
    SEARCH_S,
    GarbageCollection,
    LongLivedObjects,
)


class Cycle:
    """An object that only a search finds."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def _automatic_again() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def many_objects() -> list[list[int]]:
    return [[number] for number in range(5000)]


def test_new_garbage_is_found_at_the_next_tick() -> None:
    collection = GarbageCollection()
    collection.start(0.0)
    found = weakref.ref(Cycle())
    kept = many_objects()

    collection.tick(1.0)

    assert not gc.isenabled()
    assert found() is None
    assert gc.get_freeze_count() > len(kept)  # what is left is not searched again


def test_new_objects_are_searched_after_a_little_work_before_the_next_tick() -> None:
    """A search is short because it is not put off until tens of thousands of objects are there."""
    cpu_s = 0.0
    collection = GarbageCollection(lambda: cpu_s)
    assert not collection.due  # not started

    collection.start(0.0)
    found = weakref.ref(Cycle())
    cpu_s = NEW_S / 2
    collection.collect_new()
    assert not collection.due
    assert found() is not None

    cpu_s = NEW_S * 1.5
    assert collection.due
    collection.collect_new()
    assert found() is None
    assert not collection.due


def test_old_objects_that_end_do_not_put_a_search_off() -> None:
    """The interpreter's count of new objects falls when old objects end."""
    cpu_s = 0.0
    collection = GarbageCollection(lambda: cpu_s)
    old = many_objects()
    collection.start(0.0)
    found = weakref.ref(Cycle())
    kept = many_objects()
    del old[:]
    assert gc.get_count()[0] < len(kept)

    cpu_s = NEW_S * 1.5
    collection.collect_new()

    assert found() is None


def test_nothing_is_done_before_the_start() -> None:
    many_objects()

    GarbageCollection().tick(1.0)

    assert gc.isenabled()


@pytest.mark.parametrize(
    ("at", "called_at", "search_s", "searched"),
    [
        pytest.param(FULL_S - 1, 0.0, 0.3, False, id="not yet"),
        pytest.param(FULL_S + 1, FULL_S + 1 - PAUSE_S / 2, 0.01, False, id="calls come"),
        pytest.param(FULL_S + 1, FULL_S - PAUSE_S, 0.01, True, id="a pause"),
        pytest.param(FULL_S + 1, FULL_S - PAUSE_S, 0.3, False, id="a pause that is short for a long search"),
        pytest.param(FULL_S + 1, FULL_S - LONG_PAUSE_S, 0.3, True, id="a long pause"),
        pytest.param(LATEST_S + 1, LATEST_S + 1, 0.01, True, id="no pause comes and a search is short"),
        pytest.param(LATEST_S * 9, LATEST_S * 9, 0.3, False, id="no pause comes and a search would delay a call"),
    ],
)
def test_old_garbage_is_found_in_a_pause(at: float, called_at: float, search_s: float, searched: bool) -> None:
    cpu_times = count(0.0, search_s)
    collection = GarbageCollection(lambda: next(cpu_times))
    collection.start(0.0)
    old = [Cycle()]
    found = weakref.ref(old[0])
    kept = many_objects()
    collection.tick(1.0)  # survives, and is not searched any more
    del old[:]

    collection.note_call(called_at)
    kept += many_objects()
    collection.tick(at)

    assert (found() is None) is searched


def test_no_search_delays_a_call_when_the_cluster_has_grown() -> None:
    cpu_times = count(0.0, 0.1)  # each full search takes 0.1 s
    collection = GarbageCollection(lambda: next(cpu_times))
    collection.start(0.0)
    old = [Cycle()]
    found = weakref.ref(old[0])
    kept = [[number] for number in range(sys.getallocatedblocks())]  # at least twice as much memory: 0.2 s
    collection.tick(1.0)
    del old[:]

    collection.note_call(LATEST_S + 1)
    collection.tick(LATEST_S + 1)
    assert found() is not None

    del kept[:]
    collection.note_call(LATEST_S + 2)
    collection.tick(LATEST_S + 2)
    assert found() is None


def test_objects_are_never_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter visits all objects to count them: millions take half a second."""
    cpu_s, searches, counted = 0.0, 0, 0

    def count_objects() -> int:
        nonlocal counted
        counted += 1
        return 10

    def search() -> None:
        nonlocal cpu_s, searches
        cpu_s, searches = cpu_s + 0.3, searches + 1

    collection = GarbageCollection(lambda: cpu_s)
    monkeypatch.setattr(gc, "get_freeze_count", count_objects)
    monkeypatch.setattr(gc, "collect", search)
    collection.start(0.0)

    for second in range(1200):
        now = LATEST_S + 1 + second
        collection.note_call(now)
        collection.tick(now)
    collection.tick(now + LONG_PAUSE_S + 1)

    assert searches > 1200
    assert counted == 0


def test_long_lived_objects_are_collected_now_and_then_and_when_the_view_is_gone() -> None:
    long_lived, view = LongLivedObjects(), [Cycle()]
    found = weakref.ref(view[0])
    frozen = gc.get_freeze_count()
    long_lived.tick(0.0, loaded=False)
    assert gc.get_freeze_count() == frozen

    long_lived.tick(1.0, loaded=True)
    del view[:]
    gc.collect()
    long_lived.tick(SEARCH_S, loaded=True)
    assert found() is not None  # the automatic collection does not search it
    assert gc.isenabled()

    long_lived.tick(SEARCH_S + 1.0, loaded=True)
    assert found() is None

    view.append(Cycle())
    found = weakref.ref(view[0])
    long_lived.tick(2 * SEARCH_S + 1.0, loaded=True)
    del view[:]
    long_lived.tick(2 * SEARCH_S + 2.0, loaded=False)
    gc.collect()
    assert found() is None
