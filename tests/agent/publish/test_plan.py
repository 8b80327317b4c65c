"""The apply of one field manager, for every way in which a key can be owned."""

from __future__ import annotations

import json

import msgspec
import pytest

from agent.publish.plan import ApplyPlan, plan_apply, values_by_manager
from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import OwnedField
from gputopo.labels import EncodedTopology
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER

A, B, T = OwnedField("labels", "a"), OwnedField("labels", "b"), OwnedField("annotations", "t")
US = "us"


def node(live: dict[OwnedField, str], **owned: set[OwnedField]) -> ManagedMetadata:
    """A node; ``us`` and ``other`` applied, ``edit`` edited."""
    managed = []
    for manager, fields in owned.items():
        held: dict[str, dict[str, dict[str, str]]] = {}
        for section, key in fields:
            held.setdefault(f"f:{section}", {})[f"f:{key}"] = {}
        operation = "Update" if manager == "edit" else "Apply"
        managed.append({"manager": manager, "operation": operation, "fieldsV1": {"f:metadata": held}})
    body: dict[str, object] = {"name": "n", "managedFields": managed}
    for (section, key), value in live.items():
        body.setdefault(section, {})[key] = value  # type: ignore[index]
    return msgspec.json.decode(json.dumps(body), type=ManagedMetadata)


@pytest.mark.parametrize(
    ("metadata", "wanted", "expected"),
    [
        pytest.param(node({}), {A: "1"}, ApplyPlan({A: "1"}, {}), id="nothing there: write"),
        pytest.param(node({A: "1"}, us={A}), {A: "1"}, ApplyPlan(None, {}), id="all so already: nothing"),
        pytest.param(
            node({A: "1", T: "x"}, us={A, T}), {A: "1", T: "y"}, ApplyPlan({A: "1", T: "y"}, {}), id="one changed: all"
        ),
        pytest.param(
            node({A: "1", B: "2"}, us={A, B}), {A: "1"}, ApplyPlan({A: "1"}, {}), id="one no longer true: the rest"
        ),
        pytest.param(node({A: "1"}, us={A}), {}, ApplyPlan({}, {}), id="none true any more: an apply of nothing"),
        pytest.param(node({}), {}, ApplyPlan(None, {}), id="nothing wanted, nothing there"),
        pytest.param(
            node({B: "2"}, us={B}), {A: "1", B: "2"}, ApplyPlan({A: "1", B: "2"}, {}), id="one deleted: all again"
        ),
        pytest.param(
            node({A: "9"}, edit={A}), {A: "1"}, ApplyPlan(None, {A: ("edit",)}), id="another owner: left unchanged"
        ),
        pytest.param(node({A: "1"}, edit={A}), {A: "1"}, ApplyPlan(None, {A: ("edit",)}), id="theirs also where equal"),
        pytest.param(
            node({A: "9", B: "2"}, us={B}, edit={A}),
            {A: "1", B: "2"},
            ApplyPlan(None, {A: ("edit",)}),
            id="theirs and ours",
        ),
        pytest.param(node({A: "1"}, us={A}, other={A}), {A: "1"}, ApplyPlan(None, {}), id="owned by both, equal"),
        pytest.param(
            node({A: "1"}, us={A}, other={A}),
            {A: "2"},
            ApplyPlan({}, {A: ("other",)}),
            id="owned by both, changed: given up",
        ),
        pytest.param(node({A: "1"}), {A: "1"}, ApplyPlan({A: "1"}, {}), id="without owner: owned from now on"),
    ],
)
def test_what_is_written(metadata: ManagedMetadata, wanted: dict[OwnedField, str], expected: ApplyPlan) -> None:
    assert plan_apply(metadata, US, wanted) == expected


def test_mirrors_have_their_own_field_manager() -> None:
    facts = EncodedTopology(labels={"a": "1"}, annotations={"t": "x"}, mirrors={"b": "2"})

    assert values_by_manager(facts) == {FIELD_MANAGER: {A: "1", T: "x"}, MIRROR_FIELD_MANAGER: {B: "2"}}
