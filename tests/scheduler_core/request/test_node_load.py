"""Requests of pods besides devices, as kube-scheduler counts them."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.planner.commit.resource_fit import FitPod, requests_of
from scheduler_core.request.full_pod import FullPod
from scheduler_core.request.node_load import NodeLoad, allocatable_load, pod_load

_TEXTS = st.sampled_from(["0", "1", "100m", "2", "1500m", "1Gi", "0.5", "3e2", "nonsense", "-1", "1n", 4])
_AMOUNTS = st.dictionaries(st.sampled_from(["cpu", "memory", "ephemeral-storage", "example.com/nic"]), _TEXTS)
_RESOURCES = st.fixed_dictionaries({}, optional={"requests": _AMOUNTS, "limits": _AMOUNTS})
_CONTAINER = st.fixed_dictionaries({"resources": _RESOURCES})
_INIT = st.fixed_dictionaries({"resources": _RESOURCES, "restartPolicy": st.sampled_from([None, "Always"])})
_POD_RESOURCES = st.fixed_dictionaries(
    {"requests": st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "2", "100m"]))}
)
_SPEC = st.fixed_dictionaries(
    {"containers": st.lists(_CONTAINER, max_size=3), "initContainers": st.lists(_INIT, max_size=4)},
    optional={"overhead": _AMOUNTS, "resources": _POD_RESOURCES},
)


def load(**spec: Any) -> NodeLoad:
    return pod_load(msgspec.convert({"spec": spec}, FullPod))


@given(_SPEC)
def test_a_pod_counts_as_before_evictions(spec: dict[str, Any]) -> None:
    """Both follow kube-scheduler: one in integers, for every pod, the other for any resource."""
    fractions = defaultdict(Fraction, requests_of(msgspec.convert({"spec": spec}, FitPod)))

    found = load(**spec)

    assert abs(found.cpu_milli - 1000 * fractions["cpu"]) < 10  # each container is rounded up
    assert abs(found.memory - fractions["memory"]) < 10
    assert abs(found.storage - fractions["ephemeral-storage"]) < 10
    assert found.pods == 1


def test_a_pod_without_requests_counts_as_a_pod_alone() -> None:
    assert load(containers=[{}, {"resources": {"limits": {"nvidia.com/gpu": "8"}}}]) == NodeLoad(pods=1)


@pytest.mark.parametrize("text", ["9" * 18 + "E", "1e99", "9" * 400, "1" * 10_000])
def test_absurd_quantities_are_bounded(text: str) -> None:
    """A sum of them is more than any node has, and no long number."""
    many = [{"resources": {"requests": {"cpu": text, "memory": text}}}] * 1000

    found = load(containers=many, overhead={"cpu": text})

    assert max(found) <= 1 << 50
    assert min(found.cpu_milli, found.memory) in (0, 1 << 50)


def test_equal_requests_share_one_value() -> None:
    one = [{"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}]

    assert load(containers=one) is load(containers=one)


def test_allocatable_of_a_node() -> None:
    assert allocatable_load({"memory": "1Ki", "pods": "110", "cpu": "4"}) == (1024, None, 110)
    assert allocatable_load(None) == (None, None, None)
