"""CustomResourceDefinitions, generated from the types that writer and reader share."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from gputopo.labels.keys import API_GROUP

# Keywords of JSON Schema that Kubernetes supports with the same meaning.
_KEYWORDS = (
    "type", "enum", "required", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems", "maxItems",
    "maxProperties",
)  # fmt: skip
_OBJECT_FIELDS = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


class CrdKind(NamedTuple):
    """The names of a custom resource, and the columns of ``kubectl get``."""

    kind: str
    plural: str
    version: str
    description: str
    columns: tuple[dict[str, Any], ...]
    namespaced: bool = False
    short: tuple[str, ...] = ()


def crd_definition(kind: CrdKind, schema: dict[str, Any], *, status: bool = False) -> dict[str, Any]:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1).

    ``schema`` is the schema of its own fields, from ``structural``. With ``status`` it has the status subresource: a
    change of the status does not increase ``metadata.generation``.
    """
    singular = kind.kind.lower()
    names = {"kind": kind.kind, "listKind": f"{kind.kind}List", "plural": kind.plural, "singular": singular}
    whole = schema | {"properties": schema["properties"] | _OBJECT_FIELDS, "description": kind.description}
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
    """Return a type as a structural schema: no references, no ``anyOf``, but ``nullable`` (Kubernetes' rules)."""
    _, definitions = msgspec.json.schema_components([of], ref_template="{name}")
    return _structural(definitions[of.__name__], definitions)


def _structural(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"]], definitions)
    if "anyOf" in schema:
        (not_null,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return _structural(not_null, definitions) | {"nullable": True}
    result: dict[str, Any] = {name: schema[name] for name in _KEYWORDS if schema.get(name, []) != []}
    if "enum" in schema:  # all enums have string values
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
