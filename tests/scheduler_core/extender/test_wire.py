"""Requests of kube-scheduler are decoded, answers are encoded, and invalid requests are rejected with a reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.extender.wire import (
    ExtenderArgs,
    InvalidCallError,
    filter_error,
    filter_result,
    host_priorities,
    parse_extender_args,
)
from tests.scheduler_core.extender.traffic import POD, READ, RECORDED

NODES = {
    "metadata": {},
    "items": [{"metadata": {"name": "n1", "managedFields": []}, "status": {}}, {"metadata": {"name": "n2"}}],
}


def body(**changed: Any) -> bytes:
    """A call of Filter."""
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": ["n1", "n2"]} | changed).encode()


def test_names_are_what_node_cache_capable_sends() -> None:
    assert parse_extender_args(body()) == ExtenderArgs(READ, {"n1", "n2"})


def test_whole_nodes_are_what_comes_without_and_only_their_names_are_kept() -> None:
    assert parse_extender_args(body(Nodes=NODES, NodeNames=None)) == ExtenderArgs(
        READ, {"n1", "n2"}, cache_capable=False
    )


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param({"pod": POD, "nodes": None, "nodenames": ["n1", "n2"]}, id="lower case"),
        pytest.param({"pod": POD, "nodeNames": ["n1", "n2"]}, id="camel case, the other left out"),
        pytest.param({"Pod": POD, "NodeNames": ["n1", "n2"], "Later": {"a": 1}}, id="a key of a later version"),
    ],
)
def test_keys_are_read_in_either_case(sent: object) -> None:
    assert parse_extender_args(json.dumps(sent).encode()) == ExtenderArgs(READ, {"n1", "n2"})


def test_no_node_at_all_is_a_call() -> None:
    assert parse_extender_args(body(NodeNames=[])) == ExtenderArgs(READ, set())
    assert parse_extender_args(body(NodeNames=None, Nodes={"items": None})) == ExtenderArgs(
        READ, set(), cache_capable=False
    )


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        pytest.param(b"", "Input data was truncated", id="nothing"),
        pytest.param(b"hello", "JSON is malformed", id="no JSON"),
        pytest.param(b"[1, 2]", "Expected `object`, got `array`", id="another document"),
        pytest.param(b'{"kind": "Node"}', "Pod is missing", id="a Kubernetes object"),
        pytest.param(body(Pod=None), "Pod is missing", id="null"),
        pytest.param(body(Pod={"metadata": {"name": "a"}}), "the pod 'a' has no metadata.uid", id="no UID"),
        pytest.param(body(NodeNames=None), "NodeNames and Nodes are missing", id="no nodes"),
        pytest.param(body(NodeNames="n1"), "Expected `array | null`, got `str`", id="a name for names"),
        pytest.param(body(NodeNames=[1]), "Expected `str`, got `int` - at `$.NodeNames[0]`", id="a number for a name"),
        pytest.param(body(Nodes={"items": [{}]}, NodeNames=None), "missing required field `metadata`", id="no name"),
        pytest.param(b'{"Pod": "\xff"}', "", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "", id="deep"),
        pytest.param(b'{"Pod":' * 100_000, "", id="deep objects"),
    ],
)
def test_an_invalid_call_is_quoted_with_the_expected_form(sent: bytes, says: str) -> None:
    with pytest.raises(InvalidCallError) as refused:
        parse_extender_args(sent)

    assert says in str(refused.value)
    assert 'expected a call of kube-scheduler: {"Pod": {...}' in str(refused.value)
    assert str(refused.value).endswith(f"got {len(sent)} bytes: {sent[:80]!r}")


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["Pod", "pod", "NodeNames", "Nodes", "metadata", "spec", "uid", "items", "name"]), inner),  # noqa: E501
    max_leaves=12,
).map(lambda each: json.dumps(each).encode()))  # fmt: skip
def test_whatever_comes_is_a_call_or_refused(sent: bytes) -> None:
    try:
        found = parse_extender_args(sent)
    except InvalidCallError:
        return
    assert found.pod.metadata.uid


def test_an_answer_has_every_key_of_the_protocol() -> None:
    answer = json.loads(filter_result(["n1"], {"n2": "no"}))

    assert answer == {
        "Nodes": None,
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n2": "no"},
        "Error": "",
    }


def test_whole_nodes_are_answered_as_such_by_their_names() -> None:
    answer = json.loads(filter_result(["n1"], {}, cache_capable=False))

    assert (answer["Nodes"], answer["NodeNames"]) == ({"items": [{"metadata": {"name": "n1"}}]}, None)


def test_an_error_is_all_that_is_answered() -> None:
    assert filter_error("no") == b'{"Error":"no"}'


def test_priorities_are_a_bare_list() -> None:
    assert host_priorities([("n1", 10), ('n"2', 0)]) == b'[{"Host":"n1","Score":10},{"Host":"n\\"2","Score":0}]'


@pytest.mark.skipif(not RECORDED, reason="needs the recorded traffic of a kube-scheduler")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_calls_are_read(path: Path) -> None:
    call = json.loads(path.read_text())
    sent = call["body"]

    if call["request_line"].split()[1] not in ("/filter", "/prioritize"):
        with pytest.raises(InvalidCallError):
            parse_extender_args(json.dumps(sent).encode())
        return
    found = parse_extender_args(json.dumps(sent).encode())

    whole = [each["metadata"]["name"] for each in (sent["Nodes"] or {}).get("items", [])]
    assert found.names == set(sent["NodeNames"] or whole)
    assert found.cache_capable is (sent["Nodes"] is None)
    assert found.pod.metadata.uid == sent["Pod"]["metadata"]["uid"]


@pytest.mark.skipif(not RECORDED, reason="needs the recorded traffic of a kube-scheduler")
@pytest.mark.parametrize(
    "path", [each for each in RECORDED if each.stem.endswith("filter")], ids=lambda path: path.stem
)
def test_our_answers_have_the_keys_that_a_recorded_extender_was_understood_by(path: Path) -> None:
    call = json.loads(path.read_text())
    ours = json.loads(filter_result(["n1"], {}, cache_capable=call["body"]["Nodes"] is None))

    assert set(call["response"]) <= set(ours)
