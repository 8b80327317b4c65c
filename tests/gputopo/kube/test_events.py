"""An Event says what it is about, who says so and why, in what the API server takes."""

from __future__ import annotations

from datetime import UTC, datetime

from gputopo.kube.events import EventReporter, EventSubject, event_body
from gputopo.kube.rbac import NODES, PODS

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_an_event_about_a_node_is_in_the_default_namespace() -> None:
    made = event_body(
        EventSubject(NODES, "Node", "gpu-7", "u1"), EventReporter("agent", "gpu-7"), "GpuLost", "one", NOW, warning=True
    )

    assert made == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "gpu-7.18ea0da41e9d8000", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "gpu-7", "uid": "u1"},
        "reason": "GpuLost",
        "message": "one",
        "type": "Warning",
        "source": {"component": "agent", "host": "gpu-7"},
        "reportingComponent": "agent",
        "reportingInstance": "gpu-7",
        "firstTimestamp": "2026-11-21T12:00:00Z",
        "lastTimestamp": "2026-11-21T12:00:00Z",
        "count": 1,
    }


def test_names_and_messages_keep_within_what_the_api_server_takes() -> None:
    subject = EventSubject(PODS, "Pod", "p" * 253, "u1", "team")
    made = event_body(subject, EventReporter("extender"), "Well", "m" * 1025, NOW, warning=False)

    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (f"{'p' * 220}.18ea0da41e9d8000", "team")
    assert (made["message"], made["type"], made["reportingInstance"]) == (f"{'m' * 1023}…", "Normal", "extender")
