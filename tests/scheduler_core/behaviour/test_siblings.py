"""Ungated pods of one job are drawn to the nodes, cliques and racks of their siblings, with calls of kube-scheduler."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from gputopo.model import NodeTopology
from scheduler_core.cache.colocation import Proximity
from scheduler_core.cache.events import Batch, NodeUpdate, PodUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.sibling_proximity import MAX_NODES
from scheduler_core.explain import explain
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod, PodOwner
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, node, pod
from tests.scheduler_core.fake_scheduler import FakeScheduler

H100 = MACHINES["hgx_h100"]()
CLIQUE, RACK = "nvidia.com/gpu.clique", "cloud.provider.com/topology-rack"
ZONE = "topology.kubernetes.io/zone"
JOB_ID, KUBEFLOW, JOBSET = "training-job-id", "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"
ALL = Policy(tolerance=10.0)  # also answers nodes below the best
FOUR = dict.fromkeys("abcd", H100)


def _worker(name: str, gpus: int = 8, *, label: str | None = JOB_ID, namespace: str = "team", **wishes: str) -> Pod:
    """A pod of a job that ``label`` names."""
    found = pod(
        name,
        gpus,
        annotations={key.replace("_", "-"): value for key, value in wishes.items()},
        labels={label: "t"} if label else {},
    )
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, namespace=namespace))


def _owned(asked: Pod) -> Pod:
    owner = PodOwner("batch/v1", "Job", "uid-o", controller=True)
    return msgspec.structs.replace(asked, metadata=msgspec.structs.replace(asked.metadata, owner_references=(owner,)))


def _update(asked: Pod, on: str | None) -> PodUpdate:
    from scheduler_core.cache.watch import pod_update

    found = pod_update(asked.metadata.uid, asked)
    assert found is not None
    return found._replace(node=on)


def _cluster(
    labels: Mapping[str, Mapping[str, str]],
    *placed: tuple[Pod, str],
    machines: Mapping[str, NodeTopology] = FOUR,
) -> FakeScheduler:
    stage = FakeScheduler.synced(machines, *(_update(asked, on) for asked, on in placed), policy=ALL)
    _show(stage, labels)
    return stage


def _show(stage: FakeScheduler, labels: Mapping[str, Mapping[str, str]]) -> None:
    for name, each in labels.items():
        update = NodeUpdate(name, parse_node(node(stage.machines[name], labels=each)))
        stage.cache.apply_batch(Batch(NodeUpdate, (update,)), stage.now)


def _raws(stage: FakeScheduler) -> dict[str, float | None]:
    """Return the raw score of the factor on each answered node; None: it does not apply."""
    record = stage.records[-1]
    scores = zip(record.answer.nodes, record.scores, strict=True)
    return {name: {part.factor: part.raw for part in each.parts}.get("proximity") for name, each in scores}


@pytest.mark.parametrize("label", [JOB_ID, KUBEFLOW, JOBSET])
def test_a_pod_is_drawn_to_the_node_then_the_clique_then_the_rack_of_its_siblings(label: str) -> None:
    labels = {
        "a": {CLIQUE: "c.1", RACK: "r1"},
        "b": {CLIQUE: "c.1", RACK: "r1"},
        "c": {CLIQUE: "c.2", RACK: "r1"},
        "d": {CLIQUE: "c.3", RACK: "r2"},
    }
    stage = _cluster(labels, (_worker("one", 4, label=label), "a"))

    stage.filter(_worker("two", 4, label=label))

    assert _raws(stage) == {"a": 1.0, "b": 0.7, "c": 0.4, "d": 0.0}
    stage.watch_pods(_update(_worker("more", 4, label=None), "a"))
    assert stage.filter(_worker("two", 4, label=label)).nodes == ("b", "c", "d")
    (record,) = stage.records[-1:]
    assert list(replay_differences(parse_decision(encode_decision(record)))) == []


@pytest.mark.parametrize(
    ("sibling", "asked", "drawn"),
    [
        pytest.param(_owned(_worker("one", label=None)), _owned(_worker("two", label=None)), True, id="one owner"),
        pytest.param(_owned(_worker("one")), _worker("two"), True, id="one job, other owner"),
        pytest.param(_worker("one", namespace="else"), _worker("two"), False, id="other namespace"),
        pytest.param(_owned(_worker("one", label=None, namespace="else")), _owned(_worker("two")), False, id="forged"),
        pytest.param(_worker("one", label=KUBEFLOW), _worker("two", label=JOBSET), False, id="other kind of name"),
        pytest.param(_worker("one", label=None), _worker("two", label=None), False, id="no job"),
        pytest.param(_worker("one", workload="inference"), _worker("two", workload="inference"), False, id="inference"),
        pytest.param(_worker("one"), _worker("two", spread="preferred"), False, id="asks to be spread"),
    ],
)
def test_siblings_are_pods_of_one_owner_or_job_in_one_namespace(sibling: Pod, asked: Pod, drawn: bool) -> None:
    stage = _cluster({"a": {RACK: "r1"}, "c": {RACK: "r1"}}, (sibling, "a"))

    found = stage.filter(asked)

    assert _raws(stage) == ({"b": 0.0, "c": 0.4, "d": 0.0} if drawn else dict.fromkeys("bcd"))
    assert (found.nodes[0] == "c") or not drawn


def test_domains_follow_the_labels_of_the_nodes() -> None:
    stage = _cluster({"a": {RACK: "r1"}, "b": {RACK: "r1"}}, (_worker("one"), "a"))
    _show(stage, {"b": {RACK: "r2"}, "c": {RACK: "r1"}, "d": {RACK: "r1", ZONE: "z"}})

    stage.filter(_worker("two"))

    assert _raws(stage) == {"b": 0.0, "c": 0.4, "d": 0.0}  # the rack of another zone is another rack
    stage.watch_nodes(gone=["c"])
    assert stage.cache.domains.nodes_in(stage.cache.domains.domains_of_node("a")[0]) == ["a"]


def test_an_island_outweighs_the_node_of_a_sibling() -> None:
    """The two free GPUs of "a" have no NVLink between them. On "b" a pair with two NVLinks is free."""
    stage = _cluster(
        {},
        (_worker("one", 1), "a"),
        (_worker("other", 1, label=None), "a"),
        machines=dict.fromkeys("ab", MACHINES["v100_ring"]()),
    )
    stage.watch_reports({"a": {"one": [0], "other": [3]}})

    assert stage.filter(_worker("two", 2)).nodes == ("b", "a")
    assert _raws(stage) == {"b": 0.0, "a": 1.0}


def test_the_number_of_nodes_with_a_state_of_their_own_is_bounded() -> None:
    names = [f"n{each:04}" for each in range(3 * MAX_NODES)]
    stage = _cluster(
        {name: {RACK: "r1"} for name in names}, (_worker("one"), names[-1]), machines=dict.fromkeys(names, H100)
    )

    stage.filter(_worker("two"))

    near = [state.proximity for state in stage.records[-1].table.states.values()]
    assert (near.count(Proximity.NODE), near.count(Proximity.RACK)) == (1, MAX_NODES - 1)
    assert len(set(map(id, stage.cache.snapshot.states.values()))) == 2  # shared states do not differ by rack


def test_why_pod_names_the_nodes_of_the_siblings() -> None:
    stage = _cluster({"a": {RACK: "r1"}, "b": {RACK: "r1"}}, (_worker("one"), "a"))
    stage.filter(_worker("two"))
    request = stage.records[-1].request._replace(
        profile=stage.records[-1].request.profile._replace(near_siblings=False, sibling_hardware=None)
    )

    found = explain(request, stage.cache.snapshot, None, ALL, NOW)

    assert found.best[0].node == "b"
    assert any(part.name == "proximity" and part.raw == 0.4 for part in found.best[0].factors)
    assert (
        "other pods of its owner or job are on a; this node scores higher; then 1 more node of their racks (proximity)"
    ) in found.notes


def test_same_product_holds_for_the_pods_of_a_job_without_an_owner() -> None:
    stage = _cluster({}, (_worker("one"), "a"), machines={"a": H100, "b": MACHINES["hgx_b200"](), "c": H100})

    assert stage.filter(_worker("two", same_product="required")).nodes == ("c",)
