"""Types of fields that several parts of the policy file share, as pydantic reads them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from gputopo.durations import parse_duration
from scheduler_core.policy.workload_class import WorkloadClass

_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?", re.ASCII)
_MAX_NAMESPACE = 63  # characters


class FileModel(BaseModel):
    """A part of a policy file."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


def as_list(value: object) -> object:
    """Return a single value as a list."""
    return [value] if isinstance(value, str) else value


def _namespace(name: str) -> str:
    """Refuse what is no namespace: a rule for it would match no pod, and so protect none."""
    if len(name) > _MAX_NAMESPACE or not _NAMESPACE.fullmatch(name):
        raise ValueError("should be the name of one namespace, like team-a; patterns are not supported")
    return name


def _seconds(value: object) -> object:
    found = parse_duration(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("should be a duration like 90s, 15m or 1h")
    return found


Name = Annotated[str, StringConstraints(min_length=1, max_length=253, strict=True)]
Names = Annotated[
    tuple[Name, ...], BeforeValidator(as_list, json_schema_input_type=Name | tuple[Name, ...]), Field(min_length=1)
]
Namespaces = Annotated[
    tuple[Annotated[Name, AfterValidator(_namespace)], ...],
    BeforeValidator(as_list, json_schema_input_type=Name | tuple[Name, ...]),
    Field(min_length=1),
]
WorkloadClasses = Annotated[
    tuple[WorkloadClass, ...],
    BeforeValidator(as_list, json_schema_input_type=WorkloadClass | tuple[WorkloadClass, ...]),
    Field(min_length=1),
]
Duration = Annotated[float, BeforeValidator(_seconds, json_schema_input_type=str)]
Count = Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
