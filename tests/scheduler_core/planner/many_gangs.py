"""A planner's pages in a process of their own: of a term that leads, with as many gangs as the argument says.

Run: python -m tests.scheduler_core.planner.many_gangs COUNT. Prints the port.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from scheduler_core.cache.events import Batch, LedgerSeen
from scheduler_core.planner import settings
from scheduler_core.planner.commit.state import Terms
from scheduler_core.planner.gang.member import GangName, Member
from scheduler_core.planner.gang.pod_source import Candidate
from scheduler_core.planner.leader.context import Clock, Settled
from scheduler_core.planner.leader.queue import Pace
from scheduler_core.planner.leader.term import Term
from scheduler_core.planner.main import listeners_of
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.service import Service
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.runtime.http_server import serve
from tests.scheduler_core.planner.gang.gang_pods import member
from tests.scheduler_core.planner.leader.idle_executor import Idle
from tests.scheduler_core.planner.packing.plans import ledger
from tests.scheduler_core.planner.serving_planner import Elected, nowhere, serving


def waiting(count: int) -> list[Member]:
    """One member of each of so many gangs of two."""
    return [
        member(f"w-{at}", gang=GangName(f"team-{at % 7}", f"training-run-{at:05}"), size=2, rank=0)
        for at in range(count)
    ]


def leading(members: list[Member], folder: Path) -> Service:
    """A planner that leads and was shown these."""
    term = Term(Settled("gpus", "gputopo", Terms(), Pace(), {}), lambda: BUILT_IN, "me", Idle(), Clock())
    term.take(Batch(Candidate, tuple(Candidate(each.uid, None, each) for each in members), (), complete=True))
    term.take(Batch(LedgerSeen, (ledger(),), (), complete=True))
    term.leads = True
    service = serving(nowhere(folder), Elected())
    service.term = term
    return service


def main() -> None:
    """Serve until the process is ended."""
    with tempfile.TemporaryDirectory() as folder:
        service, metrics = leading(waiting(int(sys.argv[1])), Path(folder)), Metrics()
        metrics.expose(service.status)
        (listener,) = listeners_of(settings.read({"listen": "127.0.0.1:0"}, {}), service, metrics)
        uvloop.run(serve([listener], asyncio.Event(), lambda: print(listener.port, flush=True)))


if __name__ == "__main__":
    main()
