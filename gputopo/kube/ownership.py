"""The owners of an object's labels and annotations, from ``metadata.managedFields``. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gputopo.kube.objects import ManagedFields, ManagedMetadata, ObjectMeta

_PREFIX = "f:"  # of a field's name, in fieldsV1


class OwnedField(NamedTuple):
    """A label or an annotation."""

    section: str  # "labels" or "annotations"
    key: str


def owned_fields(metadata: ManagedMetadata, manager: str) -> frozenset[OwnedField]:
    """Return the fields that a manager owns by server-side apply."""
    entries = [each for each in metadata.managed_fields if each.manager == manager and each.operation == "Apply"]
    return frozenset(field for entry in entries for field in _fields(entry))


def owns_other_fields(metadata: ManagedMetadata, manager: str) -> bool:
    """Return whether a manager owns more than labels and annotations by server-side apply."""
    entries = (each for each in metadata.managed_fields if each.manager == manager and each.operation == "Apply")
    return any(entry.fields.has_others for entry in entries)


def owners(metadata: ManagedMetadata, *, besides: str) -> dict[OwnedField, tuple[str, ...]]:
    """Return every field that managers other than ``besides`` have set, with the sorted names of the managers."""
    found: dict[OwnedField, set[str]] = {}
    for entry in metadata.managed_fields:
        if entry.manager != besides or entry.operation != "Apply":
            for field in _fields(entry):
                found.setdefault(field, set()).add(entry.manager)
    return {field: tuple(sorted(names)) for field, names in found.items()}


def field_values(metadata: ObjectMeta) -> dict[OwnedField, str]:
    """Return every label and annotation."""
    return {
        OwnedField(section, key): value
        for section, held in (("labels", metadata.labels), ("annotations", metadata.annotations))
        for key, value in held.items()
    }


def field_of(path: str) -> OwnedField | None:
    """Return the field of a conflict (".metadata.labels.nvidia.com/gpu.count"); None if it is another field."""
    for section in ("labels", "annotations"):
        prefix = f".metadata.{section}."
        if path.startswith(prefix):
            return OwnedField(section, path.removeprefix(prefix))
    return None


def _fields(entry: ManagedFields) -> Iterable[OwnedField]:
    owned_metadata = entry.fields.metadata
    for section, names in (("labels", owned_metadata.labels), ("annotations", owned_metadata.annotations)):
        for name in names:
            if name.startswith(_PREFIX):
                yield OwnedField(section, name.removeprefix(_PREFIX))
