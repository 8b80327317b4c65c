"""The Grafana dashboards, one module each. ``daemonset.copies`` writes them as JSON."""

from __future__ import annotations

from collections.abc import Callable

from daemonset.dashboards import fleet, hardware, queues, scheduling
from daemonset.dashboards.model import Dashboard

DASHBOARDS: dict[str, Callable[[], Dashboard]] = {
    "gputopo-fleet": fleet.dashboard,
    "gputopo-scheduling": scheduling.dashboard,
    "gputopo-queues": queues.dashboard,
    "gputopo-hardware": hardware.dashboard,
}
"""File name without its suffix, which is also the unique ID in Grafana -> function that returns the dashboard."""
