"""The profile of each pod, and the constraints that profiles add."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.model import Interconnect
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.policy.file import parse_policy_file
from scheduler_core.policy.models import API_VERSION
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import (
    BUILT_IN,
    Policies,
    PolicyProfile,
    ProfileMatch,
)
from scheduler_core.policy.workload_class import WorkloadClass, workload_class_of
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import Constraints, InvalidRequest, PodRequest, Strength
from tests.scheduler_core.builders import pod, profile, request


def _request(scheduler: str | None = None, namespace: str = "team", **wishes: str) -> PodRequest:
    return request(2, **wishes)._replace(scheduler=scheduler, namespace=namespace)


@pytest.mark.parametrize(
    ("match", "asked", "covers"),
    [
        pytest.param(ProfileMatch(), _request(), True, id="all"),
        pytest.param(ProfileMatch(frozenset({"s"})), _request("s"), True, id="that scheduler's"),
        pytest.param(ProfileMatch(frozenset({"s"})), _request("t"), False, id="another's"),
        pytest.param(ProfileMatch(frozenset({"s"})), _request(), False, id="nobody's"),
        pytest.param(ProfileMatch(namespaces=frozenset({"team"})), _request(), True, id="namespace"),
        pytest.param(ProfileMatch(namespaces=frozenset({"other"})), _request(), False, id="another namespace"),
        pytest.param(
            ProfileMatch(workload_classes=frozenset({WorkloadClass.TRAINING})),
            _request(workload="training"),
            True,
            id="training",
        ),
        pytest.param(
            ProfileMatch(workload_classes=frozenset({WorkloadClass.TRAINING})), _request(), False, id="not training"
        ),
        pytest.param(ProfileMatch(frozenset({"s"}), frozenset({"other"})), _request("s"), False, id="one of two"),
    ],
)
def test_match(match: ProfileMatch, asked: PodRequest, covers: bool) -> None:
    assert match.matches_pod(asked) is covers


@pytest.mark.parametrize(
    ("wishes", "scavenger", "workload_class"),
    [
        (Constraints(), False, WorkloadClass.DEFAULT),
        (profile(1, workload="batch").constraints, False, WorkloadClass.BATCH),
        (profile(1, workload="inference").constraints, False, WorkloadClass.INFERENCE),
        (profile(1, workload="training").constraints, True, WorkloadClass.SCAVENGER),
    ],
)
def test_workload_class(wishes: Constraints, scavenger: bool, workload_class: WorkloadClass) -> None:
    assert workload_class_of(profile(1)._replace(constraints=wishes, scavenger=scavenger)) is workload_class


def test_first_matching_profile_is_used() -> None:
    named = [PolicyProfile(Policy(name=name), ProfileMatch(frozenset(schedulers))) for name, schedulers in
             (("a", {"s"}), ("b", {"s", "t"}), ("c", set[str]()))]  # fmt: skip
    policies = Policies(tuple(named))

    assert [policies.profile_for(_request(each)).policy.name for each in ("s", "t", "u")] == ["a", "b", "c"]
    assert policies.node_policy.name == "c"


def test_invalid_request_stays_invalid() -> None:
    assert isinstance(BUILT_IN.parse_pod(pod(annotations={"island": "?"})), InvalidRequest)


def test_built_in_policy_adds_no_constraints() -> None:
    asked = BUILT_IN.parse_pod(pod(gpus=2, annotations={"island": "required"}))

    assert isinstance(asked, PodRequest)
    assert asked.profile == profile(2, island="required")


_NVLINK, _NVSWITCH = Interconnect.NVLINK, Interconnect.NVSWITCH


@pytest.mark.parametrize(
    ("placement", "gpus", "said", "expected"),
    [
        pytest.param(
            PolicyProfile(interconnect=_NVLINK), 2, {}, Constraints(interconnect=_NVLINK), id="required topology"
        ),
        pytest.param(PolicyProfile(interconnect=_NVLINK), 1, {}, Constraints(), id="one GPU is joined to nothing"),
        pytest.param(
            PolicyProfile(interconnect=_NVSWITCH),
            2,
            {"interconnect": "nvlink"},
            Constraints(interconnect=_NVSWITCH),
            id="the owner wants more than the pod",
        ),
        pytest.param(
            PolicyProfile(interconnect=_NVLINK),
            2,
            {"interconnect": "nvswitch"},
            Constraints(interconnect=_NVSWITCH),
            id="the pod wants more than the owner",
        ),
        pytest.param(
            PolicyProfile(isolation=Strength.PREFERRED), 1, {}, Constraints(isolation=Strength.PREFERRED),
            id="isolation",
        ),
        pytest.param(
            PolicyProfile(isolation=Strength.PREFERRED), 1, {"isolation": "ignore"},
            Constraints(isolation=Strength.IGNORE),
            id="the pod's own word",
        ),
        pytest.param(
            PolicyProfile(isolation=Strength.REQUIRED), 1, {"isolation": "ignore"},
            Constraints(isolation=Strength.REQUIRED),
            id="which does not overrule the owner",
        ),
    ],
)  # fmt: skip
def test_constraints_of_the_profile(
    placement: PolicyProfile, gpus: int, said: dict[str, str], expected: Constraints
) -> None:
    found = Policies((placement,)).parse_pod(pod(gpus=gpus, annotations=said))

    assert isinstance(found, PodRequest)
    assert found.profile.constraints == expected


def test_pods_on_nodes_get_the_same_constraints() -> None:
    policies = Policies((PolicyProfile(interconnect=_NVLINK),))
    found = parse_occupant(msgspec.structs.replace(pod(gpus=2), spec=pod(gpus=2).spec), policies.parse_pod)

    assert found is not None
    assert found.profile == profile(2, interconnect="nvlink")
    assert parse_occupant(Pod(), policies.parse_pod) is None


@pytest.mark.parametrize(
    ("own", "needed_mib"), [({}, 40 * 1024), ({"min_vram": "20Gi"}, 40 * 1024), ({"min_vram": "80Gi"}, 80 * 1024)]
)
def test_a_pool_has_a_floor_of_gpu_memory_and_a_pod_may_require_more(own: dict[str, str], needed_mib: int) -> None:
    text = f"apiVersion: {API_VERSION}\nkind: PlacementPolicy\nprofiles: [{{name: big, match: {{}}, minVram: 40Gi}}]"
    policies = parse_policy_file(text, "p").policies
    annotations = {key.replace("_", "-"): value for key, value in own.items()}
    found = policies.parse_pod(pod("p", 1, annotations=annotations))

    assert isinstance(found, PodRequest)
    assert found.profile.constraints.min_vram_mib == needed_mib


@pytest.mark.parametrize(
    ("placement", "said", "notes"),
    [
        pytest.param({"min_vram_mib": 40960}, {}, ("minVram of the profile big: 40 GiB on each GPU",), id="memory"),
        pytest.param({"min_vram_mib": 40960}, {"min-vram": "80Gi"}, (), id="the pod requires more"),
        pytest.param(
            {"interconnect": _NVLINK}, {}, ("requiredTopologies of the profile big: nvlink or better",), id="links"
        ),
        pytest.param({"interconnect": _NVLINK}, {"interconnect": "nvlink"}, (), id="the pod's own"),
        pytest.param({"isolation": Strength.REQUIRED}, {}, ("isolation of the profile big: required",), id="isolation"),
        pytest.param({"isolation": Strength.REQUIRED}, {"isolation": "required"}, (), id="both"),
    ],
)
def test_a_constraint_that_only_the_policy_makes_is_noted(
    placement: dict[str, Any], said: dict[str, str], notes: tuple[str, ...]
) -> None:
    """`gputopo why pod` shows constraints by the annotations that state them: the pod has none of these."""
    policies = Policies((PolicyProfile(Policy(name="big"), **placement),))

    found = policies.parse_pod(pod(gpus=2, annotations=said))

    assert isinstance(found, PodRequest)
    assert found.detection == notes
