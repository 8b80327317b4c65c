"""The projection of objects to the fields that are needed, and which events count as changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest

from gputopo.kube.errors import UnavailableError
from gputopo.kube.objects import Unreadable
from gputopo.kube.projection import Delta, Projection, WatchSource
from gputopo.kube.rbac import NODES
from gputopo.kube.watch_stream import WatchEvent, WatchEventType, parse_identity


class Thing(msgspec.Struct, frozen=True):
    size: int | None = None
    colour: str = ""


class Size(NamedTuple):
    key: str
    size: int


def raw(name: str, size: object = None, **more: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode({"metadata": {"name": name}, "size": size, **more}))


def put(name: str, size: object = None, **more: object) -> WatchEvent:
    text = raw(name, size, **more)
    return WatchEvent(WatchEventType.MODIFIED, parse_identity(text), text)


def deleted(name: str) -> WatchEvent:
    return put(name, 1)._replace(type=WatchEventType.DELETED)


def value(key: str, thing: Thing) -> Size | None:
    return None if thing.size is None else Size(key, thing.size)


SOURCE: WatchSource[Size] = WatchSource(NODES, Thing, lambda which: which.name, value)


class Named(msgspec.Struct, frozen=True):
    """Metadata with an identity."""

    name: str = ""
    uid: str = ""
    namespace: str = ""


class NamedThing(msgspec.Struct, frozen=True):
    """A Thing that is listed decoded."""

    metadata: Named = Named()
    size: int | None = None


def test_decoded_objects_are_projected_as_undecoded_ones() -> None:
    source = SOURCE._replace(kind=NamedThing)
    objects = [NamedThing(Named("a"), 1), NamedThing(Named(""), 2), raw("c", 3), raw("d", "big")]
    projection = Projection(source)

    assert projection.listed_kind is NamedThing
    assert projection.apply_list(objects).updates == (Size("a", 1), Size("c", 3))
    assert [each.name for each in projection.unreadable] == ["(unknown)", "d"]


def test_kinds_without_an_identity_are_listed_undecoded() -> None:
    assert Projection(SOURCE).listed_kind is msgspec.Raw


@pytest.fixture
def reduction() -> Projection[Size]:
    return Projection(SOURCE)


def test_a_list_is_complete_and_holds_what_something_is_kept_of(reduction: Projection[Size]) -> None:
    assert reduction.is_empty
    assert reduction.apply_list([raw("a", 1), raw("b"), raw("c", 3)]) == Delta(
        (Size("a", 1), Size("c", 3)), is_full_list=True
    )
    assert not reduction.is_empty


def test_only_changes_are_delivered(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1), raw("b", 2)])

    assert reduction.apply_events([put("a", 1, colour="red")]) == []
    assert reduction.apply_events([put("a", 5), put("b", 2), put("c", 3)]) == [Delta((Size("a", 5), Size("c", 3)))]
    assert reduction.apply_events([put("a", 5)]) == []


def test_of_several_events_of_one_object_the_last_counts(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1), raw("b", 2)])

    events = [put("a", 2), put("a", 3), deleted("b"), deleted("c"), put("c", 4), put("d", 1), put("d")]

    assert reduction.apply_events(events) == [Delta((Size("a", 3), Size("c", 4)), ("b", "d"))]


def test_a_change_is_delivered_before_the_end_of_its_object(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1), raw("b", 1)])

    events = [put("b", 2), put("a", 2), put("a", 3), deleted("a"), put("b", 3), put("a", 4)]

    assert reduction.apply_events(events) == [
        Delta((Size("b", 2), Size("a", 3))),
        Delta((Size("a", 4), Size("b", 3))),
    ]
    assert reduction.apply_events([deleted("a"), deleted("b")]) == [Delta(removed=("a", "b"))]


def test_an_object_that_nothing_is_kept_of_any_more_is_gone_once(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1)])

    assert reduction.apply_events([put("a")]) == [Delta(removed=("a",))]
    assert reduction.apply_events([put("a")]) == []
    assert reduction.is_empty


def test_the_end_of_an_object_without_a_value_is_delivered(reduction: Projection[Size]) -> None:
    assert reduction.apply_events([put("b"), deleted("b")]) == [Delta(removed=("b",))]


def test_a_later_list_removes_objects_that_it_does_not_contain(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1), raw("b", 2)])

    assert reduction.apply_list([raw("b", 2)]) == Delta((Size("b", 2),), is_full_list=True)
    assert reduction.apply_events([put("a", 1)]) == [Delta((Size("a", 1),))]


def test_a_list_that_breaks_changes_nothing(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1)])

    def breaking() -> Iterator[msgspec.Raw]:
        yield raw("b", 2)
        raise UnavailableError("the second page")

    with pytest.raises(UnavailableError, match="the second page"):
        reduction.apply_list(breaking())

    assert reduction.apply_events([put("a", 1), put("b", 2)]) == [Delta((Size("b", 2),))]


def test_an_object_without_an_identity_hides_no_other(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1)])

    assert reduction.apply_list([raw("b", 2), msgspec.Raw(b"[]"), raw("a", 1)]).updates == (Size("b", 2), Size("a", 1))
    (one,) = reduction.unreadable
    assert one.name == "(unknown)"
    assert one.why.startswith("not an object (Expected `object`, got `array`)")


def test_whatever_a_source_raises_is_one_object_that_cannot_be_read() -> None:
    def refuse(key: str, thing: Thing) -> Size | None:
        if thing.size == 13:
            raise RecursionError("too deep")
        return value(key, thing)

    for source in (SOURCE._replace(value=refuse), SOURCE._replace(fingerprint=lambda thing: refuse("", thing))):
        reduction = Projection(source)
        assert reduction.apply_list([raw("a", 1), raw("b", 13), raw("c", 3)]).updates == (Size("a", 1), Size("c", 3))
        assert reduction.apply_events([put("a", 13), put("c", 4), put("d", 5)]) == [Delta((Size("c", 4), Size("d", 5)))]
        assert reduction.unreadable == (
            Unreadable("nodes", "b", "RecursionError('too deep')"),
            Unreadable("nodes", "a", "RecursionError('too deep')"),
        )


def test_nesting_lone_surrogates_and_bad_utf8_in_what_is_skipped_hide_nothing(reduction: Projection[Size]) -> None:
    hostile = [
        b'{"a":' * 10_000 + b"{}" + b"}" * 10_000,
        b"[" * 10_000 + b"]" * 10_000,
        b'"\\ud800"',
        b'{"\xff":"\xff"}',
    ]
    for each in hostile:
        text = msgspec.Raw(b'{"metadata":{"managedFields":[{"fieldsV1":' + each + b'}],"name":"a"},"size":7}')
        assert reduction.apply_list([raw("b", 1), text]).updates == (Size("b", 1), Size("a", 7))
        assert reduction.unreadable == ()


def test_the_same_value_stays_the_same_object_whatever_is_read_again(reduction: Projection[Size]) -> None:
    (first,) = reduction.apply_list([raw("a", 1000)]).updates
    (second,) = reduction.apply_list([raw("a", 1000, colour="red")]).updates

    assert first is second


def test_an_unreadable_object_keeps_its_last_value_and_hides_no_other(reduction: Projection[Size]) -> None:
    reduction.apply_list([raw("a", 1), raw("b", 2)])

    assert reduction.apply_events([put("a", "big"), put("b", 3)]) == [Delta((Size("b", 3),))]
    assert reduction.unreadable == (Unreadable("nodes", "a", "Expected `int | null`, got `str` - at `$.size`"),)
    assert reduction.apply_list([raw("a", "big"), raw("c", "big"), raw("b", 3)]).updates == (Size("a", 1), Size("b", 3))
    assert [each.name for each in reduction.unreadable] == ["a", "c"]
    reduction.apply_events([put("a", 1), deleted("c")])
    assert not reduction.unreadable


def test_a_value_is_made_again_only_where_its_trace_changed() -> None:
    made: list[int | None] = []

    def counted(key: str, thing: Thing) -> Size | None:
        made.append(thing.size)
        return value(key, thing)

    reduction = Projection(SOURCE._replace(value=counted, fingerprint=lambda thing: thing.size))
    reduction.apply_list([raw("a", 1)])
    assert reduction.apply_events([put("a", 1, colour="red"), put("a", 2), put("a", 2)]) == [Delta((Size("a", 2),))]
    reduction.apply_list([raw("a", 2)])

    assert made == [1, 2]
