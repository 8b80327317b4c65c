"""Plans the server-side apply of one field manager, given the current Node. Pure.

An apply carries all fields that a manager wants to own: a field that it leaves out is removed, or stays with its other
owners. So a write always has all fields, and no write is made where they are current already.
"""

from __future__ import annotations

from typing import NamedTuple

from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import OwnedField, field_values, owned_fields, owners
from gputopo.labels import EncodedTopology
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER

FieldValues = dict[OwnedField, str]


class ApplyPlan(NamedTuple):
    """The planned apply of one field manager."""

    apply: FieldValues | None  # all fields that the manager will own; None: already current
    others: dict[OwnedField, tuple[str, ...]]  # wanted fields of other owners, with their names


def values_by_manager(facts: EncodedTopology) -> dict[str, FieldValues]:
    """Return the field values that each of our field managers wants on the Node."""
    own = {OwnedField("labels", key): value for key, value in facts.labels.items()}
    own |= {OwnedField("annotations", key): value for key, value in facts.annotations.items()}
    return {
        FIELD_MANAGER: own,
        MIRROR_FIELD_MANAGER: {OwnedField("labels", key): v for key, v in facts.mirrors.items()},
    }


def plan_apply(metadata: ManagedMetadata, manager: str, wanted: FieldValues) -> ApplyPlan:
    """Return what ``manager`` must apply to own the wanted fields, except those of other owners."""
    own_fields, live = owned_fields(metadata, manager), field_values(metadata)
    other_owners = owners(metadata, besides=manager)
    # A field that only others own is left to them even with the same value: shared ownership would cause a conflict at
    # their next change. A shared field is given up as soon as our value differs, because that would be a conflict.
    left_to_others = {
        field: other_owners[field]
        for field, value in wanted.items()
        if field in other_owners and (field not in own_fields or live.get(field) != value)
    }
    apply = {field: value for field, value in wanted.items() if field not in left_to_others}
    done = own_fields == set(apply) and all(live.get(field) == value for field, value in apply.items())
    return ApplyPlan(None if done else apply, left_to_others)
