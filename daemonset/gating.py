"""The admission policies that gate the pods of gangs at creation and keep the gate. Pure: from keys and rules.

The expressions are generated from the rules of ``scheduler_core.planner.gang.conventions``. Only pods that have opted
in are gated: by gputopo's scheduler name or by a labelled namespace. Pods of other schedulers are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import yaml

from daemonset.validating import API_VERSION, resource_rule, validating_policy
from gputopo.kube.rbac import PODS
from gputopo.labels import keys
from gputopo.labels.keys import SCHEDULER_NAME, STOCK_SCHEDULER
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS, GangConvention

# Labels and annotations, in which the rules look for keys. In a list with one element, to bind it to a variable in CEL.
_METADATA = "[[object.metadata.?labels.orValue({}), object.metadata.?annotations.orValue({})]]"


class Gated(NamedTuple):
    """A policy that gates pods."""

    name: str  # of the policy
    schedulers: tuple[str, ...]  # scheduler names of the pods
    which: str  # expression that selects among them
    namespaces: dict[str, str] | None = None  # labels that the namespace must have; None: any namespace


def gang_policies() -> list[dict[str, Any]]:
    """Return policies for pods of gangs and planned pods, of gputopo's scheduler or of a labelled namespace."""
    named = (_has([keys.POD_GANG.key]), _says(keys.POD_PLANNED.key, ["true"]), *map(_named_by, GANG_CONVENTIONS))
    which = f"{_METADATA}.exists(said,\n{_either(named)})"
    label = {keys.GANGS_ENABLED.key: keys.GANGS_ENABLED.example}
    ours = Gated("gputopo-gangs", (SCHEDULER_NAME,), which)
    labelled = Gated("gputopo-gangs-of-namespaces", (SCHEDULER_NAME, STOCK_SCHEDULER), which, label)
    return [*_policy(ours), *_policy(labelled)]


def planned_pod_policy() -> list[dict[str, Any]]:
    """Return the policy for all GPU pods of gputopo's scheduler."""
    gpu = f"name in {_list(keys.GPU_RESOURCES)} || name.startsWith('{keys.MIG_RESOURCE_PREFIX}')"
    asks = f"each.?resources.?limits.orValue({{}}).exists(name, {gpu})"
    which = (f"object.spec.{of}.exists(each, {asks})" for of in ("containers", "?initContainers.orValue([])"))
    return _policy(Gated("gputopo-planned-all", (SCHEDULER_NAME,), _either(which)))


def gate_removal_policy() -> list[dict[str, Any]]:
    """Return the policy by which no tenant removes the gate of its own pod, so that the pod is placed without a plan.

    The planner and `gputopo release` may: both need the right to patch pods in all namespaces.
    """
    with_gate = f"spec.?schedulingGates.orValue([]).exists(each, each.name == '{keys.GATE}')"
    everywhere = "authorizer.group('').resource('pods').check('patch').allowed()"
    message = "only gputopo's planner, and users who may patch pods in all namespaces, remove the gate of a pod"
    return validating_policy(
        "gputopo-gate-removal",
        resource_rule(["UPDATE"], PODS, "pods"),
        {"the-gate-is-removed": f"oldObject.{with_gate} &&\n!object.{with_gate}"},
        {},
        [{"expression": everywhere, "message": message, "reason": "Forbidden"}],
    )


def manifest(documents: Iterable[dict[str, Any]]) -> str:
    """Return the documents as YAML, with multi-line expressions as blocks."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


def _policy(gated: Gated) -> list[dict[str, Any]]:
    gate = f"Object.spec.schedulingGates{{name: '{keys.GATE}'}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    conditions = {
        "not-gated-yet": f"!object.spec.?schedulingGates.orValue([]).exists(each, each.name == '{keys.GATE}')",
        # kube-scheduler does not place such a pod, and it cannot be gated.
        "not-on-a-node-already": "object.spec.?nodeName.orValue('') == ''",
        "opted-in": f"object.spec.?schedulerName.orValue('') in {_list(gated.schedulers)}",
        "of-those-that-are-gated": gated.which,
    }
    selector = {} if gated.namespaces is None else {"namespaceSelector": {"matchLabels": gated.namespaces}}
    spec = {
        # If one member were not gated, a part of the gang would start.
        "failurePolicy": "Fail",
        # A later webhook may set the scheduler name or the annotations of the pod.
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"resourceRules": [rule], **selector},
        "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {"expression": f"Object{{spec: Object.spec{{schedulingGates: [{gate}]}}}}"},
            }
        ],
    }
    return [
        {
            "apiVersion": API_VERSION,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": gated.name},
            "spec": spec,
        },
        {
            "apiVersion": API_VERSION,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": gated.name},
            "spec": {"policyName": gated.name},
        },
    ]


def _named_by(rule: GangConvention) -> str:
    """Return the expression of a rule: whether it finds a gang in a pod."""
    terms = ["has(object.spec.schedulingGroup)" if rule.native else _has(rule.keys, "each[?'{}'].orValue('') != ''")]
    if rule.needs:
        terms.append(_has(rule.needs))
    terms += [f"!{_says(key, values)}" for key, values in rule.unless]
    return " && ".join(terms)


def _has(names: Iterable[str], test: str = "'{}' in each") -> str:
    """Return the expression that looks up these keys: to read all annotations for each of them is slow."""
    return f"said.exists(each, {' || '.join(map(test.format, names))})"


def _says(key: str, values: Iterable[str]) -> str:
    return f"said.exists(each, each[?'{key}'].orValue('') in {_list(values)})"


def _either(expressions: Iterable[str]) -> str:
    return "\n|| ".join(expressions)


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(repr(each) for each in names)}]"


class _Dumper(yaml.SafeDumper):
    """Writes multi-line texts as blocks."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
