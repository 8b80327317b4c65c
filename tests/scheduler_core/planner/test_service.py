"""The planner at work, with an API server over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gputopo.kube.access import PLANNER
from gputopo.kube.connect import from_kubeconfig
from gputopo.labels.reservations import POOL
from scheduler_core.gangs.planning import LEVELS
from scheduler_core.gangs.queue import USUAL
from scheduler_core.gangs.world import Terms
from scheduler_core.planner.given import Settled
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.service import Parts, Service
from scheduler_core.planner.writer import Writer
from scheduler_core.policy_reload import PolicyReload
from scheduler_core.sightings import WatchStatus
from tests.api_server import Answer, Asked, api_server

PATH = "/apis/gputopo.io/v1alpha1/placementledgers"
# What kube-apiserver says of a kind that it does not know: no Status, and no object's name.
UNKNOWN = "POST /apis/gputopo.io/v1alpha1/placementledgers: 404: 404 page not found"


class Cluster:
    """Knows of ledgers once they were applied, and of nothing else."""

    def __init__(self) -> None:
        self.applied = False

    def answer(self, asked: Asked) -> Answer:
        if not self.applied:
            return Answer("404 page not found", 404)
        if asked.method == "GET":
            return Answer({"kind": "Status", "message": "not found", "details": {"name": POOL}}, 404)
        return Answer({"metadata": {"name": POOL, "uid": "u", "resourceVersion": "1", "generation": 1}}, 201)


class Elected:
    """By a test."""

    holds = True
    holder: str | None = "me"
    trouble: str | None = None


class Watch:
    """Sees nothing."""

    def start(self) -> None:
        """Nothing runs."""

    def stop(self) -> None:
        """Nothing runs."""

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        return ()


async def until(said: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not said():  # noqa: ASYNC110  what a page says, which sets no event
            await asyncio.sleep(0.005)


async def again(service: Service, elected: Elected) -> None:
    """The Lease is lost, and another term begins."""
    elected.holds = False
    service.tick()
    elected.holds = True
    service.tick()


def test_a_ledger_that_the_api_server_does_not_know_is_warned_of_once_and_readyz_says_what_to_apply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "scheduler_core.planner.service")
    cluster, elected = Cluster(), Elected()

    def warned() -> list[Any]:
        return [vars(each)["fields"] for each in caplog.records]

    async def follow(service: Service, posts: Callable[[], int]) -> None:
        told = f"the API server does not serve placementledgers ({UNKNOWN}): apply daemonset/scheduler/planner"
        with service.watched(Watch()):
            service.tick()
            assert service.unready() == "this planner has not taken over the ledger yet"
            await until(lambda: service.unready() == told)
            await again(service, elected)
            await until(lambda: posts() == 2)
            assert service.unready() == told

            cluster.applied = True
            await again(service, elected)
            await until(lambda: (service.unready() or "").startswith("gputopo has not yet listed all "))

            cluster.applied = False
            await again(service, elected)
            await until(lambda: service.unready() == told)

    with api_server(cluster.answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(tmp_path / "config"))
        writer = Writer(kube, lambda: elected.holds, lambda: 0.0)
        policy, metrics = PolicyReload(None), Metrics()
        parts = Parts("me", writer, elected, policy, lambda _: Watch(), lambda _: None, metrics)
        service = Service(Settled(POOL, "gputopo", Terms(), USUAL, LEVELS), parts)
        try:
            asyncio.run(follow(service, lambda: sum(each.method == "POST" for each in server.asked)))
        finally:
            kube.close()

    once = {"write": "CreateLedger", "of": POOL, "outcome": "gone", "error": UNKNOWN}
    assert warned() == [once, once]  # the second after it was there in between
