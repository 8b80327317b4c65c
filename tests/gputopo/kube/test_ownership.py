"""The fields that each manager owns, by the managed fields of an object."""

import json

import msgspec
import pytest

from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import OwnedField, field_of, field_values, owned_fields, owners

METADATA = msgspec.json.decode(
    json.dumps(
        {
            "name": "n",
            "labels": {"a": "1", "b/c": "2"},
            "annotations": {"d": "3"},
            "managedFields": [
                {
                    "manager": "us",
                    "operation": "Apply",
                    "fieldsV1": {
                        "f:metadata": {"f:labels": {".": {}, "f:a": {}, "f:b/c": {}}, "f:annotations": {"f:d": {}}},
                        "f:spec": {"f:taints": {'k:{"key":"x"}': {}}},
                    },
                },
                {"manager": "us", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}},
                {"manager": "nfd", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}}},
                {"manager": "kubelet", "operation": "Update", "subresource": "status", "fieldsV1": {"f:status": {}}},
            ],
        }
    ),
    type=ManagedMetadata,
)
A, BC, D = OwnedField("labels", "a"), OwnedField("labels", "b/c"), OwnedField("annotations", "d")


def test_a_manager_owns_the_fields_that_it_applied() -> None:
    assert owned_fields(METADATA, "us") == {A, BC, D}
    assert owned_fields(METADATA, "nfd") == frozenset()


def test_other_managers_own_their_fields_after_any_operation() -> None:
    assert owners(METADATA, besides="us") == {A: ("nfd", "us")}
    assert owners(METADATA, besides="nobody") == {A: ("nfd", "us"), BC: ("us",), D: ("us",)}


def test_fields_have_the_values_of_labels_and_annotations() -> None:
    assert field_values(METADATA) == {A: "1", BC: "2", D: "3"}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        pytest.param(".metadata.labels.b/c.d", OwnedField("labels", "b/c.d"), id="a label with dots"),
        pytest.param(".metadata.annotations.d", D, id="an annotation"),
        pytest.param(".spec.taints", None, id="neither"),
    ],
)
def test_the_field_of_a_conflict(path: str, field: OwnedField | None) -> None:
    assert field_of(path) == field
