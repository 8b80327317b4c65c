"""The annotations of pods and their owners that say what an eviction costs."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec
import pytest

from gputopo.kube.projection import Projection
from gputopo.labels.workloads import JOBSET, JOBSET_GROUP, JOBSET_REPLICATED_JOB
from gputopo.timestamps import format_timestamp
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.disruption import Disruptions, OwnerDisruption, PodDisruption
from scheduler_core.planner.gang.gang import DeclaredSizes
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.pod_source import planner_pod
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES, JobSetSizes, JobSizes, PyTorchJobSizes, TrainJobFacts
from scheduler_core.request.disruption import MAX_DURATION_S, NO_FACTS, DisruptionFacts, parse_disruption
from tests.scheduler_core.builders import NOW
from tests.scheduler_core.planner.gang.pod_objects import gang_pod

_OURS = {
    "gputopo.io/last-checkpoint": format_timestamp(NOW - 60),
    "gputopo.io/checkpoints": "true",
    "gputopo.io/expected-duration": "6h",
    "gputopo.io/estimated-completion": format_timestamp(NOW + 60),
    "gputopo.io/progress": "83.5%",
    "gputopo.io/restart-time": "4m",
    "controller.kubernetes.io/pod-deletion-cost": "-7",
}


def test_every_annotation_is_read() -> None:
    assert parse_disruption(_OURS) == DisruptionFacts(
        NOW - 60, True, NOW + 60, 21_600.0, 0.835, 240.0, deletion_cost=-7
    )
    assert parse_disruption({"app": "x"}) is NO_FACTS


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("gputopo.io/last-checkpoint", "yesterday"),
        ("gputopo.io/last-checkpoint", "2026-11-18T11:06:40"),
        ("gputopo.io/last-checkpoint", "99999-01-01T00:00:00Z"),
        ("gputopo.io/checkpoints", "yes"),
        ("gputopo.io/expected-duration", "-6h"),
        ("gputopo.io/expected-duration", "1h" * 100),
        ("gputopo.io/progress", "101"),
        ("gputopo.io/progress", "-1"),
        ("gputopo.io/progress", "nan"),
        ("gputopo.io/progress", "1e1"),
        ("gputopo.io/restart-time", "soon"),
        ("gputopo.io/preemptible", "no"),
        ("karpenter.sh/do-not-disrupt", "false"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "true"),
        ("controller.kubernetes.io/pod-deletion-cost", "10e3"),
        ("controller.kubernetes.io/pod-deletion-cost", "9" * 5_000),
    ],
)
def test_an_invalid_value_is_left_out(key: str, text: str) -> None:
    assert parse_disruption({key: text}) == NO_FACTS


def test_numbers_are_bounded() -> None:
    found = parse_disruption(
        {
            "gputopo.io/expected-duration": "999999999h",
            "gputopo.io/restart-time": "999999999h",
            "controller.kubernetes.io/pod-deletion-cost": "-9999999999",
        }
    )

    assert found == DisruptionFacts(duration_s=MAX_DURATION_S, restart_s=MAX_DURATION_S, deletion_cost=-(2**31) + 1)


@pytest.mark.parametrize(
    ("annotations", "key", "seconds"),
    [
        ({"gputopo.io/preemptible": "never"}, "gputopo.io/preemptible", inf),
        ({"gputopo.io/preemptible": "false"}, "gputopo.io/preemptible", inf),
        ({"karpenter.sh/do-not-disrupt": "true"}, "karpenter.sh/do-not-disrupt", inf),
        ({"karpenter.sh/do-not-disrupt": "30m"}, "karpenter.sh/do-not-disrupt", 1_800.0),
        (
            {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "30m"},
            "cluster-autoscaler.kubernetes.io/safe-to-evict",
            inf,
        ),
        (
            {"descheduler.alpha.kubernetes.io/prefer-no-eviction": ""},
            "descheduler.alpha.kubernetes.io/prefer-no-eviction",
            inf,
        ),
    ],
)
def test_annotations_of_other_tools_forbid_evictions(annotations: dict[str, str], key: str, seconds: float) -> None:
    assert parse_disruption(annotations) == DisruptionFacts(never=key, never_s=seconds)


def test_a_pod_with_a_node_has_its_times() -> None:
    pod = gang_pod(
        nodeName="n1",
        priority=7,
        terminationGracePeriodSeconds=10**12,
        deletionTimestamp=format_timestamp(NOW),
        ownerReferences=[{"apiVersion": "apps/v1", "kind": "DaemonSet", "uid": "d", "controller": True}],
        annotations={"gputopo.io/checkpoints": "false"},
        status={"phase": "Running", "startTime": format_timestamp(NOW - 5)},
    )

    found = planner_pod("u", pod)

    assert found is not None
    assert found.disruption == PodDisruption(
        "u", DisruptionFacts(checkpoints=False), 7, NOW - 5, 604_800.0, NOW, is_recreated=True
    )
    unbound = planner_pod("u", gang_pod())
    assert unbound is not None
    assert unbound.disruption is None


@pytest.mark.parametrize(
    ("version", "kind", "is_recreated"),
    [
        ("v1", "Node", True),
        ("example.com/v1", "DaemonSet", False),
        ("apps/v2", "DaemonSet", False),
        ("example.com/v1", "Node", False),
        ("apps/v1", "StatefulSet", False),
    ],
)
def test_an_invented_owner_does_not_protect_a_pod(version: str, kind: str, *, is_recreated: bool) -> None:
    """The garbage collector deletes no pod for an owner of a kind that the API server does not serve."""
    owner = {"apiVersion": version, "kind": kind, "name": "d", "uid": "d", "controller": True}

    found = planner_pod("u", gang_pod(nodeName="n1", ownerReferences=[owner]))

    assert found is not None
    assert found.disruption is not None
    assert found.disruption.is_recreated is is_recreated


def _owner(kind: type[Any], document: dict[str, Any]) -> OwnerDisruption | None:
    metadata = {"name": "a", "namespace": "team", "uid": "u", **document.pop("metadata", {})}
    text = msgspec.json.encode({"metadata": metadata, **document})
    (found,) = Projection(SIZE_SOURCES[kind]).apply_list([msgspec.Raw(text)]).updates
    disruption: OwnerDisruption | None = found.disruption
    return disruption


@pytest.mark.parametrize(
    ("kind", "spec", "gang"),
    [
        pytest.param(JobSizes, {}, "job.a", id="Job"),
        pytest.param(JobSetSizes, {"replicatedJobs": [{"name": "w"}]}, "jobset.a", id="JobSet"),
        pytest.param(PyTorchJobSizes, {"pytorchReplicaSpecs": {"Worker": {}}}, "kubeflow.a", id="PyTorchJob"),
        pytest.param(TrainJobFacts, {}, "jobset.a", id="TrainJob"),
    ],
)
def test_annotations_of_owners_mean_the_same_as_those_of_pods(kind: type[Any], spec: dict[str, Any], gang: str) -> None:
    result = _owner(kind, {"metadata": {"annotations": _OURS}, "spec": spec})

    assert result == OwnerDisruption(parse_disruption(_OURS), (GangName("team", gang),))
    assert _owner(kind, {"spec": spec}) is None


def test_the_jobset_of_a_pod_is_known_where_its_gang_has_another_name() -> None:
    """By an annotation, a PodGroup or a group of the JobSet: a TrainJob has the name of the JobSet."""
    spec = {"replicatedJobs": [{"name": "w", "groupName": "workers"}]}
    jobset = _owner(JobSetSizes, {"metadata": {"annotations": _OURS}, "spec": spec})
    labels = {JOBSET: "a"}
    plain, annotated, grouped, alone = (
        planner_pod("u", gang_pod(nodeName="n1", labels={**labels, **more}, annotations=annotations))
        for more, annotations in (
            ({}, {}),
            ({}, {"gputopo.io/gang": "x", "gputopo.io/gang-size": "2"}),
            ({JOBSET_GROUP: "workers"}, {}),
            ({JOBSET_REPLICATED_JOB: "dataset-initializer"}, {}),
        )
    )

    assert jobset is not None
    assert jobset.gangs == (GangName("team", "jobset.a"), GangName("team", "jobset.a.workers"))
    found = [each and each.disruption and each.disruption.jobset for each in (plain, annotated, grouped, alone)]
    assert found == [None, *[GangName("team", "jobset.a")] * 3]


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        pytest.param(
            {"progressPercentage": 40, "estimatedRemainingSeconds": 600, "lastUpdatedTime": format_timestamp(NOW)},
            DisruptionFacts(completion=NOW + 600, progress=0.4),
            id="result",
        ),
        pytest.param(
            {"progressPercentage": 400, "estimatedRemainingSeconds": -1, "lastUpdatedTime": format_timestamp(NOW)},
            None,
            id="impossible",
        ),
        pytest.param({"estimatedRemainingSeconds": 600}, None, id="without a time"),
    ],
)
def test_the_status_of_a_train_job_is_read(status: dict[str, Any], facts: DisruptionFacts | None) -> None:
    result = _owner(TrainJobFacts, {"status": {"trainerStatus": status}})

    assert (result and result.facts) == facts


def test_the_index_forgets_pods_and_owners() -> None:
    index, gang = Disruptions(), GangName("team", "jobset.a")
    result = OwnerDisruption(DisruptionFacts(progress=0.5), (gang,))
    index.apply_pods(Batch(PodDisruption, (PodDisruption("a"), PodDisruption("b"))))
    index.apply_owners(Batch(DeclaredSizes, (DeclaredSizes("u", ()),)), {"u": result})
    copy = index.copy()

    assert index.gang_facts() == {gang: (result.facts,)}
    assert index.owner_facts("u") == (result.facts,)
    index.apply_pods(Batch(PodDisruption, (), ("a",)))
    index.apply_owners(Batch(DeclaredSizes, (DeclaredSizes("u", ()),)), {})
    assert (set(index.pods()), index.gang_facts(), index.owner_facts("u")) == ({"b"}, {}, ())
    index.apply_pods(Batch(PodDisruption, (), is_full_list=True))
    assert not index.pods()
    assert (set(copy.pods()), copy.owner_facts("u"), copy.owner_facts(None)) == ({"a", "b"}, (result.facts,), ())
