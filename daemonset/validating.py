"""Parts of ValidatingAdmissionPolicies: the policy with its binding, and expressions that several of them use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gputopo.kube.rbac import Resource

API_VERSION = "admissionregistration.k8s.io/v1"


def resource_rule(operations: Iterable[str], of: Resource, *resources: str) -> dict[str, Any]:
    """Return the rule that matches these operations on resources of a group and version.

    The version is explicit, because only then does the API server check the types of expressions.
    """
    found = {"apiGroups": [of.group], "apiVersions": [of.version], "operations": list(operations)}
    return {**found, "resources": list(resources)}


def validating_policy(
    name: str,
    rule: dict[str, Any],
    conditions: Mapping[str, str],
    variables: Mapping[str, str],
    validations: Iterable[Mapping[str, str]],
) -> list[dict[str, Any]]:
    """Return a policy and its binding; requests that the policy cannot evaluate are denied."""
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": _named(conditions),
        "variables": _named(variables),
        "validations": list(validations),
    }
    return [
        {"apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def by_accounts(*accounts: str) -> str:
    """Return the condition for these accounts in any namespace: an installation in another one is restricted too."""
    ends = [f"request.userInfo.username.endsWith(':{each}')" for each in accounts]
    either = ends[0] if len(ends) == 1 else f"({' || '.join(ends)})"
    return f"request.userInfo.username.startsWith('system:serviceaccount:') &&\n{either}"


def changed_keys(new: str, old: str) -> str:
    """Return the expression for the keys that a write adds, changes or removes, given two variables with maps."""
    return (
        f"variables.{new}.filter(key,\n"
        f"!(key in variables.{old}) || variables.{new}[key] != variables.{old}[key])\n"
        f"+ variables.{old}.filter(key, !(key in variables.{new}))"
    )


def _named(expressions: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]
