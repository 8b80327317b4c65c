"""The ValidatingAdmissionPolicies about Events of planners and extenders. Pure.

RBAC allows a program to create Events about any object, in the name of any other program. The policies restrict an
account to Events about the kinds of objects that the program reports on, in the program's own name, with its own
reasons. kube-scheduler writes Events of its own: an extender that shares its account is not restricted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daemonset.validating import by_accounts, resource_rule, validating_policy
from gputopo.crd.reservations import RESERVATION_KIND
from gputopo.kube.events import MESSAGE_LENGTH
from gputopo.kube.rbac import EVENTS, PODS, RESERVATIONS
from scheduler_core.extender.pod_events import EVENT_REASONS
from scheduler_core.planner.leader.events import EventReason

_POD = f"{PODS.api_version} Pod"
_RESERVATION = f"{RESERVATIONS.api_version} {RESERVATION_KIND}"
_NAME_LENGTH = 253  # characters of names and UIDs


def planner_events() -> list[dict[str, Any]]:
    """Return the policy about Events of planners, and its binding."""
    return _policy("gputopo-planner", (_POD, _RESERVATION), [reason.value for reason in EventReason])


def extender_events() -> list[dict[str, Any]]:
    """Return the policy about Events of extenders with an account of their own, and its binding."""
    return _policy("gputopo-extender", (_POD,), EVENT_REASONS)


def _policy(account: str, kinds: Iterable[str], reasons: Iterable[str]) -> list[dict[str, Any]]:
    """Return the policy of an account, which has the name of the program. ``kinds``: API version and kind."""
    about = " + ' ' + ".join(f"variables.event.involvedObject.?{field}.orValue('')" for field in ("apiVersion", "kind"))
    rules = {
        "creates Events, and neither changes nor deletes them": "request.operation == 'CREATE'",
        f"reports Events about {' and '.join(kinds)} only": f"object == null || {about} in {list(kinds)}",
        f"reports Events in its own name, with the reasons {', '.join(reasons)}": (
            f"object == null || (variables.event.?reportingComponent.orValue('') == '{account}'\n"
            f"&& variables.event.?source.?component.orValue('') == '{account}'\n"
            f"&& variables.event.?reportingInstance.orValue('') == '{account}'\n"
            "&& variables.event.?source.?host.orValue('') == ''\n"
            f"&& variables.event.?reason.orValue('') in {list(reasons)})"
        ),
        # No text may fill the storage of the API server: each Event would be up to 1.5 MiB, for an hour.
        f"reports Events with at most {MESSAGE_LENGTH} characters of message and no further fields": (
            f"object == null || (variables.event.?message.orValue('').size() <= {MESSAGE_LENGTH}\n"
            "&& variables.event.?type.orValue('') in ['Normal', 'Warning']\n"
            f"&& variables.event.involvedObject.?name.orValue('').size() <= {_NAME_LENGTH}\n"
            f"&& variables.event.involvedObject.?uid.orValue('').size() <= {_NAME_LENGTH}\n"
            "&& variables.event.involvedObject.?resourceVersion.orValue('') == ''\n"
            "&& variables.event.involvedObject.?fieldPath.orValue('') == ''\n"
            "&& !has(variables.event.related) && variables.event.?action.orValue('') == ''\n"
            "&& !has(variables.event.metadata.labels) && !has(variables.event.metadata.annotations)\n"
            "&& !has(variables.event.metadata.finalizers) && !has(variables.event.metadata.ownerReferences))"
        ),
    }
    return validating_policy(
        f"{account}-events",
        resource_rule(["CREATE", "UPDATE", "DELETE"], EVENTS, "events"),
        {"by-the-program": by_accounts(account)},
        # The API server also checks the types with events.k8s.io/v1, which the requests are converted from.
        {"event": "dyn(object)"},
        (
            {"expression": text, "message": f"{account} {message}", "reason": "Forbidden"}
            for message, text in rules.items()
        ),
    )
