"""Placed pods that changed, and those that a term selects."""

from __future__ import annotations

import pytest

from scheduler_core.cache.full_pods import HOSTNAME
from scheduler_core.planner.gang.affinity_terms import TermKey
from scheduler_core.planner.gang.member import Member
from scheduler_core.planner.packing import placed_pods
from scheduler_core.planner.packing.placed_pods import ChangedPods, PlacedMember, PlacedPods
from scheduler_core.request.full_pod import LabelSelector, PodAffinityTerm
from tests.scheduler_core.planner.packing.member_groups import member, refusing


def _pod(name: str, *terms: PodAffinityTerm, **labels: str) -> Member:
    return member(name)._replace(labels=labels, anti_affinity=terms)


PLAIN, OTHER = _pod("plain", role="x"), _pod("other", role="y")
REFUSING = _pod("refusing", *refusing("x"), role="y")


@pytest.mark.parametrize(
    ("before", "after", "affected"),
    [
        pytest.param([], [("a", REFUSING)], "plain", id="a placed pod has a term that selects a waiting pod"),
        pytest.param([("a", REFUSING)], [], "plain", id="it has ended"),
        pytest.param([("a", REFUSING)], [("b", REFUSING)], "plain", id="it is on another node"),
        pytest.param([], [("a", PLAIN)], "refusing", id="a waiting pod has a term that selects the placed pod"),
        pytest.param([("a", PLAIN)], [("a", PLAIN._replace(labels={}))], "refusing", id="it had other labels"),
        pytest.param([], [("a", PLAIN._replace(labels=None))], "refusing", id="it has too many labels"),
        pytest.param([], [("a", OTHER)], "", id="no term selects it"),
        pytest.param([("a", PLAIN)], [("a", PLAIN._replace(phase="Running"))], "", id="nothing that matters changed"),
    ],
)
def test_changed_pods_affect_waiting_pods_that_may_not_share_a_node_with_them(
    before: list[tuple[str, Member]], after: list[tuple[str, Member]], affected: str
) -> None:
    was, now = ([PlacedMember(node, pod._replace(uid="placed")) for node, pod in placed] for placed in (before, after))
    changed = ChangedPods(was, now)

    assert [pod.name for pod in (PLAIN, OTHER, REFUSING) if changed.may_affect([pod])] == affected.split()


def test_a_changed_pod_with_too_many_labels_counts_beside_one_without_labels() -> None:
    many, none = PLAIN._replace(uid="many", labels=None), PLAIN._replace(uid="none", labels={})

    for placed in ([many, none], [none, many]):
        assert ChangedPods([], [PlacedMember("a", each) for each in placed]).may_affect([REFUSING])


def test_changed_pods_with_too_many_terms_to_compare_affect_all() -> None:
    pods = [_pod(f"p{at}", *refusing(f"{at}")) for at in map(chr, range(300, 500))]
    changed = ChangedPods([], [PlacedMember("a", each) for each in pods])

    assert not changed.may_affect([OTHER] * 100)
    assert changed.may_affect([OTHER] * 100)


def test_a_bounded_number_of_selected_pods_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed_pods, "_MAX_SELECTED", 7)
    placed = PlacedPods(PlacedMember(f"n{at}", _pod(f"p{at}", app="x")) for at in range(3))
    terms = [PodAffinityTerm(HOSTNAME, LabelSelector({"app": "x"}), ("team", str(at))) for at in range(3)]

    found = [placed.selected_by(TermKey("team", each.key), each) for each in terms]

    assert [each.without(()) for each in found] == [{"n0", "n1", "n2"}] * 3
    assert placed.selected_by(TermKey("team", terms[2].key), terms[2]) is found[2]
    assert placed.selected_by(TermKey("team", terms[0].key), terms[0]) is not found[0]
