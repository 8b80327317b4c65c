"""The planner's service with an API server over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from gputopo.crd.reservations import POOL
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.cache.events import Batch, NodeUpdate
from scheduler_core.planner.leader.writer import ActionExecutor
from scheduler_core.planner.service import PlannerService
from scheduler_core.runtime.event_loop import Deliver, WatchSet
from tests.api_server import Answer, Asked, api_server
from tests.scheduler_core.planner.serving_planner import Elected, Watch, nowhere, serving, until

PATH = "/apis/gputopo.io/v1alpha1/placementledgers"
# What kube-apiserver acknowledge of a kind that it does not know: no Status, and no object's name.
UNKNOWN = "POST /apis/gputopo.io/v1alpha1/placementledgers: 404: 404 page not found"


class Cluster:
    """An API server that serves ledgers once their kind was applied, and nothing else."""

    def __init__(self) -> None:
        self.applied = False

    def answer(self, asked: Asked) -> Answer:
        if not self.applied:
            return Answer("404 page not found", 404)
        if asked.method == "GET":
            return Answer({"kind": "Status", "message": "not found", "details": {"name": POOL}}, 404)
        return Answer({"metadata": {"name": POOL, "uid": "u", "resourceVersion": "1", "generation": 1}}, 201)


async def again(service: PlannerService, elected: Elected) -> None:
    """Lose the Lease, and begin another term."""
    elected.is_leader = False
    service.tick()
    elected.is_leader = True
    service.tick()


def test_an_unknown_ledger_kind_is_logged_once_and_readyz_says_what_to_apply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "scheduler_core.planner.service")
    cluster, elected = Cluster(), Elected()

    def warned() -> list[Any]:
        return [vars(each)["fields"] for each in caplog.records]

    async def follow(service: PlannerService, posts: Callable[[], int]) -> None:
        reason = f"the API server does not serve placementledgers ({UNKNOWN}): apply daemonset/scheduler/planner"
        with service.running_watches(Watch()):
            service.tick()
            assert service.not_ready_reason() == "this planner has not taken over the ledger yet"
            await until(lambda: service.not_ready_reason() == reason)
            await again(service, elected)
            await until(lambda: posts() == 2)
            assert service.not_ready_reason() == reason

            cluster.applied = True
            await again(service, elected)
            await until(lambda: (service.not_ready_reason() or "").startswith("gputopo has not yet listed all "))

            cluster.applied = False
            await again(service, elected)
            await until(lambda: service.not_ready_reason() == reason)

    with api_server(cluster.answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(tmp_path / "config"))
        writer = ActionExecutor(kube, lambda: elected.is_leader, lambda: 0.0)
        service = serving(writer, elected)
        try:
            asyncio.run(follow(service, lambda: sum(each.method == "POST" for each in server.asked)))
        finally:
            kube.close()

    once = {"write": "CreateLedger", "object": POOL, "outcome": "gone", "error": UNKNOWN}
    assert warned() == [once, once]  # the second after the kind was served in between


@pytest.mark.parametrize(
    ("elected", "said"),
    [
        pytest.param(Elected(None), "no planner holds the Lease yet", id="no leader"),
        pytest.param(
            Elected(None, "403: no"), "no planner holds the Lease yet: 403: no", id="the Lease cannot be read"
        ),
        pytest.param(Elected("other"), None, id="another planner leads"),
        pytest.param(
            Elected(), "this planner has not taken over the ledger yet", id="this planner has just become the leader"
        ),
    ],
)
def test_readyz_says_why_nothing_is_planned(tmp_path: Path, elected: Elected, said: str | None) -> None:
    service = serving(nowhere(tmp_path), elected)

    assert (service.not_ready_reason(), service.status().is_leader) == (said, elected.is_leader)


def test_a_term_ends_if_the_ledger_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler_core.planner.service")

    async def follow(service: PlannerService) -> None:
        with service.running_watches(Watch()):
            service.tick()
            term = service.term
            assert term is not None
            await until(lambda: term.is_deposed)
            service.tick()
            service.tick()
            assert service.term is None

    asyncio.run(follow(serving(nowhere(tmp_path), Elected())))

    events = [(each.getMessage(), vars(each)["fields"].get("begins")) for each in caplog.records]
    assert events == [("term", True), ("ledger", None), ("term", False)]


def fatal_error_of(
    folder: Path, watching: Callable[[Deliver], WatchSet], follow: Callable[[PlannerService], Coroutine[Any, Any, None]]
) -> BaseException | None:
    """Run a service until ``follow`` returns. Return the error that ends its process."""
    cluster = Cluster()
    cluster.applied = True
    with api_server(cluster.answer) as server:
        kube = from_kubeconfig(PLANNER, server.kubeconfig(folder / "config"))
        service = serving(ActionExecutor(kube, lambda: True, lambda: 0.0), Elected(), watching)
        asyncio.run(follow(service))
        kube.close()
    return service.fatal_error


def test_an_internal_error_ends_the_process(tmp_path: Path) -> None:
    class OursError(Exception):
        pass

    def watching(_: Deliver) -> WatchSet:
        raise OursError

    async def follow(service: PlannerService) -> None:
        with service.running_watches(Watch()):
            service.tick()
            await asyncio.wait_for(service.stop_requested.wait(), 10)

    assert isinstance(fatal_error_of(tmp_path, watching, follow), OursError)


def test_an_internal_error_while_a_list_is_divided_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only the callback: the watches would be silent from then on."""

    class OursError(Exception):
        pass

    def broken(*_: object) -> Iterator[Batch[Any]]:
        raise OursError
        yield

    monkeypatch.setattr("scheduler_core.planner.leader.list_parts.parts_of", broken)
    delivered: list[Deliver] = []

    def watching(deliver: Deliver) -> WatchSet:
        delivered.append(deliver)
        return Watch()

    async def follow(service: PlannerService) -> None:
        with service.running_watches(Watch()):
            service.tick()
            await until(lambda: bool(delivered))
            delivered[0](Batch(NodeUpdate, (), is_full_list=True))
            await asyncio.wait_for(service.stop_requested.wait(), 10)

    assert isinstance(fatal_error_of(tmp_path, watching, follow), OursError)
