"""CustomResourceDefinitions from the types that producer and consumer share, so that the two never differ."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gputopo.labels.keys import API_GROUP

# What any property of a schema may keep; Kubernetes names and means them as JSON Schema does.
_KEPT = (
    "type", "enum", "required", "minimum", "minLength", "maxLength", "pattern", "minItems", "maxItems", "maxProperties",
)  # fmt: skip
_OWN = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


class CrdKind(NamedTuple):
    """What a custom resource is called, and what ``kubectl get`` shows of it."""

    kind: str
    plural: str
    version: str
    description: str
    columns: tuple[dict[str, Any], ...]
    namespaced: bool = False
    short: tuple[str, ...] = ()


def crd_definition(kind: CrdKind, schema: dict[str, Any], *, status: bool = False) -> dict[str, Any]:
    """The CustomResourceDefinition (apiextensions.k8s.io/v1). ``schema``: of its own fields, as ``structural`` has it.

    ``status``: it is written by a subresource of its own, and counts for no ``metadata.generation``.
    """
    singular = kind.kind.lower()
    names = {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": singular}
    whole = schema | {"properties": schema["properties"] | _OWN, "description": kind.description}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{API_GROUP}"},
        "spec": {
            "group": API_GROUP,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names | ({"shortNames": list(kind.short)} if kind.short else {}),
            "versions": [
                {
                    "name": kind.version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": whole},
                    **({"subresources": {"status": {}}} if status else {}),
                    "additionalPrinterColumns": list(kind.columns),
                }
            ],
        },
    }


def structural_schema(of: type[msgspec.Struct]) -> dict[str, Any]:
    """A type as a structural schema: no references, no ``anyOf`` with types, ``nullable`` (Kubernetes' rules)."""
    _, definitions = msgspec.json.schema_components([of], ref_template="{name}")
    return _structural(definitions[of.__name__], definitions)


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"]], definitions)
    if "anyOf" in schema:
        (only,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return _structural(only, definitions) | {"nullable": True}
    result: dict[str, Any] = {name: schema[name] for name in _KEPT if schema.get(name, []) != []}
    if "enum" in schema:  # of strings, as all of ours
        result["type"] = "string"
    if "properties" in schema:
        result["properties"] = {name: _structural(each, definitions) for name, each in schema["properties"].items()}
    if "additionalProperties" in schema:
        result["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    if "prefixItems" in schema:  # a pair of a name and a number: structural schemas have one schema for all items
        result["items"] = {"x-kubernetes-int-or-string": True}
    elif "items" in schema:
        result["items"] = _structural(schema["items"], definitions)
    return result
