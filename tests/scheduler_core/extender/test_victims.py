"""kube-scheduler's preemption: nodes are kept only where the pod fits once the victims are gone."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gputopo.crd.reservations import EntryPhase
from gputopo.labels.reasons import Reason
from scheduler_core.extender.decision_lines import preemption_fields
from scheduler_core.extender.decision_log import DecisionLog
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.extender.metrics import ExtenderMetrics
from scheduler_core.extender.victims import DropCause, NodeVictims, PreemptionResult
from scheduler_core.extender.wire import (
    InvalidCallError,
    PreemptionArgs,
    parse_preemption_args,
    preemption_result,
)
from scheduler_core.request.pod import Metadata, placed_gang
from scheduler_core.simulation.assumed_machines import islands
from tests.scheduler_core.extender.traffic import POD, READ, RECORDED
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import plan
from tests.scheduler_core.runtime.served import Passing, app_of, serving

MESH = islands("A100", (4, 4))
HELD = {"low-0": (0, 1), "low-1": (4, 5), "low-2": (2, 3), "low-3": (6, 7)}  # one pair of each island in turn


def full(*, gang: str | None = None) -> FakeScheduler:
    """A node with four pods of two GPUs."""
    pods = [pod_update(name, 2, "a", admitted=True)._replace(gang=gang) for name in HELD]
    stage = FakeScheduler.synced_with_reservations({"a": MESH}, *pods)
    stage.watch_reports({"a": HELD})
    return stage


def offered(*names: str) -> NodeVictims:
    """Victims by their names."""
    return NodeVictims(tuple(f"uid-{name}" for name in names), 1)


def urgent(gpus: int = 4, **wishes: str) -> Any:
    """The pod that preempts."""
    return unbound_pod("urgent", gpus, **wishes)


def test_victims_of_one_island_are_kept_as_they_are_and_victims_of_two_are_not() -> None:
    stage, pod = full(), urgent(island="required")

    assert stage.extender.preempt(pod, {"a": offered("low-0", "low-2")}).kept == {"a": offered("low-0", "low-2")}
    assert stage.extender.preempt(pod, {"a": offered("low-2", "low-3")}) == PreemptionResult(
        {}, {}, {"a": Reason.ISLAND.value}
    )
    assert len(stage.cache.assumed_pods) == 0  # nothing is promised: kube-scheduler has not chosen yet


def test_a_kept_node_passes_filter_once_the_victims_are_gone_reported_or_not() -> None:
    stage, pod = full(), urgent(island="required")
    assert stage.extender.preempt(pod, {"a": offered("low-0", "low-2")}).kept

    stage.watch_pods(gone=("uid-low-0", "uid-low-2"))
    assert stage.filter(pod).nodes == ("a",)
    stage.watch_reports({"a": {name: HELD[name] for name in ("low-1", "low-3")}})
    assert stage.filter(pod).nodes == ("a",)


def test_a_pod_without_a_shape_keeps_what_leaves_enough() -> None:
    stage = full()

    assert stage.extender.preempt(urgent(), {"a": offered("low-2", "low-3")}).kept == {"a": offered("low-2", "low-3")}
    assert stage.extender.preempt(urgent(), {"a": offered("low-3")}).rejected == {"a": Reason.TOO_FEW_GPUS.value}


@pytest.mark.parametrize(
    ("victims", "cause"),
    [
        pytest.param(NodeVictims(()), DropCause.NO_VICTIMS, id="none"),
        pytest.param(NodeVictims(("uid-low-0", "uid-low-2", "uid-ghost")), DropCause.UNKNOWN_VICTIM, id="unknown"),
        pytest.param(NodeVictims(("uid-low-0", "uid-low-2", "uid-far")), DropCause.OTHER_NODE, id="of another node"),
        pytest.param(NodeVictims(("uid-low-0", "uid-low-2", "uid-new")), DropCause.OTHER_NODE, id="not bound"),
    ],
)
def test_victims_that_kube_scheduler_cannot_delete_there(victims: NodeVictims, cause: DropCause) -> None:
    stage = full()
    stage.watch_pods(pod_update("far", 2, "b"), pod_update("new", 2))

    assert stage.extender.preempt(urgent(island="required"), {"a": victims}) == PreemptionResult({}, {"a": cause}, {})


def test_a_gang_is_evicted_whole_or_not_at_all() -> None:
    stage = full(gang="team/llm-1")
    pod, half = urgent(island="required"), {"a": offered("low-0", "low-2")}

    assert stage.extender.preempt(pod, half) == PreemptionResult({}, {"a": DropCause.PART_OF_GANG}, {})
    assert stage.extender.preempt(pod, {"a": offered(*HELD)}).kept == {"a": offered(*HELD)}


def test_the_gang_of_a_pod_is_the_reservation_that_it_names() -> None:
    def named(**annotations: str) -> str | None:
        keys = {f"gputopo.io/{key}": value for key, value in annotations.items()}
        return placed_gang(Metadata("p", "team", "u", annotations=keys))

    assert named(reservation="llm-7") == "team/llm-7"
    assert named(reservation="pods-7") is None
    assert named(reservation="pods-7", gang="pods") == "team/pods-7"
    assert named() is None
    assert named(reservation="x" * 254) is None


def test_reserved_places_stay_reserved() -> None:
    """The victims leave an island, of which a committed gang has a place."""
    stage = full()
    stage.watch_pods(pod_update("member", 2), gone=("uid-low-0",))
    stage.watch_reports({"a": {name: HELD[name] for name in ("low-1", "low-2", "low-3")}})
    found = plan("r", {"member": ("a", 2)})
    stage.write_ledger((found, EntryPhase.COMMITTED))
    victims = {"a": offered("low-2")}

    assert stage.extender.preempt(urgent(island="required"), victims).rejected == {"a": Reason.RESERVED.value}
    stage.write_ledger()
    stage.watch_pods(gone=("uid-member",))
    assert stage.extender.preempt(urgent(island="required"), victims).kept == victims


def test_a_malformed_request_and_an_unknown_node_are_dropped() -> None:
    stage = full()
    stage.watch_pods(pod_update("far", 2, "b"))

    assert list(stage.extender.preempt(urgent(island="please"), {"a": offered("low-0")}).rejected) == ["a"]
    assert stage.extender.preempt(urgent(), {"b": offered("far")}).rejected == {"b": Reason.UNKNOWN_NODE.value}


def test_a_pod_without_gpus_may_take_any_pods_but_no_part_of_a_gang() -> None:
    stage = full(gang="team/llm-1")
    asked = {"a": NodeVictims(("uid-web",)), "b": offered("low-0")}

    found = stage.extender.preempt(urgent(0), asked)

    assert (dict(found.kept), found.dropped) == ({"a": NodeVictims(("uid-web",))}, {"b": DropCause.OTHER_NODE})


def test_decisions_are_recorded_replayed_and_logged_in_one_line() -> None:
    stage, pod = full(), urgent(island="required")
    stage.watch_pods(pod_update("far", 2, "b"))
    for pair in (("low-0", "low-2"), ("low-2", "low-3")):
        stage.extender.preempt(pod, {"a": offered(*pair), "b": NodeVictims(())})
    kept, dropped = stage.records
    log = DecisionLog(8)
    log.add_decision(kept)

    for record, answer in ((kept, ("a",)), (dropped, ())):
        line = parse_decision(encode_decision(record))
        assert line.answer == answer
        assert line.victims is not None
        assert list(replay_differences(line)) == []
    assert preemption_fields(dropped)["dropped"] == {"island": 1, "no_victims": 1}
    assert (preemption_fields(kept)["nodes"], preemption_fields(kept)["kept"]) == (2, 1)
    assert log.last_decision("uid-urgent") is None  # it has no ranking of nodes


def test_a_different_replay_is_reported() -> None:
    stage = full()
    stage.extender.preempt(urgent(island="required"), {"a": offered("low-2", "low-3")})
    line = parse_decision(encode_decision(stage.records[0]).replace(b'"answer":[]', b'"answer":["a"]'))

    assert list(replay_differences(line)) == ["answered a; now no node"]


def body(**changed: Any) -> bytes:
    """A call of kube-scheduler."""
    nodes = {"n1": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 2}, "n2": {"Pods": None}}
    return json.dumps({"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": nodes} | changed).encode()


def test_both_forms_of_a_call_are_parsed_in_any_case() -> None:
    victims = {"n1": NodeVictims(("u1",), 2), "n2": NodeVictims(())}
    whole = {"n1": {"pods": [{"metadata": {"uid": "u1"}}], "numPDBViolations": 2}, "n2": None}

    assert parse_preemption_args(body()) == PreemptionArgs(READ, victims)
    assert parse_preemption_args(body(NodeNameToMetaVictims=None, NodeNameToVictims=whole)).victims == victims
    assert parse_preemption_args(body().replace(b"NodeNameToMetaVictims", b"nodenametometavictims")).victims == victims
    assert json.loads(preemption_result(victims)) == {
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "u1"}], "NumPDBViolations": 2},
            "n2": {"Pods": [], "NumPDBViolations": 0},
        }
    }


@pytest.mark.parametrize("name", [each.name for each in RECORDED if "preempt-01-preempt" in each.name])
def test_recorded_calls_are_parsed(name: str) -> None:
    (path,) = [each for each in RECORDED if each.name == name]
    recorded = json.loads(path.read_text())["body"]

    found = parse_preemption_args(json.dumps(recorded).encode())

    named = recorded["NodeNameToMetaVictims"] or recorded["NodeNameToVictims"]
    assert {node: len(each.uids) for node, each in found.victims.items()} == {
        node: len(each["Pods"]) for node, each in named.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        body(Pod=None),
        body(NodeNameToMetaVictims=None),
        body(NodeNameToMetaVictims={"n": {"Pods": 3}}),
        body(NodeNameToMetaVictims={"n": {"Pods": [{}]}}),
        body(NodeNameToMetaVictims={"n": {"Pods": ["u"]}}),
    ],
)
def test_other_bodies_are_refused_with_what_is_expected(text: bytes) -> None:
    with pytest.raises(InvalidCallError, match="expected a preemption call of kube-scheduler"):
        parse_preemption_args(text)


def test_the_verb_is_answered_and_counted() -> None:
    metrics = ExtenderMetrics()
    with serving(app_of(Passing(), metrics=metrics)) as running:
        status, answer = running.ask("POST", "/preempt", body())[:2]

    assert (status, sorted(json.loads(answer)["NodeNameToMetaVictims"])) == (200, ["n1", "n2"])
    sample = metrics.registry.get_sample_value
    assert sample("gputopo_preemption_nodes_total", {"outcome": "kept"}) == 2
    assert sample("gputopo_extender_calls_total", {"verb": "preempt", "status": "200"}) == 1


def test_dropped_nodes_are_counted_by_cause() -> None:
    metrics = ExtenderMetrics()
    metrics.count_preemption(PreemptionResult({}, {"a": DropCause.OTHER_NODE}, {"b": Reason.ISLAND.value, "c": "odd"}))

    for outcome in ("other_node", "island", "malformed"):
        assert metrics.registry.get_sample_value("gputopo_preemption_nodes_total", {"outcome": outcome}) == 1


def test_capacity_holds_of_lower_priority_do_not_stop_the_preemption() -> None:
    """As in Filter: held capacity is used if nothing else suits."""
    stage, pod = full(), urgent(8)
    stage.write_ledger((plan("h", held={"a": 4}, priority=5), EntryPhase.HELD))
    above = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=6))

    assert stage.extender.preempt(pod, {"a": offered(*HELD)}).rejected == {"a": Reason.RESERVED.value}
    assert stage.extender.preempt(above, {"a": offered(*HELD)}).kept == {"a": offered(*HELD)}
    assert [list(replay_differences(parse_decision(encode_decision(each)))) for each in stage.records] == [[], []]
