"""The pages of a leading planner with many gangs, in a process of its own.

Run: python -m tests.scheduler_core.planner.many_gangs COUNT. Prints the port.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from scheduler_core.cache.events import Batch, LedgerUpdate
from scheduler_core.planner import settings
from scheduler_core.planner.commit.state import CommitTerms
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.planner.leader.context import PlannerConfig, TermClock
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.leader.term import LeaderTerm
from scheduler_core.planner.main import listeners_of
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.service import PlannerService
from scheduler_core.planner.status_page import planner_app
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.http_server import serve_listeners
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import IdleExecutor
from tests.scheduler_core.planner.packing.plans import ledger
from tests.scheduler_core.planner.serving_planner import Elected, nowhere, serving


def waiting(count: int) -> list[Member]:
    """Return one member of each of ``count`` gangs of two."""
    return [
        member(f"w-{at}", gang=GangName(f"team-{at % 7}", f"training-run-{at:05}"), size=2, rank=0)
        for at in range(count)
    ]


def leading(members: list[Member], folder: Path) -> PlannerService:
    """Return a leader that has seen these members."""
    term = LeaderTerm(
        PlannerConfig("gpus", "gputopo", CommitTerms(), QueueTiming(), {}),
        lambda: BUILT_IN,
        "me",
        IdleExecutor(),
        TermClock(),
    )
    term.apply_batch(
        Batch(PlannerPod, tuple(PlannerPod(each.uid, None, each) for each in members), (), is_full_list=True)
    )
    term.apply_batch(Batch(LedgerUpdate, (ledger(),), (), is_full_list=True))
    term.leads = True
    service = serving(nowhere(folder), Elected())
    service.term = term
    return service


def main() -> None:
    """Serve until the process is ended."""
    with tempfile.TemporaryDirectory() as folder:
        service, metrics = leading(waiting(int(sys.argv[1])), Path(folder)), PlannerMetrics()
        metrics.register_status(service.status)
        found = settings.read_settings({"listen": "127.0.0.1:0"}, {})
        (listener,) = listeners_of(found, planner_app(service, metrics.registry))
        uvloop.run(serve_listeners([listener], asyncio.Event(), lambda: print(listener.port, flush=True)))


if __name__ == "__main__":
    main()
