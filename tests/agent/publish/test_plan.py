"""The apply of one field manager, for every way in which a key can be owned."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec
import pytest

from agent.publish import RestoredField
from agent.publish.plan import ApplyPlan, FieldValues, ForcedPlan, mirror_values, own_values, plan_apply, plan_forced
from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import OwnedField
from gputopo.labels import EncodedTopology, keys

A, B, T = OwnedField("labels", "a"), OwnedField("labels", "b"), OwnedField("annotations", "t")
GPUS, ISLANDS = OwnedField("labels", keys.GPUS.key), OwnedField("labels", keys.ISLANDS.key)
PRODUCT = OwnedField("labels", keys.PRODUCT_PREFIX + "x")
TOPOLOGY = OwnedField("annotations", keys.TOPOLOGY.key)
COST, MIRROR = OwnedField("labels", keys.COST_PER_HOUR.key), OwnedField("labels", keys.NVIDIA_COUNT.key)
US = keys.FIELD_MANAGER


def node(live: dict[OwnedField, str], us: Iterable[OwnedField] = (), **others: set[OwnedField]) -> ManagedMetadata:
    """A node; ``us`` and ``other`` applied, ``edit`` edited."""
    owned = ({US: us} if us else {}) | others
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
def test_planned_applies(metadata: ManagedMetadata, wanted: dict[OwnedField, str], expected: ApplyPlan) -> None:
    assert plan_apply(metadata, US, wanted) == expected


WANTED: FieldValues = {GPUS: "8", ISLANDS: "4-4", TOPOLOGY: "t"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param(node({}), ForcedPlan(WANTED, (), ()), id="nothing there: write"),
        pytest.param(node(WANTED, WANTED), ForcedPlan(None, (), ()), id="all so already: nothing"),
        pytest.param(node(WANTED | {GPUS: "7"}, WANTED), ForcedPlan(WANTED, (), ()), id="our own former value"),
        pytest.param(
            node(WANTED | {ISLANDS: "8"}, {GPUS, TOPOLOGY}, edit={ISLANDS}),
            ForcedPlan(WANTED, (), (RestoredField(ISLANDS.key, ("edit",)),)),
            id="a label that was edited",
        ),
        pytest.param(
            node(WANTED | {TOPOLOGY: "{"}, {GPUS, ISLANDS}, edit={TOPOLOGY}, other={TOPOLOGY}),
            ForcedPlan(WANTED, (), (RestoredField(TOPOLOGY.key, ("edit", "other")),)),
            id="an annotation of two other owners",
        ),
        pytest.param(
            node(WANTED, {GPUS, TOPOLOGY}, edit={ISLANDS}),
            ForcedPlan(WANTED, (), ()),
            id="set by somebody else to our value: owned too, without report",
        ),
        pytest.param(node(WANTED, WANTED, other={GPUS}), ForcedPlan(None, (), ()), id="owned by both, equal"),
        pytest.param(
            node(WANTED | {PRODUCT: "9"}, WANTED, edit={PRODUCT}),
            ForcedPlan(None, (PRODUCT,), (RestoredField(PRODUCT.key, ("edit",)),)),
            id="a product that somebody added",
        ),
        pytest.param(
            node(WANTED | {PRODUCT: "9"}, {*WANTED, PRODUCT}, other={PRODUCT}),
            ForcedPlan(WANTED, (PRODUCT,), (RestoredField(PRODUCT.key, ("other",)),)),
            id="no longer true, and applied by somebody else too",
        ),
        pytest.param(
            node(WANTED | {COST: "9", MIRROR: "2", A: "1", T: "x"}, WANTED, edit={COST, MIRROR, A, T}),
            ForcedPlan(None, (), ()),
            id="keys of administrators, mirrors and others",
        ),
    ],
)
def test_own_keys_are_taken_back(metadata: ManagedMetadata, expected: ForcedPlan) -> None:
    assert plan_forced(metadata, WANTED, {}) == expected


def test_a_deleted_key_is_reported_by_the_process_that_had_published_it() -> None:
    without = {field: value for field, value in WANTED.items() if field != GPUS}
    deleted = node(without, without)

    assert plan_forced(deleted, WANTED, WANTED) == ForcedPlan(WANTED, (), (RestoredField(GPUS.key),))
    assert plan_forced(deleted, WANTED, without) == ForcedPlan(WANTED, (), ())


def test_own_keys_and_mirrors_are_separate() -> None:
    facts = EncodedTopology(labels={"a": "1"}, annotations={"t": "x"}, mirrors={"b": "2"})

    assert (own_values(facts), mirror_values(facts)) == ({A: "1", T: "x"}, {B: "2"})
