"""A deposed planner that does not know it yet; an unavailable API server; deleted members."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from functools import partial
from http import HTTPStatus

import pytest

from gputopo.kube.rbac import LEASES, LEDGERS, NODES, RESERVATIONS, Resource
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import (
    Asked,
    create,
    create_job,
    gang,
    gated,
    job,
    job_status,
    node_of,
    of_job,
    wait_until_whole,
)
from tests.e2e.gangs.proxy import Proxy, proxy
from tests.e2e.gangs.running import GATED, LEASE, entries, expire_lease, ledger
from tests.e2e.process import Server
from tests.e2e.scheduler.conftest import StartAgents

pytestmark = pytest.mark.e2e
ASKED = Asked(4, 8, scheduler="default-scheduler")
AWAY_S = 20.0  # a Lease lasts for 15


@pytest.fixture
def stock(gpu_nodes: object, agents_of: StartAgents, scheduler: StartScheduler) -> Server:
    """Start four nodes with agents, and the stock scheduler."""
    assert gpu_nodes
    agents_of()
    return scheduler()


@pytest.fixture
def between(cluster: Cluster) -> Iterator[Proxy]:
    with proxy(cluster.plane) as running:
        yield running


def holder(cluster: Cluster) -> str:
    """Return the holder of the planners' Lease."""
    return str(cluster.api.get(LEASES.path(LEASE, cluster.namespace))["spec"]["holderIdentity"])


@pytest.mark.usefixtures("stock")
def test_a_planner_that_was_deposed_while_stopped_writes_nothing(
    cluster: Cluster, planner: StartPlanner, between: Proxy
) -> None:
    first = planner(*GATED, server_url=between.url)
    wait_for(lambda: ledger(cluster), "the first to lead")
    paused = threading.Event()

    def pause() -> bool:
        first.pause()
        paused.set()
        return True

    between.call_after(5, pause)  # while pods are ungated
    create(cluster, *gang("train", ASKED))
    wait_for(paused.is_set, "the first to stand still")
    epoch = ledger(cluster)["epoch"]
    deposed = holder(cluster)

    planner(*GATED, name="second-planner")
    expire_lease(cluster)
    wait_until_whole(cluster, "train", ASKED.size)
    wait_for(lambda: entries(cluster) == [], "the second to be done")
    assert holder(cluster) != deposed
    assert ledger(cluster)["epoch"] == epoch + 1

    before = len(between.writes)
    first.resume()
    create(cluster, *gang("later", ASKED))
    wait_for(lambda: first.ready, "the first to live on")
    assert [each for each in between.writes[before:] if each.endswith((" 200", " 201"))] == []


@pytest.mark.usefixtures("stock")
def test_the_second_planner_takes_over_when_the_first_is_killed(cluster: Cluster, planner: StartPlanner) -> None:
    first = planner()
    wait_for(lambda: ledger(cluster), "the first to lead")
    planner(*GATED, name="second-planner")
    first.kill()
    expire_lease(cluster)

    create(cluster, *gang("train", ASKED))

    wait_until_whole(cluster, "train", ASKED.size)


@pytest.mark.usefixtures("stock")
def test_a_planner_survives_an_unavailable_api_server(cluster: Cluster, planner: StartPlanner, between: Proxy) -> None:
    running = planner(*GATED, server_url=between.url)
    wait_for(lambda: ledger(cluster), "the planner to lead")

    def away() -> bool:
        between.close()
        return False

    between.call_after(5, away)
    create(cluster, *gang("train", ASKED))
    wait_for(lambda: between.closed, "the fifth write")
    cluster.plane.restart_apiserver()
    between.open()

    wait_until_whole(cluster, "train", ASKED.size)
    wait_for(lambda: is_served(cluster), "the API server to have its custom resources again")
    assert running.server.running
    wait_for(lambda: entries(cluster) == [], "the ledger to forget it", 60)


@pytest.mark.usefixtures("stock")
def test_a_partly_ungated_gang_is_completed_once_the_api_server_answers(
    cluster: Cluster, planner: StartPlanner, between: Proxy
) -> None:
    """The API server stops for longer than the Lease lasts: calls hang, and no planner leads when it continues."""
    _, apiserver = cluster.plane.servers
    running = planner(*GATED, server_url=between.url)
    wait_for(lambda: ledger(cluster), "the planner to lead")
    term = ledger(cluster)["epoch"]
    back = threading.Timer(AWAY_S, apiserver.send, [signal.SIGCONT])

    def away() -> bool:
        apiserver.send(signal.SIGSTOP)
        back.start()
        return True

    between.call_after(5, away)
    create(cluster, *gang("train", ASKED._replace(wishes={"gang-timeout": "5m"})))
    wait_for(back.finished.is_set, "the API server to go on", 2 * AWAY_S + 20)

    wait_until_whole(cluster, "train", ASKED.size)
    wait_for(lambda: entries(cluster) == [], "the ledger to forget it", 60)
    assert running.server.running
    assert ledger(cluster)["epoch"] == term + 1


