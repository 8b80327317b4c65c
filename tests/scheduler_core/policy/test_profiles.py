"""Which pod gets which profile, and what owners require beyond what pods ask."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.model import Interconnect
from scheduler_core.cache.node_record import read_occupant
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN, Match, Personality, Placement, Policies, personality_of
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodRequest, Refused, Wish, Wishes
from tests.scheduler_core.builders import pod, profile, request


def _request(scheduler: str | None = None, namespace: str = "team", **wishes: str) -> PodRequest:
    return request(2, **wishes)._replace(scheduler=scheduler, namespace=namespace)


@pytest.mark.parametrize(
    ("match", "asked", "covers"),
    [
        pytest.param(Match(), _request(), True, id="all"),
        pytest.param(Match(frozenset({"s"})), _request("s"), True, id="that scheduler's"),
        pytest.param(Match(frozenset({"s"})), _request("t"), False, id="another's"),
        pytest.param(Match(frozenset({"s"})), _request(), False, id="nobody's"),
        pytest.param(Match(namespaces=frozenset({"team"})), _request(), True, id="namespace"),
        pytest.param(Match(namespaces=frozenset({"other"})), _request(), False, id="another namespace"),
        pytest.param(
            Match(personalities=frozenset({Personality.TRAINING})), _request(workload="training"), True, id="training"
        ),
        pytest.param(Match(personalities=frozenset({Personality.TRAINING})), _request(), False, id="not training"),
        pytest.param(Match(frozenset({"s"}), frozenset({"other"})), _request("s"), False, id="one of two"),
    ],
)
def test_match(match: Match, asked: PodRequest, covers: bool) -> None:
    assert match.covers(asked) is covers


@pytest.mark.parametrize(
    ("wishes", "scavenger", "personality"),
    [
        (Wishes(), False, Personality.DEFAULT),
        (profile(1, workload="batch").wishes, False, Personality.BATCH),
        (profile(1, workload="inference").wishes, False, Personality.INFERENCE),
        (profile(1, workload="training").wishes, True, Personality.SCAVENGER),
    ],
)
def test_personality(wishes: Wishes, scavenger: bool, personality: Personality) -> None:
    assert personality_of(profile(1)._replace(wishes=wishes, scavenger=scavenger)) is personality


def test_first_profile_that_matches_counts() -> None:
    named = [Placement(Policy(name=name), Match(frozenset(schedulers))) for name, schedulers in
             (("a", {"s"}), ("b", {"s", "t"}), ("c", set[str]()))]  # fmt: skip
    policies = Policies(tuple(named))

    assert [policies.placement(_request(each)).policy.name for each in ("s", "t", "u")] == ["a", "b", "c"]
    assert policies.common.name == "c"


def test_pod_that_cannot_be_understood_stays_so() -> None:
    assert isinstance(BUILT_IN.read(pod(annotations={"island": "?"})), Refused)


def test_built_in_reads_as_pods_say() -> None:
    asked = BUILT_IN.read(pod(gpus=2, annotations={"island": "required"}))

    assert isinstance(asked, PodRequest)
    assert asked.profile == profile(2, island="required")


_NVLINK, _NVSWITCH = Interconnect.NVLINK, Interconnect.NVSWITCH


@pytest.mark.parametrize(
    ("placement", "gpus", "said", "expected"),
    [
        pytest.param(Placement(interconnect=_NVLINK), 2, {}, Wishes(interconnect=_NVLINK), id="required topology"),
        pytest.param(Placement(interconnect=_NVLINK), 1, {}, Wishes(), id="one GPU is joined to nothing"),
        pytest.param(
            Placement(interconnect=_NVSWITCH),
            2,
            {"interconnect": "nvlink"},
            Wishes(interconnect=_NVSWITCH),
            id="the owner wants more than the pod",
        ),
        pytest.param(
            Placement(interconnect=_NVLINK),
            2,
            {"interconnect": "nvswitch"},
            Wishes(interconnect=_NVSWITCH),
            id="the pod wants more than the owner",
        ),
        pytest.param(Placement(isolation=Wish.PREFERRED), 1, {}, Wishes(isolation=Wish.PREFERRED), id="isolation"),
        pytest.param(
            Placement(isolation=Wish.PREFERRED), 1, {"isolation": "ignore"}, Wishes(isolation=Wish.IGNORE),
            id="the pod's own word",
        ),
        pytest.param(
            Placement(isolation=Wish.REQUIRED), 1, {"isolation": "ignore"}, Wishes(isolation=Wish.REQUIRED),
            id="which does not overrule the owner",
        ),
    ],
)  # fmt: skip
def test_what_the_owner_requires(placement: Placement, gpus: int, said: dict[str, str], expected: Wishes) -> None:
    found = Policies((placement,)).read(pod(gpus=gpus, annotations=said))

    assert isinstance(found, PodRequest)
    assert found.profile.wishes == expected


def test_pods_on_nodes_are_held_to_the_same() -> None:
    policies = Policies((Placement(interconnect=_NVLINK),))
    found = read_occupant(msgspec.structs.replace(pod(gpus=2), spec=pod(gpus=2).spec), policies.read)

    assert found is not None
    assert found.profile == profile(2, interconnect="nvlink")
    assert read_occupant(Pod(), policies.read) is None
