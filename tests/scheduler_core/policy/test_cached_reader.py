"""Pods with the same content are parsed once; different pods are never mixed up."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.labels.keys import POD_GANG, POD_GANG_SIZE
from gputopo.labels.workloads import JOB_INDEX, JOBSET, PART_OF, SCAVENGER
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, Strength

_GPUS = {"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "4"}}}
_MAIN = {"name": "main", "image": "registry.invalid/vllm-openai:1", "args": ["--model", "x"], **_GPUS}
# What may be in each place of a pod; the first is the usual.
_PARTS: dict[str, tuple[Any, ...]] = {
    "name": ("a", "b"),
    "namespace": ("team", "other"),
    "uid": ("uid-a", "uid-b"),
    "labels": (
        {},
        {"app": "x"},
        {"gpu-model": "A100"},
        {"gputopo.io/island": "required"},
        {"accelerator.sched.io/gpu-modle": "A100"},
        {JOBSET: "a"},
        {PART_OF: "llminferenceservice"},
    ),
    "annotations": (
        {},
        {"gputopo.io/island": "required"},
        {"gputopo.io/island": "perhaps"},
        {"gputopo.io/reservation": "pods-1"},
        {"gputopo.io/reservation": "pods-2", "gputopo.io/gang-rank": "1"},
        {"gputopo.io/gang-size": "0"},
        {"gputopo.io/gang-sizes": "2"},
    ),
    "ownerReferences": (
        None,
        [{"apiVersion": "batch/v1", "kind": "Job", "uid": "job-1", "controller": True}],
        [{"apiVersion": "batch/v1", "kind": "Job", "uid": "job-2", "controller": True}],
        [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "uid": "set", "controller": True}],
    ),
    "containers": (
        [_MAIN],
        [{**_MAIN, "image": "registry.invalid/other:1"}],
        [{**_MAIN, "command": ["torchrun", "train.py"]}],
        [{**_MAIN, "env": [{"name": "WORLD_SIZE", "value": "2"}]}],
        [{**_MAIN, "resources": {"limits": {"nvidia.com/gpu": "3"}}}],
        [{**_MAIN, "resources": {"limits": {"nvidia.com/gpu": "many"}}}],
        [{"name": "main"}],
    ),
    "initContainers": (None, [{"name": "first", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]),
    "resources": (None, {"limits": {"cpu": "4"}}),
    "schedulerName": (None, "gputopo-scheduler"),
    "priorityClassName": (None, SCAVENGER),
    "nodeName": (None, "node-1"),
    "affinity": (
        None,
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    ),
    "topologySpreadConstraints": (None, [{"whenUnsatisfiable": "ScheduleAnyway"}]),
}
_OF_METADATA = ("name", "namespace", "uid", "labels", "annotations", "ownerReferences")
_STRICT = Policies(
    (PolicyProfile(isolation=Strength.REQUIRED, match=ProfileMatch(namespaces=frozenset({"team"}))), PolicyProfile())
)


def _pod(**parts: Any) -> Pod:
    chosen = {place: parts.get(place, usual) for place, (usual, *_) in _PARTS.items()}
    metadata = {place: chosen.pop(place) for place in _OF_METADATA}
    return msgspec.convert({"metadata": metadata, "spec": chosen}, Pod)


@given(
    st.lists(st.fixed_dictionaries({place: st.sampled_from(values) for place, values in _PARTS.items()}), max_size=6)
)
def test_cached_requests_equal_parsed_requests(all_parts: list[dict[str, Any]]) -> None:
    pods = [_pod(**parts) for parts in all_parts]
    reader = MemoizedParser(lambda: _STRICT, most=3)

    assert [reader(each) for each in pods] == [_STRICT.parse_pod(each) for each in pods]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        pytest.param(place, value, id=f"{place} {at}")
        for place, (_, *others) in _PARTS.items()
        for at, value in enumerate(others)
    ],
)
def test_one_different_field_is_enough(place: str, value: object) -> None:
    reader, usual, other = MemoizedParser(lambda: _STRICT), _pod(), _pod(**{place: value})

    reader(usual)

    assert reader(other) == _STRICT.parse_pod(other)


@pytest.mark.parametrize("length", [1, 1_000, 1_900, 2_000, 20_000])
def test_contents_of_any_length_are_told_apart(length: int) -> None:
    reader = MemoizedParser(lambda: BUILT_IN)
    of_degree = [
        _pod(containers=[{**_MAIN, "env": [{"name": "A", "value": "x" * length}], "args": ["--tp", degree]}])
        for degree in "12"
    ]

    assert [reader(each) for each in of_degree * 2] == [BUILT_IN.parse_pod(each) for each in of_degree * 2]
    assert reader(of_degree[0]) != reader(of_degree[1])


def test_replicas_share_a_request_and_an_ungated_pod_keeps_it() -> None:
    reader = MemoizedParser(lambda: BUILT_IN)
    first = reader(_pod())
    again = reader(_pod(name="b", uid="uid-b", nodeName="node-1", annotations={"gputopo.io/reservation": "pods-1"}))

    assert isinstance(first, PodRequest)
    assert isinstance(again, PodRequest)
    assert again.profile is first.profile


def test_replicas_with_labels_and_annotations_of_their_own_share_a_request() -> None:
    reader = MemoizedParser(lambda: BUILT_IN)
    found = [
        reader(_pod(labels={"app": "x", JOB_INDEX: each}, annotations={JOB_INDEX: each, "cni.example/ip": each}))
        for each in ("0", "1")
    ]

    assert isinstance(found[0], PodRequest)
    assert isinstance(found[1], PodRequest)
    assert found[1].profile is found[0].profile


def test_requests_of_different_gangs_share_their_profile() -> None:
    reader = MemoizedParser(lambda: BUILT_IN)
    found = [
        reader(_pod(uid=f"uid-{gang}", annotations={POD_GANG.key: gang, POD_GANG_SIZE.key: "4"}))
        for gang in ("gang-1", "gang-2")
    ]

    assert isinstance(found[0], PodRequest)
    assert isinstance(found[1], PodRequest)
    assert found[1].profile is found[0].profile


def test_invalid_request_is_returned_each_time() -> None:
    reader, pod = MemoizedParser(lambda: BUILT_IN), _pod(annotations={"gputopo.io/island": "perhaps"})

    assert isinstance(reader(pod), InvalidRequest)
    assert reader(pod) is reader(pod)


def test_another_policy_clears_the_cache() -> None:
    in_force = [BUILT_IN]
    reader = MemoizedParser(lambda: in_force[0])
    reader(_pod())

    in_force[0] = _STRICT

    assert reader(_pod()) == _STRICT.parse_pod(_pod())
