"""Required anti-affinity by host, in both directions."""

from __future__ import annotations

import time
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.planner.gang.affinity_terms import selects, terms_of
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing.anti_affinity import AntiAffinities, are_conflicting, conflicting_pairs
from scheduler_core.planner.packing.placed_pods import PlacedMember, PlacedPods
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from scheduler_core.request.pod import Requirement
from tests.scheduler_core.planner.packing.member_groups import crew, member, random_pod, refusing

SELF = LabelSelector({"app": "llm"})


def _pod(name: str, *terms: PodAffinityTerm, namespace: str = "team", **labels: str) -> Member:
    return member(name)._replace(namespace=namespace, labels=labels, anti_affinity=terms)


def _refuses(term: PodAffinityTerm, other: Member) -> bool:
    """Return whether a pod of namespace team with this term conflicts with the other; both directions agree."""
    one = _pod("one", term)
    sides = AntiAffinities([one, other], ())
    found = {
        are_conflicting(sides.anti_affinity_of(one), sides.anti_affinity_of(other)),
        are_conflicting(sides.anti_affinity_of(other), sides.anti_affinity_of(one)),
    }
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        pytest.param(SELF, True, id="a label"),
        pytest.param(LabelSelector({"app": "llm", "row": "1"}), False, id="two labels, of which it has one"),
        pytest.param(LabelSelector(None, (Requirement("app", "In", ("a", "llm")),)), True, id="in"),
        pytest.param(LabelSelector(None, (Requirement("app", "NotIn", ("llm",)),)), False, id="not in"),
        pytest.param(LabelSelector(None, (Requirement("row", "NotIn", ("1",)),)), True, id="not in, label absent"),
        pytest.param(LabelSelector(None, (Requirement("app", "Exists"),)), True, id="exists"),
        pytest.param(LabelSelector({"app": "llm"}, (Requirement("app", "DoesNotExist"),)), False, id="does not exist"),
        pytest.param(LabelSelector(), True, id="empty selector: all"),
        pytest.param(None, False, id="no selector: none"),
    ],
)
def test_labels_select_pods(selector: LabelSelector | None, expected: bool) -> None:
    assert _refuses(PodAffinityTerm(HOSTNAME, selector), _pod("other", app="llm")) is expected


@pytest.mark.parametrize("namespace", ["team", "other"])
def test_a_term_selects_a_placed_pod_with_too_many_labels_in_its_namespaces(namespace: str) -> None:
    """Otherwise plans would put pods beside it, and kube-scheduler would refuse these plans."""
    one = _pod("one", PodAffinityTerm(HOSTNAME, SELF))
    sides = AntiAffinities([one], [PlacedMember("a", _pod("large", namespace=namespace)._replace(labels=None))])

    assert sides.excluded_nodes(sides.anti_affinity_of(one)) == ({"a"} if namespace == "team" else frozenset())


@pytest.mark.parametrize(
    ("term", "own", "others"),
    [
        pytest.param(PodAffinityTerm(HOSTNAME, SELF), True, False, id="own namespace by default"),
        pytest.param(PodAffinityTerm(HOSTNAME, SELF, ("else",)), False, True, id="listed namespaces"),
        pytest.param(PodAffinityTerm(HOSTNAME, SELF, None, LabelSelector()), True, True, id="all"),
    ],
)
def test_namespaces_of_a_term(term: PodAffinityTerm, own: bool, others: bool) -> None:
    assert _refuses(term, _pod("other", app="llm")) is own
    assert _refuses(term, _pod("other", namespace="else", app="llm")) is others


def test_conflicting_kinds_are_pairs_of_indices() -> None:
    own, plain, shy = _pod("a", PodAffinityTerm(HOSTNAME, SELF), app="llm"), _pod("b", app="llm"), _pod("c")
    sides = AntiAffinities([own, plain, shy], ())

    assert conflicting_pairs(
        [sides.anti_affinity_of(plain), sides.anti_affinity_of(shy), sides.anti_affinity_of(own)]
    ) == {(0, 2), (2, 2)}


