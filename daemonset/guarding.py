"""The ValidatingAdmissionPolicy of the planner: what RBAC cannot say, which pods, and what of them. Pure.

RBAC lets the planner patch and delete any pod. It needs that of pods which its gate holds, or which it let go itself:
whoever takes its token over can touch no other.
"""

from __future__ import annotations

from typing import Any

from gputopo.labels import keys
from scheduler_core.gangs.owners import OWNERS

API_VERSION = "admissionregistration.k8s.io/v1"
NAME = "gputopo-planner-pods"
_RESERVATION = keys.POD_RESERVATION.key
# What of a pod's spec the API server lets be changed, but for the gates and the affinity.
_KEPT = (
    "containers", "initContainers", "tolerations", "nodeSelector", "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
)  # fmt: skip


def planner() -> list[dict[str, Any]]:
    """The policy, and its binding."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["UPDATE", "DELETE"],
        "resources": ["pods", "pods/*"],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "by-the-planner", "expression": _BY_THE_PLANNER}],
        "variables": [{"name": name, "expression": text} for name, text in _variables().items()],
        "validations": [
            {"expression": text, "message": f"gputopo's planner {message}", "reason": "Forbidden"}
            for message, text in _validations().items()
        ],
    }
    return [
        {"apiVersion": API_VERSION, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": NAME}, "spec": spec},
        {
            "apiVersion": API_VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    ]


# By its name in any namespace, so that an install in another one is bound as well.
_BY_THE_PLANNER = (
    "request.userInfo.username.startsWith('system:serviceaccount:') &&\n"
    "request.userInfo.username.endsWith(':gputopo-planner')"
)


def _variables() -> dict[str, str]:
    others = "spec.?schedulingGates.orValue([]).filter(each, each.name != '{}')"
    return {
        "isUpdate": "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''",
        "annotations": "object == null ? {} : object.metadata.?annotations.orValue({})",
        "oldAnnotations": "oldObject.metadata.?annotations.orValue({})",
        "finalizers": "object == null ? [] : object.metadata.?finalizers.orValue([])",
        "oldFinalizers": "oldObject.metadata.?finalizers.orValue([])",
        "gated": f"oldObject.spec.?schedulingGates.orValue([]).exists(each, each.name == '{keys.GATE}')",
        "letGo": f"'{_RESERVATION}' in variables.oldAnnotations",
        "others": f"object == null ? [] : object.{others.format(keys.GATE)}",
        "oldOthers": f"oldObject.{others.format(keys.GATE)}",
        "touched": (
            "variables.annotations.filter(key,\n"
            "!(key in variables.oldAnnotations) || variables.annotations[key] != variables.oldAnnotations[key])\n"
            "+ variables.oldAnnotations.filter(key, !(key in variables.annotations))"
        ),
    }


def _validations() -> dict[str, str]:
    written = [key.key for key in keys.WRITTEN_ON_PODS]
    stripped = sorted({owner.finalizer for owner in OWNERS.values() if owner.finalizer is not None})
    same = " && ".join(f"object.spec.?{field} == oldObject.spec.?{field}" for field in _KEPT)
    return {
        "changes pods, and none of their subresources": "request.operation == 'DELETE' || variables.isUpdate",
        "deletes pods that it let go, and no others": "request.operation != 'DELETE' || variables.letGo",
        "changes pods that its gate holds or that it let go, and no others": (
            "!variables.isUpdate || variables.gated || variables.letGo"
        ),
        "changes its own annotations of a pod, and no label or owner": (
            f"!variables.isUpdate || (variables.touched.all(key, key in {written})\n"
            "&& object.metadata.?labels == oldObject.metadata.?labels\n"
            "&& object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)"
        ),
        f"takes off no finalizer of a pod but {', '.join(stripped)}, and adds none": (
            "!variables.isUpdate || (variables.finalizers.all(each, each in variables.oldFinalizers)\n"
            f"&& variables.oldFinalizers.all(each, each in variables.finalizers || each in {stripped}))"
        ),
        "changes the affinity of a pod and its own gate, and nothing else of its spec": (
            f"!variables.isUpdate || (variables.others == variables.oldOthers\n&& {same})"
        ),
    }
