"""Events, which ``kubectl describe`` shows at their object. Pure.

Source: ``core/v1`` Event, and client-go's ``tools/record``, which names Events in the same way.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from gputopo.kube.rbac import EVENTS, Resource
from gputopo.timestamps import format_timestamp

CLUSTER_SCOPED = "default"  # the namespace of Events about cluster-scoped objects
MESSAGE_LENGTH = 1024  # characters, at most
_NAME = 220  # maximum characters of the object's name; the Event's name may have 253


class EventSubject(NamedTuple):
    """The object that an Event is about."""

    resource: Resource
    kind: str  # "Node"
    name: str
    uid: str
    namespace: str | None = None  # None: it is cluster-scoped


class EventReporter(NamedTuple):
    """The reporting program."""

    component: str
    host: str | None = None  # the node that it runs on, if relevant


def event_body(
    subject: EventSubject, reporter: EventReporter, reason: str, message: str, now: datetime, *, warning: bool
) -> dict[str, Any]:
    """The Event as it is sent. ``reason``: one word, for machines; a message that is too long is cut."""
    time = format_timestamp(now.timestamp())
    involved = {"apiVersion": subject.resource.api_version, "kind": subject.kind, "name": subject.name}
    scope = {} if subject.namespace is None else {"namespace": subject.namespace}
    host = {} if reporter.host is None else {"host": reporter.host}
    return {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {
            # A unique name: the time in nanoseconds, in hexadecimal.
            "name": f"{subject.name[:_NAME]}.{int(now.timestamp() * 1e6) * 1000:x}",
            "namespace": subject.namespace or CLUSTER_SCOPED,
        },
        "involvedObject": {**involved, **scope, "uid": subject.uid},
        "reason": reason,
        "message": message if len(message) <= MESSAGE_LENGTH else message[: MESSAGE_LENGTH - 1] + "…",
        "type": "Warning" if warning else "Normal",
        "source": {"component": reporter.component, **host},
        "reportingComponent": reporter.component,
        "reportingInstance": reporter.host or reporter.component,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }
