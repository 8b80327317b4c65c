"""The document: stable keys, and it can be read back."""

from __future__ import annotations

import json

import pytest

from scheduler_core.explain import NoExplanationError, explain_malformed, explanation_document, parse_explanation
from tests.scheduler_core.builders import occupant, record, request
from tests.scheduler_core.explain.fleets import PAIRS, QUADS, explained

BUSY = record("b", PAIRS, held={"x": [0, 1]}, pods=[occupant("x", 2)])


def test_everything_comes_back() -> None:
    for asked, records in ((request(4), [BUSY]), (request(2), [BUSY, record("a", QUADS, held={})])):
        explanation = explained(asked, *records)

        assert parse_explanation(json.dumps(explanation_document(explanation)).encode()) == explanation


def test_document_of_a_pod_that_fits_nowhere() -> None:
    assert explanation_document(explained(request(4), BUSY)) == {
        "apiVersion": "gputopo.io/v1",
        "kind": "PodExplanation",
        "pod": {"namespace": "team", "name": "new", "scheduler": None},
        "beforehand": None,
        "malformed": None,
        "asks": [{"key": "nvidia.com/gpu", "value": "4", "words": "4 whole GPUs", "required": True}],
        "held": None,
        "nodes": 1,
        "otherNodes": 0,
        "barred": [],
        "suited": [],
        "best": [],
        "refused": [
            {
                "reason": "TOO_FEW_GPUS",
                "text": "too few free healthy GPUs (see: gputopo why pod)",
                "means": "Fewer healthy GPUs (or shares, or MIG devices) are free than the pod requests.",
                "advice": "Wait for a pod to end, request fewer, or add nodes.",
                "nodes": ["b"],
            }
        ],
        "kept": [],
        "nearest": [
            {
                "kind": "pods-end",
                "text": "b has 2 free GPUs; 4 free after pod team/x ends",
                "nodes": ["b"],
                "pods": ["team/x"],
                "keys": [],
                "value": None,
            }
        ],
        "schedulerSaid": None,
        "notes": [],
    }


def test_keys_of_a_node_that_suits() -> None:
    (best,) = explanation_document(explained(request(2), record("a", QUADS, held={})))["best"]

    assert list(best) == ["node", "points", "factors", "outcomes", "moreOutcomes", "worst", "mayCrash", "choice"]
    assert list(best["factors"][0]) == ["name", "raw", "weight", "share", "measures"]
    assert best["choice"] == {
        "gpus": [0, 1],
        "islands": [2],
        "numa": [0],
        "ring": "nvlink",
        "gbps": 200.0,
        "distance": None,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(b"<html>", "JSON is malformed: invalid character (byte 0): b'<html>'", id="no JSON"),
        pytest.param(b'{"kind": "Status"}', "its kind is 'Status', not 'PodExplanation'", id="another kind"),
        pytest.param(
            b'{"kind": "PodExplanation"}',
            'Object missing required field `pod`: b\'{"kind": "PodExplanation"}\'',
            id="nothing in it",
        ),
    ],
)
def test_an_invalid_explanation_is_an_error_with_the_reason(text: bytes, why: str) -> None:
    with pytest.raises(NoExplanationError) as caught:
        parse_explanation(text)

    assert str(caught.value) == why


def test_a_malformed_pod_has_a_document_too() -> None:
    explanation = explain_malformed("team", "p", "gputopo.io/island: 'yes' is not required, preferred or ignore")

    assert parse_explanation(json.dumps(explanation_document(explanation)).encode()) == explanation
