"""Plans the server-side apply of each field manager, given the current Node. Pure.

An apply carries all fields that a manager wants to own: a field that it leaves out is removed, or stays with its other
owners. So a write always has all fields, and no write is made where they are current already.

The agent's own keys are forced if another client owns them, because readers rely on them. Mirrors are left to other
owners.
"""

from __future__ import annotations

from typing import NamedTuple

from agent.publish import RestoredField
from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import OwnedField, field_values, owned_fields, owners
from gputopo.labels import EncodedTopology
from gputopo.labels.keys import FIELD_MANAGER, is_node_annotation, is_node_label

FieldValues = dict[OwnedField, str]
FieldOwners = dict[OwnedField, tuple[str, ...]]


class ApplyPlan(NamedTuple):
    """The planned apply of a field manager that leaves fields to other owners."""

    apply: FieldValues | None  # all fields that the manager will own; None: already current
    others: FieldOwners  # wanted fields of other owners, with their names


class ForcedPlan(NamedTuple):
    """The planned write of the agent's own keys."""

    apply: FieldValues | None  # to apply by force; None: already current
    remove: tuple[OwnedField, ...]  # own keys that other clients added
    restored: tuple[RestoredField, ...]  # own keys that other clients changed, deleted or added


def own_values(facts: EncodedTopology) -> FieldValues:
    """Return the values of the agent's own keys."""
    labels = {OwnedField("labels", key): value for key, value in facts.labels.items()}
    return labels | {OwnedField("annotations", key): value for key, value in facts.annotations.items()}


def mirror_values(facts: EncodedTopology) -> FieldValues:
    """Return the values of the mirrors."""
    return {OwnedField("labels", key): value for key, value in facts.mirrors.items()}


def plan_forced(metadata: ManagedMetadata, wanted: FieldValues, published: FieldValues) -> ForcedPlan:
    """Return the write after which the Node has the wanted own keys and no others.

    ``published``: what this process has published before; () where a wanted key of it is missing, it was deleted.
    """
    own_fields, live = owned_fields(metadata, FIELD_MANAGER), field_values(metadata)
    other_owners = owners(metadata, besides=FIELD_MANAGER)
    changed = {
        field: other_owners[field]
        for field, value in wanted.items()
        if field in other_owners and live.get(field) != value
    }
    deleted: FieldOwners = {field: () for field in wanted if field in published and field not in live}
    added = {
        field: other_owners.get(field, ())
        for field in live
        if field not in wanted and _is_own(field) and (field not in own_fields or field in other_owners)
    }
    done = own_fields == set(wanted) and all(live.get(field) == value for field, value in wanted.items())
    restored = (RestoredField(field.key, managers) for field, managers in (changed | deleted | added).items())
    return ForcedPlan(None if done else wanted, tuple(sorted(added)), tuple(sorted(restored)))


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


def _is_own(field: OwnedField) -> bool:
    return is_node_label(field.key) if field.section == "labels" else is_node_annotation(field.key)
