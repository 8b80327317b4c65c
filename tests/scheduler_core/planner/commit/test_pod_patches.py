"""Patches of pods."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import PlannedMember
from gputopo.labels import keys
from scheduler_core.planner.commit.pod_patches import (
    pinned_terms,
    strip_finalizer_patch,
    touch_patch,
    ungate_and_pin_patch,
    ungate_patch,
)
from scheduler_core.request.pod import RequiredTerm, RequiredTerms, Requirement
from tests.scheduler_core.planner.gang.gang_pods import member

PIN = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
ZONE = Requirement("zone", "In", ("z1", "z2"))
ZONE_WRITTEN = {"key": "zone", "operator": "In", "values": ["z1", "z2"]}
GPU = Requirement("gpu", "Exists")
POD = member("a")._replace(gates=(keys.GATE, "other.io/gate"), finalizers=("keep", "go"))
IDENTITY = {"name": POD.name, "namespace": POD.namespace, "uid": POD.uid, "resourceVersion": POD.version}


def test_one_patch_pins_and_ungates_and_keeps_the_gates_of_others() -> None:
    assert ungate_and_pin_patch(POD, PlannedMember(POD.uid, POD.name, "n1", rank=3), "llm-1") == {
        "metadata": IDENTITY | {"annotations": {keys.POD_GANG_RANK.key: "3", keys.POD_RESERVATION.key: "llm-1"}},
        "spec": {
            "schedulingGates": [{"name": "other.io/gate"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [PIN]}]}
                }
            },
        },
    }


def test_a_member_without_gpus_is_ungated_without_a_pin() -> None:
    assert ungate_and_pin_patch(POD, PlannedMember(POD.uid, POD.name), "llm-1") == {
        "metadata": IDENTITY | {"annotations": {keys.POD_RESERVATION.key: "llm-1"}},
        "spec": {"schedulingGates": [{"name": "other.io/gate"}]},
    }


@pytest.mark.parametrize(
    ("terms", "written"),
    [
        pytest.param(None, [{"matchFields": [PIN]}], id="no affinity"),
        pytest.param(RequiredTerms(()), [{"matchFields": [PIN]}], id="no term"),
        pytest.param(
            RequiredTerms(
                (RequiredTerm((ZONE,)), RequiredTerm((GPU,), (Requirement("metadata.name", "NotIn", ("x",)),)))
            ),
            [
                {"matchExpressions": [ZONE_WRITTEN], "matchFields": [PIN]},
                {
                    "matchExpressions": [{"key": "gpu", "operator": "Exists"}],
                    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}, PIN],
                },
            ],
            id="every term is narrowed",
        ),
        pytest.param(
            RequiredTerms((RequiredTerm(), RequiredTerm((ZONE,)))),
            [{}, {"matchExpressions": [ZONE_WRITTEN], "matchFields": [PIN]}],
            id="a term that matches nothing stays so",
        ),
    ],
)
def test_terms_are_only_narrowed(terms: RequiredTerms | None, written: list[object]) -> None:
    assert pinned_terms(terms, "n1") == written


def test_touch_strip_and_plain_ungate_patches() -> None:
    assert ungate_patch(POD) == {"metadata": IDENTITY, "spec": {"schedulingGates": [{"name": "other.io/gate"}]}}
    assert touch_patch(POD, "llm-1") == {"metadata": IDENTITY | {"annotations": {keys.POD_ROLLED_BACK.key: "llm-1"}}}
    assert strip_finalizer_patch(POD, "go") == {"metadata": IDENTITY | {"finalizers": ["keep"]}}
