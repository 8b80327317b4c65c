"""Watch sources of objects that declare gang sizes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.projection import Projection
from gputopo.kube.rbac import GANG_SIZE_SOURCES
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS
from scheduler_core.planner.gang.gang import DeclaredSize
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES, TrainJobFacts

REPLICAS = {"Worker": {"replicas": 4}}
SPECS: dict[str, tuple[dict[str, Any], DeclaredSize]] = {
    "JobSizes": ({"parallelism": 4, "completions": 4}, DeclaredSize(GangName("team", "job.a"), 4)),
    "JobSetSizes": (
        {"replicatedJobs": [{"name": "node", "replicas": 4, "groupName": "default"}]},
        DeclaredSize(GangName("team", "jobset.a"), 4),
    ),
    "GroupSizes": ({"schedulingPolicy": {"gang": {"minCount": 4}}}, DeclaredSize(GangName("team", "group.a"), None, 4)),
    "AlphaGroupSizes": (
        {"schedulingPolicy": {"gang": {"minCount": 4}}},
        DeclaredSize(GangName("team", "group.a"), None, 4),
    ),
    "OldGroupSizes": (
        {"schedulingPolicy": {"gang": {"minCount": 4}}},
        DeclaredSize(GangName("team", "group.a"), None, 4),
    ),
    "PodGroupSizes": ({"minMember": 4}, DeclaredSize(GangName("team", "podgroup.a"), None, 4)),
    "OldPodGroupSizes": ({"minMember": 4}, DeclaredSize(GangName("team", "podgroup.a"), None, 4)),
    "VolcanoGroupSizes": ({"minMember": 4}, DeclaredSize(GangName("team", "volcano.a"), None, 4)),
    "PyTorchJobSizes": ({"pytorchReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "TfJobSizes": ({"tfReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "XgboostJobSizes": ({"xgbReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "PaddleJobSizes": ({"paddleReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "JaxJobSizes": ({"jaxReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "MpiJobSizes": ({"mpiReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
    "MpiJobV2Sizes": ({"mpiReplicaSpecs": REPLICAS}, DeclaredSize(GangName("team", "kubeflow.a"), 4)),
}


DECLARING = {kind: source for kind, source in SIZE_SOURCES.items() if kind is not TrainJobFacts}


@pytest.mark.parametrize(("kind", "source"), DECLARING.items(), ids=[kind.__name__ for kind in DECLARING])
def test_every_source_declares_the_size_of_a_gang(kind: type[Any], source: Any) -> None:
    spec, size = SPECS[kind.__name__]
    text = msgspec.json.encode({"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "spec": spec})

    (found,) = Projection(source).apply_list([msgspec.Raw(text)]).updates

    assert (found.key, found.sizes) == ("u", (size,))


def test_the_role_allows_every_kind() -> None:
    assert tuple(source.resource for source in SIZE_SOURCES.values()) == GANG_SIZE_SOURCES


def test_objects_and_pods_name_gangs_alike() -> None:
    prefixes = {size.gang.name.partition(".")[0] for _, size in SPECS.values()}

    assert prefixes == {rule.prefix for rule in GANG_CONVENTIONS if rule.size_declared_by}
