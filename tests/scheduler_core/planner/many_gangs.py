"""A planner's pages in a process of their own: of a term that leads, with as many gangs as the argument says.

Run: python -m tests.scheduler_core.planner.many_gangs COUNT. Prints the port.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

import uvloop

from scheduler_core.gangs.member import GangName, Member
from scheduler_core.gangs.queue import Pace
from scheduler_core.gangs.world import Terms
from scheduler_core.planner import settings
from scheduler_core.planner.given import Clock, Settled
from scheduler_core.planner.main import listeners_of
from scheduler_core.planner.metrics import Metrics
from scheduler_core.planner.seen import Candidate
from scheduler_core.planner.service import Service
from scheduler_core.planner.term import Term
from scheduler_core.policies import BUILT_IN
from scheduler_core.server import serve
from scheduler_core.sightings import Batch, LedgerSeen
from tests.scheduler_core.gangs.members import member
from tests.scheduler_core.planner.idle import Idle
from tests.scheduler_core.planner.test_service import Elected, nowhere, serving
from tests.scheduler_core.plans import ledger


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
