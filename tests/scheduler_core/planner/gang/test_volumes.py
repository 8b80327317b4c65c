"""The nodes that volumes of pods allow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.projection import Projection
from gputopo.kube.rbac import VOLUME_SOURCES as RESOURCES
from scheduler_core.cache.events import Batch
from scheduler_core.cache.kube_scheduler_filters import VOLUMES_REASON, FullNode, volume_rejection
from scheduler_core.planner.gang.volume_sources import VOLUME_SOURCES
from scheduler_core.planner.gang.volumes import (
    MAX_CLAIMS,
    STATIC_VOLUMES,
    TOO_MANY_VOLUMES,
    VOLUME_KINDS,
    ClaimUpdate,
    StorageClassUpdate,
    VolumeIndex,
    VolumeRules,
    VolumeUpdate,
)
from scheduler_core.request.pod import Metadata

Json = dict[str, Any]
LATE = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer"}


def claim(name: str = "data", status: str = "Pending", **spec: Any) -> Json:
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec, "status": {"phase": status}}


def volume(*expressions: tuple[str, str], name: str = "pv") -> Json:
    """A volume; ``expressions``: label and value."""
    found = [{"key": key, "operator": "In", "values": [value]} for key, value in expressions]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": found}]}}
    return {"metadata": {"name": name}, "spec": {"nodeAffinity": terms} if found else {}}


def storage_class(name: str = "late", **fields: Any) -> Json:
    return {"metadata": {"name": name}, **fields}


def seen(claims: list[Json], volumes: list[Json] | None = None, classes: list[Json] | None = None) -> VolumeIndex:
    """Return what the watches of these objects show, through the real projections."""
    index = VolumeIndex()
    for kind, objects in zip(VOLUME_KINDS, (claims, volumes or [], classes or []), strict=True):
        raw = [msgspec.Raw(msgspec.json.encode(each)) for each in objects]
        delta = Projection(VOLUME_SOURCES[kind]).apply_list(raw)
        index.apply_batch(Batch(kind, delta.updates, delta.removed, delta.is_full_list))
    return index


def allowed(rules: VolumeRules, **labels: str) -> bool:
    node = FullNode(metadata=Metadata(name=labels.pop("name", "n1"), labels=labels))
    found = volume_rejection(rules.terms, node)
    assert found in (None, VOLUMES_REASON)
    return found is None


def test_a_bound_volume_allows_the_nodes_of_its_affinity() -> None:
    rules = seen([claim(volumeName="pv", status="Bound")], [volume(("zone", "a"))]).rules_of("team", ["data"])

    assert rules.blocked is None
    assert allowed(rules, zone="a")
    assert not allowed(rules, zone="b")
    assert not allowed(rules)


def test_all_volumes_of_a_pod_must_allow_the_node() -> None:
    index = seen(
        [claim(volumeName="pv"), claim("more", volumeName="pv2"), claim("any", volumeName="pv3")],
        [volume(("zone", "a")), volume(("rack", "r"), name="pv2"), volume(name="pv3")],
    )
    rules = index.rules_of("team", ["data", "more", "any"])

    assert allowed(rules, zone="a", rack="r")
    assert not allowed(rules, zone="a")
    assert rules == index.rules_of("team", ["more", "any", "data"])
    assert index.rules_of("team", ["any"]) == index.rules_of("team", []) == VolumeRules()


def test_a_late_volume_allows_the_topologies_of_its_class() -> None:
    topologies = [
        {"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]},
        {"matchLabelExpressions": [{"key": "zone", "values": ["c"]}, {"key": "rack", "values": ["r"]}]},
    ]
    classes = [storage_class(**LATE, allowedTopologies=topologies), storage_class("anywhere", **LATE)]
    index = seen([claim(storageClassName="late"), claim("any", storageClassName="anywhere")], classes=classes)
    rules = index.rules_of("team", ["data"])

    assert rules.blocked is None
    assert allowed(rules, zone="b")
    assert allowed(rules, zone="c", rack="r")
    assert not allowed(rules, zone="c")
    assert index.rules_of("team", ["any"]) == VolumeRules()


def test_a_volume_that_is_being_provisioned_allows_only_the_selected_node() -> None:
    selected = claim(storageClassName="late")
    selected["metadata"]["annotations"] = {"volume.kubernetes.io/selected-node": "n1"}
    rules = seen([selected], classes=[storage_class(**LATE)]).rules_of("team", ["data"])

    assert allowed(rules, name="n1")
    assert not allowed(rules, name="n2")


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        pytest.param([], "its volume claim data does not exist", id="no claim"),
        pytest.param([claim(storageClassName="now")], "its volume claim data is not bound yet", id="immediate"),
        pytest.param([claim(storageClassName="")], "its volume claim data is not bound yet", id="no class"),
        pytest.param(
            [claim(storageClassName="gone")],
            "its volume claim data is not bound: there is no storage class gone",
            id="missing class",
        ),
        pytest.param(
            [claim(volumeName="gone")], "the volume gone of its volume claim data does not exist", id="missing volume"
        ),
        pytest.param([claim(volumeName="pv", status="Lost")], "its volume claim data is lost", id="lost"),
        pytest.param(
            [{"metadata": {"name": "data", "namespace": "team", "deletionTimestamp": "2026-01-01T00:00:00Z"}}],
            "its volume claim data is being deleted",
            id="terminating",
        ),
    ],
)
def test_a_claim_that_kube_scheduler_rejects_on_all_nodes_blocks_the_pod(found: list[Json], reason: str) -> None:
    index = seen(found, [volume()], [storage_class("now", provisioner="csi.example.com")])

    assert index.rules_of("team", ["data"]) == VolumeRules(blocked=reason)


def test_static_volumes_are_left_to_kube_scheduler() -> None:
    local = storage_class(provisioner="kubernetes.io/no-provisioner", volumeBindingMode="WaitForFirstConsumer")

    assert seen([claim(storageClassName="late")], classes=[local]).rules_of("team", ["data"]) == VolumeRules(
        unchecked=STATIC_VOLUMES
    )


def test_rules_of_volumes_are_bounded() -> None:
    many = seen([claim(volumeName="pv")], [volume(*((f"k{at}", "v") for at in range(300)))])

    assert many.rules_of("team", ["data"]) == VolumeRules(unchecked=TOO_MANY_VOLUMES)
    assert many.rules_of("team", [str(at) for at in range(MAX_CLAIMS + 1)]) == VolumeRules(unchecked=TOO_MANY_VOLUMES)


def test_before_all_kinds_are_listed_nothing_is_known() -> None:
    index = VolumeIndex()
    index.apply_batch(Batch(ClaimUpdate, (ClaimUpdate("team/data", "pv", "", None, False, False),), is_full_list=True))

    blocked = index.rules_of("team", ["data"]).blocked
    assert blocked == "its volume claims, or the volumes and storage classes of the cluster, are not known yet"
    for kind in (VolumeUpdate, StorageClassUpdate):
        assert index.apply_batch(Batch(kind, (), is_full_list=True)) is None
    assert index.rules_of("team", ["data"]).blocked != blocked


def test_changes_name_the_claims() -> None:
    index = seen([claim(volumeName="pv")], [volume()])

    assert index.apply_batch(Batch(ClaimUpdate, (), ("team/data",))) == frozenset({"team/data"})
    assert index.rules_of("team", ["data"]).blocked == "its volume claim data does not exist"


def test_the_role_allows_every_kind() -> None:
    assert tuple(source.resource for source in VOLUME_SOURCES.values()) == RESOURCES
