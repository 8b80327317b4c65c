"""The text of a fault that pydantic found in a file, in the terms of the file. Pure."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

_WORDING = {
    "missing": "is missing",
    "model_type": "should be a mapping of keys to values",
    "dict_type": "should be a mapping of keys to values",
    "tuple_type": "should be a list",
    "too_short": "should name at least one",
}  # instead of pydantic's messages, which name Python types
_VALUE_WORDING = {
    "string_type": "should be text, in quotes",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
}  # the same, beside the quoted value
_QUOTED = 60  # characters of a value in a message


def fault_text(error: Any, root: type[BaseModel]) -> str:
    """Return the text of a pydantic error in the terms of the file."""
    where = ".".join(str(part) for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key; allowed: {', '.join(_fields(root, error['loc'][:-1]))}"
    if error["type"] in _WORDING:
        return f"{where} {_WORDING[error['type']]}".strip()
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("String ")
    message = _VALUE_WORDING.get(error["type"], message)
    quoted = repr(error["input"])
    quoted = quoted if len(quoted) <= _QUOTED else f"{quoted[:_QUOTED]}..."
    shown = "" if isinstance(error["input"], dict | list | BaseModel) else quoted + " "
    return f"{where}: {shown}{message}".removeprefix(": ")


def _fields(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Return the keys that are allowed at this path."""
    model: Any = root
    for part in loc:
        if isinstance(part, str):
            fields = {field.alias: field.annotation for field in model.model_fields.values()}
            model = _model_in(fields[part])
    return [field.alias or "" for field in model.model_fields.values()]


def _model_in(annotation: Any) -> Any:
    """Return the model in ``Model``, ``Model | None``, ``tuple[Model, ...]`` or nested types of these."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
