"""The labels that mark a node as interruptible (spot)."""

from __future__ import annotations

import pytest

from gputopo.labels.capacity import SPOT_LABELS, is_spot


@pytest.mark.parametrize(("key", "values"), [(key, values) for key, values, _ in SPOT_LABELS])
def test_every_cloud_is_known(key: str, values: tuple[str, ...]) -> None:
    assert all(is_spot({key: value}) and is_spot({key: value.upper()}) for value in values)


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"karpenter.sh/capacity-type": "on-demand"},
        {"eks.amazonaws.com/capacityType": "ON_DEMAND"},
        {"kubernetes.azure.com/scalesetpriority": "regular"},
        {"cloud.google.com/gke-provisioning": "standard"},
        {"cloud.google.com/gke-spot": "false"},
    ],
    ids=str,
)
def test_labels_that_do_not_mark_spot_capacity(labels: dict[str, str]) -> None:
    assert not is_spot(labels)
