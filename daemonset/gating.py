"""The MutatingAdmissionPolicies that gate the pods of gangs as they are created. Pure: generated from keys and rules.

Which pods name a gang is what ``scheduler_core.planner.gang.conventions`` says: its rules, as expressions. A pod is
gated only where it opted in, by our scheduler's name or by a labelled namespace: what another scheduler places is never
touched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import yaml

from gputopo.labels import keys
from gputopo.labels.keys import SCHEDULER_NAME
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS, GangConvention

API_VERSION = "admissionregistration.k8s.io/v1"
STOCK_SCHEDULER = "default-scheduler"  # what the API server fills in where a pod names none
# Labels and annotations, as the rules look for keys. A list of that one thing, since CEL has no other way to name it.
_SAID = "[[object.metadata.?labels.orValue({}), object.metadata.?annotations.orValue({})]]"


class Gated(NamedTuple):
    """Some pods that are gated."""

    name: str  # of the policy
    schedulers: tuple[str, ...]  # whose pods
    which: str  # of them: those for which this expression holds
    namespaces: dict[str, str] | None = None  # labels that the namespace must have; None: any namespace


def gangs() -> list[dict[str, Any]]:
    """For pods that name a gang, or are to be planned, of our scheduler or of a labelled namespace."""
    named = (_has([keys.POD_GANG.key]), _says(keys.POD_PLANNED.key, ["true"]), *map(_named_by, GANG_CONVENTIONS))
    which = f"{_SAID}.exists(said,\n{_either(named)})"
    label = {keys.GANGS_ENABLED.key: keys.GANGS_ENABLED.example}
    ours = Gated("gputopo-gangs", (SCHEDULER_NAME,), which)
    labelled = Gated("gputopo-gangs-of-namespaces", (SCHEDULER_NAME, STOCK_SCHEDULER), which, label)
    return [*_policy(ours), *_policy(labelled)]


def planned() -> list[dict[str, Any]]:
    """For all pods with GPUs of our scheduler."""
    gpu = f"name in {_list(keys.GPU_RESOURCES)} || name.startsWith('{keys.MIG_RESOURCE_PREFIX}')"
    asks = f"each.?resources.?limits.orValue({{}}).exists(name, {gpu})"
    which = (f"object.spec.{of}.exists(each, {asks})" for of in ("containers", "?initContainers.orValue([])"))
    return _policy(Gated("gputopo-planned-all", (SCHEDULER_NAME,), _either(which)))


def manifest(documents: Iterable[dict[str, Any]]) -> str:
    """As YAML, with expressions as they are read best."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=1000)


def _policy(gated: Gated) -> list[dict[str, Any]]:
    gate = f"Object.spec.schedulingGates{{name: '{keys.GATE}'}}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    conditions = {
        "not-gated-yet": f"!object.spec.?schedulingGates.orValue([]).exists(each, each.name == '{keys.GATE}')",
        # A DaemonSet's, say: kube-scheduler never sees it, and it cannot be gated.
        "not-on-a-node-already": "object.spec.?nodeName.orValue('') == ''",
        "opted-in": f"object.spec.?schedulerName.orValue('') in {_list(gated.schedulers)}",
        "of-those-that-are-gated": gated.which,
    }
    selector = {} if gated.namespaces is None else {"namespaceSelector": {"matchLabels": gated.namespaces}}
    spec = {
        # A gang of which one member slipped through would start in part.
        "failurePolicy": "Fail",
        # A webhook that comes later may give the pod its scheduler or its annotations.
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
    """Whether a pod is known as a gang's by a rule."""
    terms = ["has(object.spec.schedulingGroup)" if rule.native else _has(rule.keys, " && each[key] != ''")]
    if rule.needs:
        terms.append(_has(rule.needs))
    terms += [f"!{_says(key, values)}" for key, values in rule.unless]
    return " && ".join(terms)


def _has(names: Iterable[str], more: str = "") -> str:
    return f"said.exists(each, each.exists(key, key in {_list(names)}{more}))"


def _says(key: str, values: Iterable[str]) -> str:
    return f"said.exists(each, each[?'{key}'].orValue('') in {_list(values)})"


def _either(expressions: Iterable[str]) -> str:
    return "\n|| ".join(expressions)


def _list(names: Iterable[str]) -> str:
    return f"[{', '.join(repr(each) for each in names)}]"


class _Dumper(yaml.SafeDumper):
    """Expressions of several lines stay so."""


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
