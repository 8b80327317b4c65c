"""The objects that say how large gangs are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.projection import Reduction
from gputopo.kube.rbac import SAY_SIZES
from scheduler_core.planner.gang.conventions import RULES
from scheduler_core.planner.gang.gang import Size
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.gang.size_sources import SIZES

REPLICAS = {"Worker": {"replicas": 4}}
SPECS: dict[str, tuple[dict[str, Any], Size]] = {
    "OfJob": ({"parallelism": 4, "completions": 4}, Size(GangName("team", "job.a"), 4)),
    "OfJobSet": (
        {"replicatedJobs": [{"name": "node", "replicas": 4, "groupName": "default"}]},
        Size(GangName("team", "jobset.a"), 4),
    ),
    "OfGroup": ({"schedulingPolicy": {"gang": {"minCount": 4}}}, Size(GangName("team", "group.a"), None, 4)),
    "OfAlphaGroup": ({"schedulingPolicy": {"gang": {"minCount": 4}}}, Size(GangName("team", "group.a"), None, 4)),
    "OfOldGroup": ({"schedulingPolicy": {"gang": {"minCount": 4}}}, Size(GangName("team", "group.a"), None, 4)),
    "OfPodGroup": ({"minMember": 4}, Size(GangName("team", "podgroup.a"), None, 4)),
    "OfOldPodGroup": ({"minMember": 4}, Size(GangName("team", "podgroup.a"), None, 4)),
    "OfVolcanoGroup": ({"minMember": 4}, Size(GangName("team", "volcano.a"), None, 4)),
    "OfPyTorchJob": ({"pytorchReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfTfJob": ({"tfReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfXgboostJob": ({"xgbReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfPaddleJob": ({"paddleReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfJaxJob": ({"jaxReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfMpiJob": ({"mpiReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
    "OfMpiJobV2": ({"mpiReplicaSpecs": REPLICAS}, Size(GangName("team", "kubeflow.a"), 4)),
}


@pytest.mark.parametrize(("kind", "source"), SIZES.items(), ids=[kind.__name__ for kind in SIZES])
def test_every_object_says_the_size_of_a_gang(kind: type[Any], source: Any) -> None:
    spec, size = SPECS[kind.__name__]
    text = msgspec.json.encode({"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "spec": spec})

    (found,) = Reduction(source).listed([msgspec.Raw(text)]).seen

    assert (found.key, found.sizes) == ("u", (size,))


def test_each_kind_is_one_of_those_that_the_role_lists() -> None:
    assert tuple(source.resource for source in SIZES.values()) == SAY_SIZES


def test_objects_name_gangs_as_the_conventions_do() -> None:
    prefixes = {size.gang.name.partition(".")[0] for _, size in SPECS.values()}

    assert prefixes == {rule.prefix for rule in RULES if rule.told_by}
