"""JSON that Go sends and Python decoders reject is made decodable; all other JSON is unchanged."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.process import json_repair
from gputopo.process.decoding import convert, decode
from gputopo.process.json_repair import MAX_DEPTH, repair_json


def nested(levels: int, inner: bytes = b"1") -> bytes:
    return b'{"a":' * levels + inner + b"}" * levels


def cut(value: Any, levels: int = MAX_DEPTH) -> Any:
    """The same by recursion: null for what is below so many levels."""
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    if isinstance(value, list):
        return [cut(each, levels - 1) for each in value]
    return {key: {} if each == {} else cut(each, levels - 1) for key, each in value.items()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(JSON, st.integers(MAX_DEPTH - 6, MAX_DEPTH + 2), st.booleans(), st.booleans())
def test_only_what_nests_too_deep_is_cut(value: Any, around: int, escaped: bool, compact: bool) -> None:
    for level in range(around):
        value = [value, "]}"] if level % 2 else {'"\\': value, "b": {}}
    text = json.dumps(value, ensure_ascii=escaped, separators=(",", ":") if compact else None).encode()

    found = repair_json(text)

    assert json.loads(found) == cut(value)
    if cut(value) == value:
        assert found == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (rb'"\ud800"', "\ufffd"),
        (rb'"\uDfff\ud83d\ude00\ud83d"', "\ufffd😀\ufffd"),
        (rb'"\\ud800"', "\\ud800"),
        (rb'"\\\ud800"', "\\\ufffd"),
        (b'"a\xffb"', "a\ufffdb"),
    ],
)
def test_invalid_characters_are_replaced_as_go_does(text: bytes, found: str) -> None:
    assert msgspec.json.decode(repair_json(text)) == found
    assert decode(text, str) == found


MIB = 1 << 20
HOSTILE = {
    "dense": b",".join([nested(9_000)] * 24).join((b"[", b"]")),
    "flat": nested(1_000, b"{" + b",".join([b'"f:a":{}'] * (MIB // 9)) + b"}"),
    "escapes": nested(2_000, b'"' + b"\\n" * (MIB // 2) + b'"'),
    "surrogates": nested(2_000, b'"' + b"\\ud800" * (MIB // 6) + b'"'),
    "an open string": b"[" * 2_000 + b'"\\"' * (MIB // 3),
    "quotes": b"[" * 2_000 + b'"' * MIB,
    "opening": b"[" * MIB,
    "closing": b"]" * MIB,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_takes_time_in_proportion_to_its_length(text: bytes) -> None:
    began = time.process_time()
    repair_json(text)
    assert time.process_time() - began < 30.0  # 0.01 to 0.2 s; what is quadratic takes minutes


ESCAPES = {
    "control characters": b'"' + b"\\u0001" * (MIB // 6) + b'","\\\\ud800"',
    "quotation marks": b'"' + b'\\"' * (MIB // 2) + b'","\\\\ud800"',
    "strings": b",".join([b'"x"'] * (MIB // 4)),
}


@pytest.mark.parametrize("content", ESCAPES.values(), ids=ESCAPES)
def test_strings_and_escapes_are_passed_without_python_code_for_each(content: bytes) -> None:
    """An object of 1.5 MiB in etcd has 9 MB as JSON, which took more than a second for each change of it."""
    text = b"[" * 2_000 + content + b"]" * 2_000
    calls = Counter[str]()
    sys.setprofile(lambda _frame, event, _argument: calls.update([event]))
    try:
        matches = sum(1 for _ in json_repair._TOKENS.finditer(text))
        repair_json(text)
    finally:
        sys.setprofile(None)

    assert matches < 10
    assert calls.total() < 100


class Some(msgspec.Struct):
    size: int = 0
    parts: dict[str, msgspec.Raw] = {}


@pytest.mark.parametrize("levels", [950, 1_000, 10_000, 200_000])
def test_deep_nesting_in_what_is_skipped_is_read_over(levels: int) -> None:
    text = b'{"x":' + nested(levels) + b',"size":3,"parts":{"y":' + nested(levels) + b"}}"

    found = decode(text, Some)

    assert (found.size, list(found.parts)) == (3, ["y"])


@pytest.mark.parametrize(
    "text",
    [
        nested(3_000, b"")[:-1],
        b'{"size":"\xff"}',
        b'{"size":' + b"9" * 5_000 + b"}",
        b'{"size":2E0}',
        b'{"size":' + nested(3_000) + b"}",
        b"[" * 200_000,
        b"",
        "\ud800",
    ],
)
def test_text_that_cannot_be_decoded_is_a_decode_error(text: bytes | str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(text, Some)


class Deep(msgspec.Struct):
    a: Deep | int = 0


def test_a_value_that_nests_too_deep_is_a_validation_error() -> None:
    value: Any = 1
    for _ in range(50_000):  # Python 3.11 gives up after some 1,000 levels, 3.12 after some 10,000
        value = {"a": value}
    with pytest.raises(msgspec.ValidationError):
        convert(value, Deep)
