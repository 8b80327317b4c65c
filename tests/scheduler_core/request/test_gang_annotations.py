"""The annotations of a pod about its gang."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.request.gang_annotations import (
    MAX_MEMBERS,
    GangAnnotations,
    MalformedGangError,
    parse_gang_annotations,
    parse_member_count,
)
from scheduler_core.request.pod_request import InvalidRequest, parse_request
from tests.scheduler_core.builders import pod


def said(**annotations: str) -> GangAnnotations:
    return parse_gang_annotations({f"gputopo.io/{key.replace('_', '-')}": value for key, value in annotations.items()})


def test_most_pods_have_no_gang_annotations() -> None:
    assert parse_gang_annotations({"team": "a"}) == GangAnnotations()


def test_all_annotations() -> None:
    assert said(
        gang="llm-7",
        gang_size="16",
        gang_minimum="12",
        gang_timeout="1m30s",
        gang_required_topology="clique",
        gang_preferred_topology="example.com/row",
        planned="false",
    ) == GangAnnotations("llm-7", 16, 12, 90.0, "clique", "example.com/row")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30.0), ("5m", 300.0), ("1h", 3600.0), ("1500ms", 1.5), ("0.5h", 1800.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert said(gang_timeout=text) == GangAnnotations(timeout_s=seconds)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param("gang", "LLM", "a name: at most 63 lower-case letters, digits and -", id="capitals"),
        pytest.param("gang", "", "a name: at most 63 lower-case letters, digits and -", id="empty name"),
        pytest.param("gang", "jobset.llm", "a name: at most 63 lower-case letters, digits and -", id="dot"),
        pytest.param("gang", "a" * 64, "a name: at most 63 lower-case letters, digits and -", id="long name"),
        pytest.param("gang-size", "0", "a number of pods, 1 to 65536", id="zero"),
        pytest.param("gang-size", "abc", "a number of pods, 1 to 65536", id="no number"),
        pytest.param("gang-size", "65537", "a number of pods, 1 to 65536", id="too many"),
        pytest.param("gang-minimum", "-1", "a number of pods, 1 to 65536", id="negative"),
        pytest.param("gang-timeout", "5 parsecs", "a time like 90s or 5m, from 1s to 24h", id="no time"),
        pytest.param("gang-timeout", "30", "a time like 90s or 5m, from 1s to 24h", id="no unit"),
        pytest.param("gang-timeout", "0s", "a time like 90s or 5m, from 1s to 24h", id="no time at all"),
        pytest.param("gang-timeout", "25h", "a time like 90s or 5m, from 1s to 24h", id="too long"),
        pytest.param(
            "gang-required-topology",
            "rak",
            "one of clique, rack, block, zone, or a node label's key like example.com/row",
            id="unknown level",
        ),
        pytest.param(
            "gang-preferred-topology",
            "Example.com/row",
            "one of clique, rack, block, zone, or a node label's key like example.com/row",
            id="no key",
        ),
        pytest.param("planned", "yes", "true or false", id="neither"),
    ],
)
def test_invalid_value_is_quoted_and_rejected_by_the_extender_too(key: str, value: str, expected: str) -> None:
    reason = f"the pod's request is malformed: gputopo.io/{key}: {value[:63]!r} is not {expected}"

    with pytest.raises(MalformedGangError) as caught:
        parse_gang_annotations({f"gputopo.io/{key}": value})
    assert str(caught.value) == reason
    assert parse_request(pod(gpus=1, annotations={key: value})) == InvalidRequest(reason)


def test_minimum_above_the_size_is_rejected() -> None:
    with pytest.raises(MalformedGangError) as caught:
        said(gang="llm", gang_size="8", gang_minimum="9")

    assert str(caught.value) == (
        "the pod's request is malformed: gputopo.io/gang-minimum: '9' is not at most its size, 8"
    )


@given(st.integers(min_value=1, max_value=MAX_MEMBERS))
def test_numbers_are_parsed(number: int) -> None:
    assert parse_member_count(str(number)) == number


@given(st.text(max_size=20))
def test_any_text_gives_a_number_in_bounds_or_none(text: str) -> None:
    found = parse_member_count(text)

    assert found is None or (1 <= found <= MAX_MEMBERS and str(found) == text)
