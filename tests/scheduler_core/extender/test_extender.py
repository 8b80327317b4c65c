"""What kube-scheduler is answered."""

from __future__ import annotations

import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.extender.extender import FilterResult, NotReadyError
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Container, ContainerResources, Metadata, Pod, PodSpec
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, pod
from tests.scheduler_core.fake_scheduler import Stage, asking, preferring, seen

PAIRS = MACHINES["a100_bridged"]()  # islands of two and two
H100 = MACHINES["hgx_h100"]()
MALFORMED = "the pod's request is malformed: gputopo.io/island: 'please' is not required, preferred or ignore"


def test_nothing_is_answered_before_all_lists_were_shown() -> None:
    stage = Stage({"a": PAIRS})
    stage.nodes(complete=True)
    sentence = "gputopo has not yet listed all pods, nodegpus of the cluster"

    with pytest.raises(NotReadyError, match=f"^{sentence}$"):
        stage.ask(asking("p", 1))
    with pytest.raises(NotReadyError, match=f"^{sentence}$"):
        stage.extender.prioritize(asking("p", 1), {"a"})
    assert stage.records == []


def test_pod_without_gpus_passes_untouched() -> None:
    stage = Stage.set({"a": PAIRS})

    found = stage.ask(pod("cpu"), "a", "ghost")

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
def test_malformed_pod_is_refused_everywhere_with_its_own_words(asked: Pod, text: str) -> None:
    stage = Stage.set({"a": PAIRS})

    assert stage.ask(asked, "a", "ghost") == FilterResult((), {"a": text, "ghost": text})
    assert dict(stage.extender.prioritize(asked, {"a"})) == {"a": 0}


def test_where_one_node_passes_the_others_go_without_saying() -> None:
    stage = Stage.set({"a": PAIRS, "b": H100})

    assert stage.ask(asking("p", 8), "a", "b", "ghost") == FilterResult(("b",), {})


def test_where_none_passes_each_has_its_reason() -> None:
    stage = Stage.set({"a": PAIRS, "b": MACHINES["rtx4090"]()})

    assert stage.ask(asking("p", 4, island="required"), "a", "b", "ghost").rejected == {
        "a": Reason.ISLAND.value,
        "b": Reason.ISLAND.value,
        "ghost": Reason.UNKNOWN_NODE.value,
    }


def test_pod_with_preferences_of_its_own_is_answered_all_nodes() -> None:
    machines = {f"n{at}": PAIRS for at in range(5)}
    stage = Stage.set(machines, policy=Policy(shortlist=2))
    picky = preferring(asking("picky", 1))

    assert len(stage.ask(asking("p", 1)).nodes) == 2
    assert set(stage.ask(picky).nodes) == set(machines)


class TestPrioritize:
    """How well nodes suit."""

    def test_scores_are_those_that_filter_ranked_by(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": H100, "c": PAIRS}, seen("x", 3, "c"))
        asked = asking("p", 2)
        nodes = stage.ask(asked).nodes

        found = dict(stage.extender.prioritize(asked, {*nodes, "c", "ghost"}))

        (made,) = stage.records
        assert found == {
            "c": 0,
            "ghost": 0,
            **{name: score.rounded for name, score in zip(nodes, made.scores, strict=True)},
        }
        assert min(found[name] for name in nodes) > 0

    def test_what_is_assumed_of_the_pod_is_not_in_its_own_way(self) -> None:
        """An extender that is asked of a single node all the same."""
        stage = Stage.set({"a": PAIRS, "b": PAIRS})
        asked = asking("p", 4)
        before = dict(stage.extender.prioritize(asked, {"a", "b"}))
        stage.ask(asked, "a")

        assert dict(stage.extender.prioritize(asked, {"a", "ghost"})) == {"a": before["a"], "ghost": 0}
        assert dict(stage.extender.prioritize(asked, {"b"})) == {"b": before["b"]}
        assert dict(stage.extender.prioritize(asking("q", 4), {"a"})) == {"a": 0}

    def test_node_that_suits_no_more_scores_nothing(self) -> None:
        stage = Stage.set({"a": PAIRS})
        stage.ask(asking("p", 4))

        stage.pods(seen("other", 4, "a"))

        assert dict(stage.extender.prioritize(asking("p", 4), {"a"})) == {"a": 0}

    def test_nothing_is_assumed(self) -> None:
        stage = Stage.set({"a": PAIRS})

        stage.extender.prioritize(asking("p", 4, island="required"), {"a"})

        assert len(stage.knowledge.assumed_pods) == 0


class TestRecord:
    """What a decision was made from."""

    def test_it_holds_all_that_decided(self) -> None:
        stage = Stage.set({"a": PAIRS, "b": PAIRS})
        stage.ask(asking("plain", 1))
        table, doubtful = stage.knowledge.table, stage.knowledge.assumed_pods.on_several_nodes

        found = stage.ask(asking("p", 2, island="required"), "a", "b")

        made = stage.records[-1]
        assert (made.at, made.request.name, made.policy, made.names) == (NOW, "p", Policy(), {"a", "b"})
        assert (made.table, made.in_flight, made.answer) == (table, doubtful, found)
        assert [score.points > 0 for score in made.scores] == [True]
        assert all(seconds >= 0 for seconds in made.phases)

    def test_there_is_none_of_pods_that_are_not_ours(self) -> None:
        stage = Stage.set({"a": PAIRS})

        stage.ask(pod("cpu"))

        assert stage.records == []