@pytest.mark.usefixtures("stock", "controller_manager")
def test_a_gang_starts_although_a_member_is_deleted_while_others_are_ungated(
    cluster: Cluster, planner: StartPlanner, between: Proxy
) -> None:
    planner(*GATED, "--back-off", "1s", server_url=between.url)
    wait_for(lambda: ledger(cluster), "the planner to lead")
    deleted: list[str] = []

    def delete() -> bool:
        member = next(each for each in of_job(cluster, "train") if gated(each))
        cluster.api.delete(cluster.pods(member["metadata"]["name"]))
        deleted.append(member["metadata"]["uid"])
        return True

    between.call_after(5, delete)
    create_job(cluster, job("train", ASKED))

    wait_for(lambda: deleted, "the fifth write")
    pods = wait_for(lambda: bound(cluster, "train", ASKED.size), "all to be bound", 60)
    wait_for(lambda: entries(cluster) == [], "the ledger to forget it", 60)
    assert deleted[0] not in {each["metadata"]["uid"] for each in pods}
    assert job_status(cluster, "train")["failed"] == 1  # that one: what the rollback deleted does not count


PLANS = {"its plan": RESERVATIONS, "the ledger": LEDGERS}


@pytest.mark.usefixtures("controller_manager")
@pytest.mark.parametrize("lost", PLANS.values(), ids=PLANS.keys())
def test_a_partly_ungated_gang_with_a_deleted_plan_is_rolled_back_and_starts_elsewhere(
    cluster: Cluster, planner: StartPlanner, stock: Server, lost: Resource
) -> None:
    planner(*GATED, "--back-off", "1s")
    stock.send(signal.SIGSTOP)
    create_job(cluster, job("train", Asked(2, 8, {"gang-timeout": "5s"}, "default-scheduler")))
    before = wait_for(lambda: ungated(cluster, "train", 2), "both to be ungated")
    cluster.api.patch(NODES.path(str(pin_of(before[0]))), {"spec": {"unschedulable": True}})
    delete_all(cluster, lost)
    stock.restart()  # not SIGCONT: pods and nodes come in two watches, and it might bind before it sees the cordon

    pods = wait_for(lambda: bound(cluster, "train", 2), "both to be bound", 60)
    assert not {each["metadata"]["uid"] for each in pods} & {each["metadata"]["uid"] for each in before}
    wait_for(lambda: entries(cluster) == [], "the ledger to forget it", 60)
    assert job_status(cluster, "train").get("failed", 0) == 0


def ungated(cluster: Cluster, name: str, size: int) -> list[Object] | None:
    """Return the pods of a Job once this number exists and none is gated."""
    pods = of_job(cluster, name)
    return pods if [gated(each) for each in pods] == [False] * size else None


def pin_of(found: Object) -> str:
    """Return the node that a pod is pinned to."""
    required = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])


def delete_all(cluster: Cluster, kind: Resource) -> None:
    """Delete all objects of a kind, as a user would."""
    namespace = cluster.namespace if kind is RESERVATIONS else None
    for each in cluster.api.items(kind.path(namespace=namespace)):
        cluster.api.delete(kind.path(each["metadata"]["name"], namespace))


def bound(cluster: Cluster, name: str, size: int) -> list[Object] | None:
    """Return the pods of a Job once this number is bound and no others exist."""
    pods = of_job(cluster, name)
    return pods if [node_of(each) is None for each in pods] == [False] * size else None


def is_served(cluster: Cluster) -> bool:
    """Return whether ledgers can be read: an API server that is ready may not serve custom resources yet."""
    try:
        ledger(cluster)
    except ApiError as error:
        if error.status != HTTPStatus.TOO_MANY_REQUESTS:
            raise
        return False
    return True


@pytest.mark.usefixtures("stock", "controller_manager")
def test_a_job_survives_three_rollbacks(
    cluster: Cluster, planner: StartPlanner, stock: Server, controllers: tuple[str, ...]
) -> None:
    """With 8 pods and the default backoffLimit of 6, one counted rollback would fail the Job."""
    assert controllers
    asked = Asked(8, 4, {"gang-timeout": "1s"}, "default-scheduler")
    planner(*GATED, "--back-off", "1s")
    stock.send(signal.SIGSTOP)
    create_job(cluster, job("train", asked))
    seen: set[str] = set()
    for _ in range(4):  # the pods of the first try, and of one after each rollback
        seen |= wait_for(partial(new, cluster, frozenset(seen)), "new pods", 60)
    stock.send(signal.SIGCONT)

    wait_until_whole(cluster, "train", 8)
    assert job_status(cluster, "train").get("failed", 0) == 0


def new(cluster: Cluster, seen: frozenset[str]) -> set[str]:
    """Return the pods of the Job once all 8 were recreated."""
    pods = {each["metadata"]["uid"] for each in of_job(cluster, "train")}
    return pods if len(pods) == 8 and not pods & seen else set()
