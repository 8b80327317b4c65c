"""The ValidatingAdmissionPolicies about planners, extenders and pods: restrictions that RBAC cannot express. Pure.

``planner``: RBAC allows the planner to patch and delete any pod. The policy restricts that to pods with gputopo's
scheduling gate and pods that the planner has ungated, so that a stolen token of the planner cannot change other pods.

``pod_annotations``: RBAC allows all users who may create or patch pods to write any annotation. The planner's
annotations say where a pod was placed, so the policy allows only the planner to write them.

``extender_ledgers``: RBAC allows an extender to write the whole status of a ledger. The policy restricts it to the
entry of the pod that its token names, so that a stolen token acknowledges nothing for other extenders.

``leases``: RBAC cannot restrict ``create`` by name, and the role of kube-schedulers allows the Lease of the cluster's
own scheduler. The policy restricts an account to the Lease of its own name, in its own namespace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daemonset.validating import by_accounts, changed_keys, resource_rule, validating_policy
from gputopo.kube.rbac import LEASES, LEDGERS, PODS
from gputopo.labels import keys
from scheduler_core.planner.commit.controllers import CONTROLLER_KINDS

NAME = "gputopo-planner-pods"
ANNOTATIONS_NAME = "gputopo-pod-annotations"
EXTENDERS = ("gputopo-scheduler", "gputopo-extender")  # accounts that extenders run as
_WRITTEN = [key.key for key in keys.WRITTEN_ON_PODS]
_RESERVATION = keys.POD_RESERVATION.key
# kube-apiserver evaluates expressions over maps and lists in quadratic time: 8 s for the 40,000 annotations of one pod.
_MAX_ANNOTATIONS, _MAX_ITEMS = 1_000, 100  # ``_MAX_ITEMS``: of finalizers, and of scheduling gates
_MAX_ENTRIES, _MAX_BLOCKED = 32, 1_000  # of an extender in a ledger, which etcd limits to 1.5 MB
# The mutable fields of a pod's spec, except the gates and the affinity.
_UNCHANGED_FIELDS = (
    "containers", "initContainers", "tolerations", "nodeSelector", "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
)  # fmt: skip


def planner_policy() -> list[dict[str, Any]]:
    """Return the policy and its binding."""
    return _policy(
        NAME,
        resource_rule(["UPDATE", "DELETE"], PODS, "pods", "pods/*"),
        {"by-the-planner": by_accounts("gputopo-planner")},
        _variables(),
        {f"gputopo's planner {message}": text for message, text in _validations().items()},
    )


def pod_annotations() -> list[dict[str, Any]]:
    """Return the policy by which only the planner sets, changes or removes its annotations on pods, and its binding.

    The subresources are matched too: an update of ``pods/status`` may change annotations, and those of a Binding are
    copied to the pod.
    """
    conditions = {"with-annotations-of-the-planner": _ANNOTATED, "not-by-the-planner": _NOT_BY_THE_PLANNER}
    values = {
        "annotations": "object.metadata.?annotations.orValue({})",
        "oldAnnotations": "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})",
    }
    same = f"{_WRITTEN}.all(key, variables.annotations[?key] == variables.oldAnnotations[?key])"
    message = f"only gputopo's planner sets, changes or removes the annotations {', '.join(_WRITTEN)} of a pod"
    rule = resource_rule(["CREATE", "UPDATE"], PODS, "pods", "pods/*", "bindings")
    return _policy(ANNOTATIONS_NAME, rule, conditions, values, {message: same})


def extender_ledgers() -> list[dict[str, Any]]:
    """Return the policy that restricts an extender to its own entry in the status of ledgers, and its binding."""
    values = {
        "pod": "request.userInfo.?extra[?'authentication.kubernetes.io/pod-name'].orValue([])",
        "own": f"{_NAMESPACE} + '/' + variables.pod.join()",
        "isStatus": "request.operation == 'UPDATE' && request.?subResource.orValue('') == 'status'",
        "acks": "object == null ? {} : object.?status.?extenders.orValue({})",
        "oldAcks": "oldObject == null ? {} : oldObject.?status.?extenders.orValue({})",
        "touched": changed_keys("acks", "oldAcks"),
        # Entries that the request sets; after a crash an extender registers beside its previous processes.
        "set": "variables.touched.filter(id, id in variables.acks)",
    }
    own = " && ".join(
        f"(!(id in variables.{acks}) || variables.{acks}[id].?pod.orValue('') == variables.own)"
        for acks in ("acks", "oldAcks")
    )
    validations = {
        "gputopo's extender changes only the status of a ledger": "variables.isStatus",
        "gputopo's extender needs the token of its pod: this token names no pod": "variables.pod.size() == 1",
        "gputopo's extender changes only entries of the pod that its token names": (
            f"!variables.isStatus || variables.touched.all(id, {own})"
        ),
        f"gputopo's extender blocks at most {_MAX_BLOCKED:,} reservations, and acknowledges no future generation": (
            "!variables.isStatus || variables.set.all(id,\n"
            f"variables.acks[id].?blocked.orValue([]).size() <= {_MAX_BLOCKED}\n"
            "&& variables.acks[id].?generation.orValue(0) <= object.metadata.generation)"
        ),
        f"gputopo's extender has at most {_MAX_ENTRIES} entries in a ledger": (
            "!variables.isStatus || variables.set.size() == 0 ||\n"
            f"variables.acks.filter(id, variables.acks[id].?pod.orValue('') == variables.own).size() <= {_MAX_ENTRIES}"
        ),
    }
    rule = resource_rule(["CREATE", "UPDATE", "DELETE"], LEDGERS, LEDGERS.plural, f"{LEDGERS.plural}/*")
    return _policy("gputopo-extender-ledgers", rule, {"by-an-extender": by_accounts(*EXTENDERS)}, values, validations)


def leases(name: str, *accounts: str) -> list[dict[str, Any]]:
    """Return the policy that restricts each account to the Lease of its own name and namespace, and its binding."""
    values = {
        "lease": "object == null ? oldObject.metadata : object.metadata",
        "account": "request.userInfo.username.split(':')",
    }
    own = "variables.lease.name == variables.account[3] && variables.lease.namespace == variables.account[2]"
    rule = resource_rule(["CREATE", "UPDATE", "DELETE"], LEASES, "leases")
    message = f"{' and '.join(accounts)} may write only the Lease of that name, in the account's namespace"
    return _policy(name, rule, {"by-these-accounts": by_accounts(*accounts)}, values, {message: own})


def _policy(
    name: str,
    rule: dict[str, Any],
    conditions: Mapping[str, str],
    variables: Mapping[str, str],
    validations: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return a policy and its binding; requests that it cannot evaluate are denied. ``validations``: by message."""
    denials = ({"expression": text, "message": message, "reason": "Forbidden"} for message, text in validations.items())
    return validating_policy(name, rule, conditions, variables, denials)


