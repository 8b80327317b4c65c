"""The extender's answers to kube-scheduler."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from gputopo.labels.reasons import Reason
from gputopo.model import NodeTopology
from scheduler_core.evaluation import evaluate
from scheduler_core.evaluation.ranking import NodeRanking
from scheduler_core.extender import extender
from scheduler_core.extender.extender import EvaluationLimits, Extender, NotReadyError
from scheduler_core.extender.node_choice import FilterResult
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Container, ContainerResources, Metadata, Pod, PodSpec
from tests.machines import MACHINES
from tests.scheduler_core.allocation.machines16 import MACHINES16
from tests.scheduler_core.builders import NOW, pod
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod, with_soft_preference

PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
H100 = MACHINES["hgx_h100"]()
POLICY = Policy()
MALFORMED = "the pod's request is malformed: gputopo.io/island: 'please' is not required, preferred or ignore"


def test_nothing_is_answered_before_all_lists_were_shown() -> None:
    stage = FakeScheduler({"a": PAIRS})
    stage.watch_nodes(complete=True)
    sentence = "gputopo has not yet listed all pods, nodegpus of the cluster"

    with pytest.raises(NotReadyError, match=f"^{sentence}$"):
        stage.filter(unbound_pod("p", 1))
    with pytest.raises(NotReadyError, match=f"^{sentence}$"):
        stage.extender.prioritize(unbound_pod("p", 1), {"a"})
    assert stage.records == []


def test_pod_without_gpus_passes_untouched() -> None:
    stage = FakeScheduler.synced({"a": PAIRS})

    found = stage.filter(pod("cpu"), "a", "ghost")

    assert (set(found.nodes), found.rejected, found.single) == ({"a", "ghost"}, {}, False)
    assert dict(stage.extender.prioritize(pod("cpu"), {"a", "ghost"})) == {"a": 0, "ghost": 0}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        pytest.param(pod("p", 1, annotations={"island": "please"}), MALFORMED, id="a wish"),
        pytest.param(
            Pod(
                Metadata("p", "team", "uid-p"),
                PodSpec(containers=(Container("c", ContainerResources(limits={"nvidia.com/gpu": "some"})),)),
            ),
            "the pod's request is malformed: nvidia.com/gpu: 'some' is not a number of devices",
            id="a number",
        ),
    ],
)
def test_a_malformed_pod_is_refused_everywhere_with_its_own_message(asked: Pod, text: str) -> None:
    stage = FakeScheduler.synced({"a": PAIRS})

    assert stage.filter(asked, "a", "ghost") == FilterResult((), {"a": text, "ghost": text})
    assert dict(stage.extender.prioritize(asked, {"a"})) == {"a": 0}


def test_if_one_node_passes_the_others_are_not_listed() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": H100})

    assert stage.filter(unbound_pod("p", 8), "a", "b", "ghost") == FilterResult(("b",), {})


def test_where_none_passes_each_has_its_reason() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": MACHINES["rtx4090"]()})

    assert stage.filter(unbound_pod("p", 4, island="required"), "a", "b", "ghost").rejected == {
        "a": Reason.ISLAND.value,
        "b": Reason.ISLAND.value,
        "ghost": Reason.UNKNOWN_NODE.value,
    }


def test_pod_with_preferences_of_its_own_is_answered_all_nodes() -> None:
    machines = {f"n{at}": PAIRS for at in range(5)}
    stage = FakeScheduler.synced(machines, policy=Policy(shortlist=2))
    picky = with_soft_preference(unbound_pod("picky", 1))

    assert len(stage.filter(unbound_pod("p", 1)).nodes) == 2
    assert set(stage.filter(picky).nodes) == set(machines)


class TestDeletedPods:
    """Filter and the pod watch in any order: kube-scheduler has a watch of its own, and may be behind."""

    @pytest.mark.parametrize("shown", [True, False], ids=["shown before", "created and deleted at once"])
    def test_a_pod_that_was_deleted_before_filter_is_not_assumed(self, *, shown: bool) -> None:
        stage = FakeScheduler.synced({"a": PAIRS})
        if shown:
            stage.watch_pods(pod_update("flash", 4))
        stage.watch_pods(gone=["uid-flash"])

        assert stage.filter(unbound_pod("flash", 4)).nodes == ("a",)
        assert list(stage.cache.assumed_pods) == []
        assert stage.filter(unbound_pod("next", 4)).nodes == ("a",)

    def test_a_pod_that_was_deleted_after_filter_is_assumed_no_more(self) -> None:
        """Also where the watch shows its creation and its deletion at once."""
        stage = FakeScheduler.synced({"a": PAIRS})
        stage.filter(unbound_pod("flash", 4))

        stage.watch_pods(gone=["uid-flash"])

        assert stage.filter(unbound_pod("next", 4)).nodes == ("a",)

    def test_a_list_after_a_gap_deletes_pods_too(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS}, pod_update("flash", 4))
        stage.watch_pods(complete=True)

        stage.filter(unbound_pod("flash", 4))

        assert list(stage.cache.assumed_pods) == []

    def test_a_pod_that_the_watch_shows_again_is_assumed(self) -> None:
        """An API server whose list was old."""
        stage = FakeScheduler.synced({"a": PAIRS}, pod_update("p", 4))
        stage.watch_pods(complete=True)
        stage.watch_pods(pod_update("p", 4))

        stage.filter(unbound_pod("p", 4))

        assert [each.pod.uid for each in stage.cache.assumed_pods] == ["uid-p"]


class TestPrioritize:
    """The scores of nodes."""

    def test_scores_are_those_that_filter_ranked_by(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": H100, "c": PAIRS}, pod_update("x", 3, "c"))
        asked = unbound_pod("p", 2)
        nodes = stage.filter(asked).nodes

        found = dict(stage.extender.prioritize(asked, {*nodes, "c", "ghost"}))

        (made,) = stage.records
        assert found == {
            "c": 0,
            "ghost": 0,
            **{name: score.rounded for name, score in zip(nodes, made.scores, strict=True)},
        }
        assert min(found[name] for name in nodes) > 0

    def test_an_assumed_pod_does_not_block_itself(self) -> None:
        """An extender that is asked of a single node all the same."""
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        asked = unbound_pod("p", 4)
        before = dict(stage.extender.prioritize(asked, {"a", "b"}))
        stage.filter(asked, "a")

        assert dict(stage.extender.prioritize(asked, {"a", "ghost"})) == {"a": before["a"], "ghost": 0}
        assert dict(stage.extender.prioritize(asked, {"b"})) == {"b": before["b"]}
        assert dict(stage.extender.prioritize(unbound_pod("q", 4), {"a"})) == {"a": 0}

    def test_node_that_suits_no_more_scores_nothing(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS})
        stage.filter(unbound_pod("p", 4))

        stage.watch_pods(pod_update("other", 4, "a"))

        assert dict(stage.extender.prioritize(unbound_pod("p", 4), {"a"})) == {"a": 0}

    def test_nothing_is_assumed(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS})

        stage.extender.prioritize(unbound_pod("p", 4, island="required"), {"a"})

        assert len(stage.cache.assumed_pods) == 0


class TestRecord:
    """The record of a decision holds all of its input."""

    def test_it_holds_all_that_decided(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS})
        stage.filter(unbound_pod("plain", 1))
        table, doubtful = stage.cache.snapshot, stage.cache.assumed_pods.on_several_nodes

        found = stage.filter(unbound_pod("p", 2, island="required"), "a", "b")

        made = stage.records[-1]
        assert (made.at, made.request.name, made.policy, made.names) == (NOW, "p", Policy(), {"a", "b"})
        assert (made.table, made.in_flight, made.answer) == (table, doubtful, found)
        assert [score.points > 0 for score in made.scores] == [True]
        assert all(seconds >= 0 for seconds in made.phases)

    def test_there_is_none_of_pods_that_are_not_ours(self) -> None:
        stage = FakeScheduler.synced({"a": PAIRS})

        stage.filter(pod("cpu"))

        assert stage.records == []


class TestTimeLimit:
    """Checks with in-flight pods end after the time in which one call may evaluate."""

    IN_FLIGHT = with_soft_preference(unbound_pod("in-flight", 1))
    ASKED = unbound_pod("asked", 2, island="required")

    def stage(self, limits: EvaluationLimits, policy: Policy = POLICY, **machines: NodeTopology) -> FakeScheduler:
        stage = FakeScheduler.synced(machines or {"a": PAIRS, "b": PAIRS})
        stage.extender = Extender(stage.cache, policy, lambda: stage.now, stage.records.append, limits)
        return stage

    def test_without_time_no_node_is_checked_and_the_pod_is_tried_again(self) -> None:
        stage = self.stage(EvaluationLimits(enough_s=10.0, most_s=0.0))
        stage.extender.evaluate_ahead(10.0)
        assert len(stage.filter(self.IN_FLIGHT, "a", "b").nodes) == 2
        while stage.extender.evaluate_ahead(10.0):
            pass

        found = stage.filter(self.ASKED, "a", "b")

        assert (found.nodes, found.may_fit_soon, found.unfinished) == ((), True, True)
        assert found.unchecked == {"a", "b"}
        assert dict(found.rejected) == {}
        assert stage.records[-1].considered == set()

    def test_with_time_a_node_is_found(self) -> None:
        stage = self.stage(EvaluationLimits(enough_s=10.0, most_s=10.0))
        stage.filter(self.IN_FLIGHT, "a", "b")

        found = stage.filter(self.ASKED, "a", "b")

        assert (len(found.nodes), found.unchecked, found.unfinished) == (1, frozenset(), False)

    @pytest.mark.parametrize(
        ("most_s", "min_evaluations", "suitable"),
        [
            pytest.param(10.0, 1, 1, id="one"),
            pytest.param(10.0, 2, 2, id="two"),
            pytest.param(0.0, 2, 0, id="the time of the call has ended"),
        ],
    )
    def test_the_first_evaluations_are_done_although_a_node_fits(
        self, most_s: float, min_evaluations: int, suitable: int
    ) -> None:
        policy = Policy(shortlist=40 + min_evaluations + int(most_s))  # no test has evaluated nodes with it
        stage = self.stage(EvaluationLimits(0.0, most_s, min_evaluations), policy, a=PAIRS, b=H100)

        stage.filter(unbound_pod("asked", 1), "a", "b")

        assert stage.records[-1].suitable == suitable

    def test_nodes_are_evaluated_and_checked_for_a_while_although_the_time_of_the_call_has_ended(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]
        monkeypatch.setattr(extender, "thread_time", lambda: now[0])
        call_time = extender._CallTime(EvaluationLimits(0.005, 0.015, 1))
        admit = partial(call_time.request_evaluation, cast("NodeRanking", SimpleNamespace(accepts_some=False)))
        now[0] = 1.0
        assert admit()
        now[0] = 1.004
        assert admit()
        may_check = call_time.check_limit()
        now[0] = 1.006
        assert (admit(), may_check()) == (False, True)
        now[0] = 1.012
        assert not may_check()

    def test_a_long_evaluation_waits_only_while_another_named_node_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evaluate, "_MANY_SETS", 0)
        stage = self.stage(EvaluationLimits(10.0, 10.0), large=MACHINES16["dgx2"](), small=PAIRS)
        either = stage.filter(unbound_pod("first", 1), "small", "large")
        large = stage.filter(unbound_pod("second", 1), "large")

        assert (either.nodes, large.nodes) == (("small",), ("large",))
