"""Members that required anti-affinity by host concerns, compared with a look at all pairs."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.planner.gang import anti_affinity_members
from scheduler_core.planner.gang.affinity_terms import TermIndex, selects, terms_of
from scheduler_core.planner.gang.anti_affinity_members import AntiAffinityMembers
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from scheduler_core.request.pod import Requirement
from tests.scheduler_core.planner.packing.member_groups import member


def random_term(random: Random) -> PodAffinityTerm:
    labels = {key: random.choice("xy") for key in random.sample("abc", random.randint(0, 2))}
    expressions = (Requirement("a", "Exists"),) if random.random() < 0.3 else None
    selector = random.choice((LabelSelector(labels or None, expressions), LabelSelector(labels), None))
    namespaces, everywhere = random.choice((None, None, ("team", "else"))), random.random() < 0.2
    return PodAffinityTerm(HOSTNAME, selector, namespaces, LabelSelector() if everywhere else None)


def random_pod(random: Random, name: str) -> Member:
    labels = {key: random.choice("xy") for key in random.sample("abc", random.randint(0, 3))}
    terms = tuple(random_term(random) for _ in range(random.choice((0, 0, 1, 2))))
    return member(name)._replace(
        namespace=random.choice(("team", "else")),
        labels=None if random.random() < 0.1 else labels,
        anti_affinity=terms,
    )


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
            known = {each.uid for each in found.concerned()}
            assert expected(pods.values()) <= known <= pods.keys()
            assert found.has_terms == any(each.anti_affinity for each in pods.values())


def test_members_that_no_term_ever_selected_are_left_out() -> None:
    pods: dict[str, Member] = {}
    found = AntiAffinityMembers(pods)
    term = PodAffinityTerm(HOSTNAME, LabelSelector({"app": "x"}))

    for each in (_labelled("plain", app="x"), _labelled("other", app="y"), _labelled("own", app="z", term=term)):
        pods[each.uid] = each
        found.add(each)
    assert [each.name for each in found.concerned()] == ["own", "plain"]

    found.remove(pods.pop("uid-own"))
    assert list(found.concerned()) == []


def test_with_too_many_terms_without_a_required_label_all_members_count() -> None:
    most = anti_affinity_members._MAX_WITHOUT_LABEL
    pods: dict[str, Member] = {}
    found = AntiAffinityMembers(pods)
    for at in range(most + 2):
        term = PodAffinityTerm(HOSTNAME, LabelSelector(None, (Requirement(f"key-{at}", "Exists"),)))
        each = _labelled(f"p{at}", term=term if at else None)
        pods[each.uid] = each
        found.add(each)
        assert (each.uid in {one.uid for one in found.concerned()}) == bool(at)
    assert len(found.concerned()) == most + 2


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_an_index_finds_exactly_the_terms_that_select_a_pod(seed: int) -> None:
    random = Random(seed)
    pods = [random_pod(random, f"p{at}") for at in range(12)]
    terms = dict(term for pod in pods for term in terms_of(pod))
    gone = random.sample(list(terms), len(terms) // 3)
    index = TermIndex(terms.items())
    for key in gone:
        index.remove(key, terms.pop(key))

    assert bool(index) == bool(terms)
    for pod in pods:
        selecting = {key for key, term in terms.items() if selects(key, term, pod)}
        assert {key for key, _ in index.selecting(pod)} == selecting
        assert {key for key, _ in index.candidates(pod)} >= selecting


def _labelled(name: str, term: PodAffinityTerm | None = None, **labels: str) -> Member:
    return member(name)._replace(labels=labels, anti_affinity=() if term is None else (term,))