def test_nodes_are_excluded_by_other_placed_pods_only() -> None:
    pods = [_pod(name, PodAffinityTerm(HOSTNAME, SELF), app="llm") for name in "abc"]
    sides = AntiAffinities(
        pods[:2], (PlacedMember("n0", pods[0]), PlacedMember("n2", pods[2]), PlacedMember("n3", _pod("d")))
    )
    sides.add_placed("n1", sides.anti_affinity_of(pods[0]))
    sides.add_placed("n4", sides.anti_affinity_of(_pod("e")))

    assert sides.excluded_nodes(sides.anti_affinity_of(pods[1])) == {"n1", "n2"}
    assert sides.excluded_nodes(sides.anti_affinity_of(_pod("e"))) == frozenset()


def test_thousands_of_terms_are_numbered_in_proportion_to_their_number() -> None:
    """The planner plans no other gang meanwhile."""
    terms = [PodAffinityTerm(HOSTNAME, LabelSelector({f"key-{number}": "v"})) for number in range(24_000)]
    pods = [_pod(f"w-{at}", *terms[at:]) for at in range(4)]
    before = time.process_time()

    assert AntiAffinities(pods, ()).anti_affinity_of(pods[3]).rejects == frozenset(range(3, 256))  # as many as count
    assert time.process_time() - before < 30.0  # about 0.3 s; what is quadratic takes minutes


def _other(name: str, namespace: str, *terms: PodAffinityTerm) -> PlacedMember:
    return PlacedMember(f"on-{name}", member(name)._replace(namespace=namespace, anti_affinity=terms))


def test_terms_of_many_placed_pods_cost_a_plan_little() -> None:
    """Pods without GPUs cost their owner nothing, and may refuse the pods of all namespaces."""
    looked_up = count()

    class CountedLabels(dict[str, str]):
        def get(self, key: str, default: Any = None) -> Any:
            next(looked_up)
            return super().get(key, default)

    def absent(number: int) -> PodAffinityTerm:
        expressions = (Requirement(f"key-{number}", "Exists"),)
        return PodAffinityTerm(HOSTNAME, LabelSelector(None, expressions), namespace_selector=LabelSelector())

    hostile = [_other(f"x{at}", "tenant", *(absent(50 * at + number) for number in range(50))) for at in range(60)]
    hostile = [each._replace(member=each.member._replace(labels=CountedLabels(a="b"))) for each in hostile]
    own = [each._replace(labels=CountedLabels(role="a")) for each in crew(4, refuses="b")]

    found = AntiAffinities(own, (*hostile, _other("y", "team", *refusing("a"))))
    related = [found.anti_affinity_of(each) for each in own]

    assert {found.excluded_nodes(each) for each in related} == {frozenset({"on-y"})}
    assert next(looked_up) < 2_000  # of 60 x 3,000 and more


def test_terms_that_select_none_of_the_waiting_pods_do_not_count_towards_the_limit() -> None:
    others = [_other(f"x{at}", "team", *refusing(f"job-{at}")) for at in range(300)]

    found = AntiAffinities(crew(1, role="a"), (*others, _other("y", "team", *refusing("a"))))

    assert found.excluded_nodes(found.anti_affinity_of(crew(1, role="a")[0])) == frozenset({"on-y"})


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_nodes_are_excluded_that_have_a_pod_in_conflict(seed: int) -> None:
    random = Random(seed)
    waiting = [random_pod(random, f"w{at}") for at in range(4)]
    placed = [PlacedMember(f"n{at}", random_pod(random, f"p{at}")) for at in range(8)]
    placed += [PlacedMember("n9", each) for each in random.sample(waiting, random.randint(0, 1))]
    found = AntiAffinities(waiting, random.choice((placed, PlacedPods(placed))))

    for pod in waiting:
        others = [each for each in placed if each.member not in waiting]
        refused = {node for node, other in others if _may_not_share(pod, other) or _may_not_share(other, pod)}
        assert found.excluded_nodes(found.anti_affinity_of(pod)) == refused


def _may_not_share(one: Member, other: Member) -> bool:
    return any(selects(key, term, other) for key, term in terms_of(one))
