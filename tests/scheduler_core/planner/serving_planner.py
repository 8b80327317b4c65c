"""A planner's service on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import yaml

from gputopo.crd.reservations import POOL
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.cache.events import WatchStatus
from scheduler_core.planner.commit.state import Terms
from scheduler_core.planner.leader.context import Settled
from scheduler_core.planner.leader.queue import USUAL
from scheduler_core.planner.leader.writer import Writer
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.service import Parts, Service
from scheduler_core.policy.reload import PolicyReload
from scheduler_core.runtime.event_loop import Deliver, Watching
from tests.api_server import kubeconfig


class Elected:
    """By a test."""

    def __init__(self, holder: str | None = "me", trouble: str | None = None) -> None:
        self.holds, self.holder, self.trouble = holder == "me", holder, trouble


class Watch:
    """Sees nothing."""

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing runs."""

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


def serving(writer: Writer, elected: Elected, watching: Callable[[Deliver], Watching] = lambda _: Watch()) -> Service:
    parts = Parts("me", writer, elected, PolicyReload(None), watching, lambda _: None, Metrics())
    return Service(Settled(POOL, "gputopo", Terms(), USUAL, LEVELS), parts)


async def until(said: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not said():  # noqa: ASYNC110  what a page says, which sets no event
            await asyncio.sleep(0.005)


def nowhere(folder: Path) -> Writer:
    """Its API server is away."""
    path = folder / "config"
    path.write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1", "s3cret")))
    return Writer(from_kubeconfig(PLANNER, str(path)), lambda: True, lambda: 0.0)