_NAMESPACE = "request.userInfo.username.split(':')[2]"
# A tenant may create a service account with this name in its own namespace, but cannot give it the right to write the
# ledger. The name is compared first, so that the authorizer is called only for accounts with this name.
_NOT_BY_THE_PLANNER = (
    f"!({by_accounts('gputopo-planner')} &&\n"
    f"authorizer.group('{LEDGERS.group}').resource('{LEDGERS.plural}').check('update').allowed())"
)
_ANNOTATED = (
    "[object, oldObject].exists(each, each != null &&\n"
    f"{_WRITTEN}.exists(key, key in each.metadata.?annotations.orValue({{}})))"
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
        "ungated": f"'{_RESERVATION}' in variables.oldAnnotations",
        "others": f"object == null ? [] : object.{others.format(keys.GATE)}",
        "oldOthers": f"oldObject.{others.format(keys.GATE)}",
        "touched": changed_keys("annotations", "oldAnnotations"),
        "isSmall": _size_limits(),
    }


def _size_limits() -> str:
    """Return the condition that the pod is small enough to compare it before and after the write."""
    sizes = {
        "variables.annotations": _MAX_ANNOTATIONS,
        "variables.oldAnnotations": _MAX_ANNOTATIONS,
        "variables.finalizers": _MAX_ITEMS,
        "variables.oldFinalizers": _MAX_ITEMS,
        "oldObject.spec.?schedulingGates.orValue([])": _MAX_ITEMS,  # an update adds none
    }
    return " &&\n".join(f"{each}.size() <= {most}" for each, most in sizes.items())


def _validations() -> dict[str, str]:
    stripped = sorted({owner.finalizer for owner in CONTROLLER_KINDS.values() if owner.finalizer is not None})
    same = " && ".join(f"object.spec.?{field} == oldObject.spec.?{field}" for field in _UNCHANGED_FIELDS)
    limits = f"{_MAX_ANNOTATIONS:,} annotations, {_MAX_ITEMS} finalizers and {_MAX_ITEMS} scheduling gates"
    changes = {
        "changes only pods that it gates or ungated": "variables.gated || variables.ungated",
        "changes only its own annotations of a pod, not labels or owners": (
            f"variables.touched.all(key, key in {_WRITTEN})\n"
            "&& object.metadata.?labels == oldObject.metadata.?labels\n"
            "&& object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
        ),
        f"removes only the finalizers {', '.join(stripped)} of a pod, and adds none": (
            "variables.finalizers.all(each, each in variables.oldFinalizers)\n"
            f"&& variables.oldFinalizers.all(each, each in variables.finalizers || each in {stripped})"
        ),
        "changes only the affinity of a pod and its own gate, and nothing else in its spec": (
            f"variables.others == variables.oldOthers\n&& {same}"
        ),
    }
    return {
        "changes only pods, not their subresources": "request.operation == 'DELETE' || variables.isUpdate",
        "deletes only pods that it ungated": "request.operation != 'DELETE' || variables.ungated",
        f"changes only pods with at most {limits}": "!variables.isUpdate || variables.isSmall",
        # Larger pods are not compared: the validation above denies their change.
        **{message: f"!variables.isUpdate || !variables.isSmall || ({text})" for message, text in changes.items()},
    }
