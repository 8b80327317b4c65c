"""Terms of required anti-affinity, by a label that they require."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.planner.gang.affinity_terms import TermIndex, selects, terms_of
from tests.scheduler_core.planner.packing.member_groups import random_pod


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
        assert {key for key, _ in index.candidates([pod])} >= selecting
    candidates = [key for key, _ in index.candidates(pods)]
    assert len(candidates) == len(set(candidates))
    assert {key for key, term in terms.items() if any(selects(key, term, pod) for pod in pods)} <= set(candidates)
