"""Members that required anti-affinity by host concerns, compared with a look at all pairs."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.planner.gang import anti_affinity_members
from scheduler_core.planner.gang.affinity_terms import selects, terms_of
from scheduler_core.planner.gang.anti_affinity_members import AntiAffinityMembers
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from scheduler_core.request.pod import Requirement
from tests.scheduler_core.planner.packing.member_groups import member, random_pod


def expected(pods: Iterable[Member]) -> set[str]:
    """Return the UIDs of the pods with a term, or that a term of any pod selects."""
    known = list(pods)
    terms = [term for pod in known for term in terms_of(pod)]
    return {pod.uid for pod in known if pod.anti_affinity or any(selects(key, term, pod) for key, term in terms)}


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_all_members_are_found_that_a_term_concerns(seed: int) -> None:
    random = Random(seed)
    pods: dict[str, Member] = {}
    found = AntiAffinityMembers(pods)
    for step in range(30):
        pod = random_pod(random, f"p{random.randint(0, 8)}")
        if pod.uid in pods:
            found.remove(pods.pop(pod.uid))
        if random.random() < 0.7:
            pods[pod.uid] = pod
            found.add(pod)
        if step % 3 == 0:
            known = {each.uid for each in found.concerned_members()}
            assert expected(pods.values()) <= known <= pods.keys()
            assert found.has_terms == any(each.anti_affinity for each in pods.values())


def test_members_that_no_term_ever_selected_are_left_out() -> None:
    pods: dict[str, Member] = {}
    found = AntiAffinityMembers(pods)
    term = PodAffinityTerm(HOSTNAME, LabelSelector({"app": "x"}))

    for each in (_labelled("plain", app="x"), _labelled("other", app="y"), _labelled("own", app="z", term=term)):
        pods[each.uid] = each
        found.add(each)
    assert [each.name for each in found.concerned_members()] == ["own", "plain"]

    found.remove(pods.pop("uid-own"))
    assert list(found.concerned_members()) == []


def test_a_member_that_too_many_terms_may_select_counts_as_selected() -> None:
    most = anti_affinity_members._MAX_COMPARED
    absent = [LabelSelector(None, (Requirement(f"key-{at}", "Exists"),)) for at in range(most + 1)]
    pods: dict[str, Member] = {}
    found = AntiAffinityMembers(pods)
    for at, selector in enumerate(absent):
        pods[f"uid-p{at}"] = each = _labelled(f"p{at}", term=PodAffinityTerm(HOSTNAME, selector))
        found.add(each)
        found.add(_labelled("plain"))
        assert ("plain" in {one.name for one in found.concerned_members()}) == (at == most)


def _labelled(name: str, term: PodAffinityTerm | None = None, **labels: str) -> Member:
    return member(name)._replace(labels=labels, anti_affinity=() if term is None else (term,))
