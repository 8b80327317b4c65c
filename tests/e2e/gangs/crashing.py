"""Runs a planner that is killed after its Nth write, for every N."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.invariant import size
from tests.e2e.gangs.members import node_of
from tests.e2e.gangs.proxy import proxy
from tests.e2e.gangs.running import expire_lease, ledger, reserved, running

WHICH = "GPUTOPO_E2E_CRASHES"  # "all", or the first of every third write after which the planner is killed
STEP = 3
MOST = 100  # writes of one run: one that goes on beyond never ends
PATIENCE_S = 90.0


class Run(NamedTuple):
    """The result of one planner."""

    writes: list[str]  # that the API server answered
    killed: bool  # else it had done all there was to do


def points(default: str) -> Iterator[int]:
    """Return the numbers of writes after which the planner is killed."""
    which = os.environ.get(WHICH, default)
    return iter(range(1, MOST) if which == "all" else range(int(which), MOST, STEP))


def run_until(
    cluster: Cluster, options: tuple[str, ...], number: int, done: Callable[[], bool], *, answered: bool
) -> Run:
    """Run a planner, and kill it once the API server has answered its Nth write, or once it is done.

    ``answered``: it still receives that answer; its later writes are dropped.
    """
    with (
        proxy(cluster.plane) as between,
        running(cluster, *options, name=f"doomed-planner-{number}", server_url=between.url) as planner,
    ):

        def callback() -> bool:
            between.close()
            return answered

        between.call_after(number, callback)
        _wait(cluster, lambda: between.closed or done(), f"write {number}, or the end", between.writes)
        planner.kill()
        run = Run(list(between.writes), between.closed)
    expire_lease(cluster)
    return run


def run_on(cluster: Cluster, options: tuple[str, ...], done: Callable[[], bool], after: Run) -> None:
    """Run the next planner until the gang is finished."""
    with running(cluster, *options):
        _wait(cluster, done, "the end", after.writes)
    expire_lease(cluster)


def _wait(cluster: Cluster, until: Callable[[], bool], what: str, writes: list[str]) -> None:
    """Wait; raise ``TimeoutError`` with the present objects."""
    try:
        wait_for(until, what, PATIENCE_S)
    except TimeoutError as late:
        there = [reservation["spec"] | reservation.get("status", {}) for reservation in reserved(cluster)]
        counts = [ledger(cluster, part) for part in ("metadata", "spec", "status")]
        pods = [
            (each["metadata"]["name"], node_of(each), each["status"].get("phase"), size(each))
            for each in cluster.api.items(cluster.pods())
        ]
        seen = f"pods: {pods}\nwritten: {writes}\nledger: {counts}\nreservations: {there}"
        raise TimeoutError(f"{late}\n{seen}") from late
