"""Pods of one owner, and profiles of a policy file, with calls of kube-scheduler one after the other."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler_core.cache.events import PodUpdate
from scheduler_core.cache.owner_pods import siblings_in, with_owner
from scheduler_core.cache.sibling_proximity import with_near_siblings
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.evaluation.score import Score
from scheduler_core.explain import explain
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import Policies, PolicyProfile, ProfileMatch
from scheduler_core.request.pod import Pod, PodOwner
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, owned_by, request
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod

PAIRS, H100 = MACHINES["a100_bridged"](), MACHINES["hgx_h100"]()
OF_OWNER = request()._replace(owner="uid-o")
ALL = Policy(tolerance=10.0)  # also answers nodes below the best


def _replica(name: str, gpus: int = 1, workload: str = "inference", **wishes: str) -> Pod:
    asked = unbound_pod(name, gpus, workload=workload, **wishes)
    owner = PodOwner("apps/v1", "ReplicaSet", "uid-o", controller=True)
    return msgspec.structs.replace(asked, metadata=msgspec.structs.replace(asked.metadata, owner_references=(owner,)))


def _placed(name: str, on: str | None, owner: str = "uid-o", gpus: int = 1) -> PodUpdate:
    found = pod_update(name, gpus, on, workload="inference")
    return found._replace(occupant=owned_by(found.occupant, owner))


def test_replicas_go_to_nodes_without_a_replica() -> None:
    stage = FakeScheduler.synced(
        {"a": PAIRS, "b": PAIRS}, _placed("one", "a"), _placed("other", "b", "uid-x"), policy=ALL
    )

    assert stage.filter(_replica("two")).nodes == ("b", "a")
    assert dict(stage.extender.prioritize(_replica("two"), {"a", "b"}))["b"] >= 7
    assert stage.records[-1].scores[0].points > stage.records[-1].scores[1].points


def test_assumed_replica_counts_too() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, _placed("one", None), _placed("two", None))
    (first,) = stage.filter(_replica("one", vram="10Gi")).nodes

    (second,) = stage.filter(_replica("two", vram="10Gi")).nodes

    assert {first, second} == {"a", "b"}


def test_ended_and_in_flight_replicas_do_not_count() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, _placed("one", "a"), _placed("two", None), policy=ALL)
    stage.filter(_replica("two"))
    assert [each.node for each in stage.cache.placed_siblings_of(OF_OWNER)] == ["a"]

    stage.watch_pods(gone=["uid-one"])
    assert stage.cache.placed_siblings_of(OF_OWNER) == []
    stage.watch_pods(gone=["uid-two"])
    assert stage.cache.placed_siblings_of(OF_OWNER) == stage.cache.placed_siblings_of(request()) == []


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(("mine", "other")), max_size=6),
    st.sampled_from(("inference", "training", "batch")),
    st.integers(1, 2),
)
def test_results_equal_evaluation_and_can_be_replayed(there: Mapping[str, str], workload: str, gpus: int) -> None:
    machines = {name: H100 if name in "ab" else PAIRS for name in "abcdef"}
    owners = {"mine": "uid-o", "other": "uid-x"}
    stage = FakeScheduler.synced(
        machines, *(_placed(f"p-{name}", name, owners[owner]) for name, owner in there.items())
    )

    table = stage.cache.snapshot
    answer = stage.filter(_replica("new", gpus, workload))

    (record,) = stage.records
    asked = record.request._replace(profile=record.request.profile._replace(sibling_hardware=None, near_siblings=False))
    siblings = siblings_in(table, asked)
    found, as_seen = with_owner(asked, siblings, table)
    found, as_seen, _ = with_near_siblings(found, siblings, as_seen, stage.cache.domains)
    assert found == record.request
    assert answer.nodes == evaluate(found, as_seen, sorted(machines), Policy()).nodes
    assert list(replay_differences(parse_decision(encode_decision(record)))) == []
    result = dict(stage.extender.prioritize(_replica("new", gpus, workload), set(machines)))
    assert result[answer.nodes[0]] == max(result.values())


def test_node_with_a_replica_is_rejected_with_its_own_reason() -> None:
    stage = FakeScheduler.synced({"a": PAIRS}, _placed("one", "a", gpus=4))

    found = stage.filter(_replica("two"))

    assert (found.nodes, list(found.rejected)) == ((), ["a"])


@pytest.mark.parametrize(("scheduler", "best"), [("cheap", "a"), ("fast", "b")])
def test_same_pod_under_two_names_of_one_scheduler(scheduler: str, best: str) -> None:
    """A bridged A100 pair that fills up, or the NVSwitch machine."""
    stage = FakeScheduler.synced({"a": PAIRS, "b": H100})
    fast = Policy(weights=Policy().weights._replace(bandwidth=100.0), name="fast")
    cheap = Policy(weights=Policy().weights._replace(bandwidth=0.0), name="cheap")
    stage.extender.policies = Policies(
        (
            PolicyProfile(fast, ProfileMatch(frozenset({"fast"}))),
            PolicyProfile(cheap, ProfileMatch(frozenset({"cheap"}))),
            PolicyProfile(),
        )
    )
    asked = unbound_pod("p", 2)
    spec = msgspec.structs.replace(asked.spec, scheduler_name=scheduler)

    assert stage.filter(msgspec.structs.replace(asked, spec=spec)).nodes[0] == best
    assert stage.records[-1].policy.name == scheduler


def test_cache_follows_another_staleness_limit() -> None:
    """The reports are 400 seconds old."""
    stage = FakeScheduler.synced({"a": PAIRS})
    assert not stage.state_of("a").stale

    stage.cache.set_policy(Policy(stale_after_s=300.0))
    assert stage.state_of("a").stale

    stage.cache.set_policy(Policy(stale_after_s=500.0))
    assert not stage.state_of("a").stale
    stage.now = NOW + 200
    stage.cache.advance_time(stage.now)
    assert stage.state_of("a").stale


def test_scores_of_filter_equal_those_of_the_pod() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, _placed("one", "a"), policy=ALL)
    stage.filter(_replica("two"))

    assert all(isinstance(each, Score) for each in stage.records[-1].scores)
    spread = [{part.factor: part.raw for part in each.parts}["spread"] for each in stage.records[-1].scores]
    assert spread == [1.0, 0.5]


def test_explanation_has_the_rule_and_the_other_replicas() -> None:
    stage = FakeScheduler.synced({"a": PAIRS, "b": PAIRS}, _placed("one", "a"))
    stage.filter(_replica("two"))
    request = stage.records[-1].request._replace(detection=("triton: it runs NVIDIA Triton",))

    result = explain(request, stage.cache.snapshot, None, Policy(), NOW)

    assert [each.node for each in result.best] == ["b", "a"]
    assert result.notes[-1] == "the rule triton applies: it runs NVIDIA Triton (gputopo policy show)"
