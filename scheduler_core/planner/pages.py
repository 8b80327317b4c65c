"""``/gangs`` of the planner, beside what every program serves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp

from scheduler_core.planner.service import Service
from scheduler_core.planner.status import document
from scheduler_core.site import json_page, site


def pages(service: Service, registry: CollectorRegistry) -> ASGIApp:
    """The application."""

    def gangs() -> Mapping[str, Any]:
        return document(service.status(), time.time())

    return site(service.unready, registry, {"/gangs": json_page(gangs)}, service.unhealthy)
