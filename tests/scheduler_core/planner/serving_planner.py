"""A planner's service for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import yaml

from gputopo.crd.reservations import POOL
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.cache.events import WatchStatus
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.leader.context import PlannerConfig
from scheduler_core.planner.leader.queue import DEFAULT_TIMING
from scheduler_core.planner.leader.writer import ActionExecutor
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.service import PlannerService, ServiceParts
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.event_loop import Deliver, WatchSet
from tests.api_server import kubeconfig


class Elected:
    """An election that a test decides."""

    def __init__(self, holder: str | None = "me", trouble: str | None = None) -> None:
        self.is_leader, self.holder, self.error = holder == "me", holder, trouble
        self.renewed_at = float("-inf")


class Watch:
    """A watch set without watches."""

    def start(self) -> None:
        """No watches."""

    def stop(self) -> None:
        """No watches."""

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


def serving(
    writer: ActionExecutor, elected: Elected, watching: Callable[[Deliver], WatchSet] = lambda _: Watch()
) -> PlannerService:
    parts = ServiceParts("me", writer, elected, PolicyReload(None), watching, lambda _: None, PlannerMetrics())
    return PlannerService(PlannerConfig(POOL, "gputopo", CommitTerms(), DEFAULT_TIMING, LEVELS), parts)


async def until(said: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not said():  # noqa: ASYNC110  what a page acknowledge, which sets no event
            await asyncio.sleep(0.005)


def nowhere(folder: Path) -> ActionExecutor:
    """Return an executor whose API server is unavailable."""
    path = folder / "config"
    path.write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1", "s3cret")))
    return ActionExecutor(from_kubeconfig(PLANNER, str(path)), lambda: True, lambda: 0.0)
