"""Time to plan a gang, and its ratio to a plain first fit of the same gang by counts of free GPUs.

5,000 nodes with 8 GPUs each in racks of 16, blocks of 256 and zones of 2,000; half of them partly in use, in about a
thousand different states. "first" is the first plan on a snapshot, without any cached result; "again" is the median of
the next plans, as for the next gang in the queue. Single pods: a batch of 500. Capacity hold: the search for the nodes
that become free soonest. Times are CPU times of the process.
With ``--count`` and valgrind, instructions are counted instead, for few nodes and members: the count does not depend on
the load of the machine.
Run: make bench
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from evaluate import NOW, POLICY, machine, node, request

from gputopo.labels.domains import BLOCK_LABELS, RACK_LABELS, ZONE_LABELS
from scheduler_core.cache.events import Batch
from scheduler_core.cache.kube_scheduler_filters import FullNode, SchedulingRules
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.planner.gang.disruption import Disruptions
from scheduler_core.planner.gang.gang import Gang as Queued
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from scheduler_core.planner.leader.hold_candidates import PodEnds
from scheduler_core.planner.leader.hold_search import HoldTask, search_hold
from scheduler_core.planner.leader.plan_task import ReservationNames
from scheduler_core.planner.packing.model import GangPlan, NodeView, PlanOptions
from scheduler_core.planner.packing.plan import plan_gang
from scheduler_core.planner.packing.singles import SinglePodPlacer
from scheduler_core.request.full_pod import FullPodSpec
from scheduler_core.request.pod import Metadata
from tests.machines import MACHINES

NODES = 5_000
SHAPES = ("hgx_h100", "hgx_b200", "dgx1", "rtx4090")
ROUNDS = 3
BATCH = 500


class Gang(NamedTuple):
    """A gang to plan."""

    members: int
    gpus: int
    wishes: dict[str, str] = {}  # noqa: RUF012  never changed
    required: str | None = None

    def __str__(self) -> str:
        words = [f"{self.members} x {self.gpus}", *(f"{key} {value}" for key, value in self.wishes.items())]
        return ", ".join([*words, *([] if self.required is None else [f"one {self.required}"])])


GANGS = (
    Gang(8, 1),
    Gang(16, 8),
    Gang(32, 2, {"island": "required"}, "rack"),
    Gang(1000, 1),
    Gang(1000, 2),
    Gang(1000, 4, {"island": "required"}),
    Gang(500, 8),
)
HOLDS = (
    Gang(1, 8),
    Gang(16, 8),
    Gang(500, 8),
    Gang(2000, 8),
    Gang(32, 2, {"island": "required"}, "rack"),
    Gang(600, 4, {"island": "required"}, "zone"),
    Gang(16, 8, {"min_vram": "500Gi"}),
)
COUNTED = (Gang(100, 1),)  # instructions are counted at a fiftieth of the speed


def main() -> None:
    """Print a row per gang; ``--count``: instructions instead of times; with a number and a name: only that, once."""
    if sys.argv[1:] == ["--count"]:
        _counted()
    elif sys.argv[1:]:
        _once(int(sys.argv[1]), sys.argv[2])
    else:
        _timed()


def _timed() -> None:
    print(f"\n{'gang, 5,000 nodes':<36} {'first fit ms':>12} {'first ms':>9} {'again ms':>9} {'ratio':>7} {'nodes':>6}")
    for seed, gang in enumerate(GANGS):
        view, members = fleet(seed), crew(gang)
        fit = _median(lambda view=view, gang=gang: first_fit(view, gang))  # type: ignore[misc]
        first = _took(lambda view=view, members=members: plan_gang(members, view))  # type: ignore[misc]
        again = _median(lambda view=view, members=members: plan_gang(members, view))  # type: ignore[misc]
        found = plan_gang(members, view)
        nodes = len({seat.node for seat in found.seats}) if isinstance(found, GangPlan) else 0
        exact = "exact" if isinstance(found, GangPlan) and found.exact else ""
        print(f"{gang!s:<36} {fit:12.1f} {first:9.0f} {again:9.0f} {again / fit:7.1f} {nodes:>6} {exact}")
    view, pods = fleet(99), [each for gpus in (1, 2, 4, 8) for each in crew(Gang(BATCH // 4, gpus))]
    first = _took(lambda: SinglePodPlacer().place_pods(pods, view, PlanOptions()))
    again = _median(lambda: SinglePodPlacer().place_pods(pods, view, PlanOptions()))
    print(f"{BATCH} single pods: first {first:.0f} ms, again {again:.0f} ms, {BATCH / again * 1000:.0f} pods/s")
    print(f"\n{'capacity hold, 5,000 nodes':<36} {'ms':>9} {'nodes':>6}")
    for seed, gang in enumerate(HOLDS):
        job = _job(fleet(seed), gang)
        took = _took(lambda job=job: search_hold(job))  # type: ignore[misc]
        create = search_hold(job).create
        print(f"{gang!s:<36} {took:9.0f} {0 if create is None else len(create.spec.held):>6}")


def _job(view: NodeView, gang: Gang) -> HoldTask:
    """Return a hold search in which half of the pods have deadlines."""
    random, ends, members = Random(0), PodDeadlines(), tuple(crew(gang))
    pods = (pod.uid for record in view.table.records.values() for pod in record.pods)
    ends.apply_pod_deadlines(
        Batch(
            PodDeadline, tuple(PodDeadline(uid, NOW + random.random() * 1e5) for uid in pods if random.random() < 0.5)
        )
    )
    queued = Queued(GangName("team", "bench"), GangPhase.QUEUED, "", ready=members, size=len(members))
    names, nodes = ReservationNames("gputopo", lambda: "0"), tuple(view.table.records)
    return HoldTask(
        queued, (), view, nodes, PodEnds(ends, Disruptions()), PlanOptions(), names, NOW, POLICY, lambda: False
    )


def _counted() -> None:
    """Print the instructions of a process that plans, minus these of a process that only sets up."""
    if shutil.which("valgrind") is None:
        print("valgrind is not installed: no instructions are counted")
        return
    print(f"\n{'gang, 200 nodes':<36} {'first fit M':>12} {'plan M':>9} {'ratio':>7}  million instructions")
    for at, gang in enumerate(COUNTED):
        empty, fit, whole = (_instructions(str(at), what) for what in ("nothing", "first-fit", "plan"))
        print(f"{gang!s:<36} {fit - empty:12.1f} {whole - empty:9.1f} {(whole - empty) / max(fit - empty, 0.1):7.1f}")


def _instructions(*arguments: str) -> float:
    """Return the instructions of a process, in millions."""
    command = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, __file__, *arguments)
    output = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"Collected : (\d+)", output)
    assert found is not None, output
    return int(found[1]) / 1e6


def _once(at: int, what: str) -> None:
    view, members = fleet(at, 200), crew(COUNTED[at])
    if what == "first-fit":
        first_fit(view, COUNTED[at])
    elif what == "plan":
        plan_gang(members, view)


def first_fit(view: NodeView, gang: Gang) -> int:
    """Put each member on the first node with enough free GPUs. Return the number of placed members."""
    free = {name: state.free_devices("nvidia.com/gpu") for name, state in view.table.states.items()}
    found = 0
    for _ in range(gang.members):
        for name, count in free.items():
            if count >= gang.gpus:
                free[name] = count - gang.gpus
                found += 1
                break
    return found


def fleet(seed: int, nodes: int = NODES) -> NodeView:
    """Return nodes of four machine shapes in turn."""
    random = Random(seed)
    machines = [(MACHINES[name](), machine(MACHINES[name]())) for name in SHAPES]
    records = [node(f"gpu-node-{at:05}", *machines[at // 16 % len(SHAPES)], random) for at in range(nodes)]
    rules = {
        record.name: FullNode(
            metadata=Metadata(
                name=record.name,
                labels={
                    RACK_LABELS[0]: f"r{at // 16}",
                    BLOCK_LABELS[0]: f"b{at // 256}",
                    ZONE_LABELS[0]: f"z{at // 2000}",
                },
            )
        )
        for at, record in enumerate(records)
    }
    return NodeView(snapshot_of(records, NOW, POLICY), rules, lambda _: POLICY)


def crew(gang: Gang) -> list[Member]:
    """Return the members of a gang."""
    wanted = GangRequest(GangName("team", "bench"), gang.members, required=gang.required)
    rules = SchedulingRules(FullPodSpec())
    requests = (request(f"w-{gang.gpus}-{at}", gang.gpus, gang.wishes) for at in range(gang.members))
    return [
        Member(
            uid=each.uid,
            namespace="team",
            name=each.name,
            version="1",
            gang_request=wanted,
            request=each,
            created=NOW,
            rules=rules,
        )
        for each in requests
    ]


def _took(step: Callable[[], object]) -> float:
    """Return CPU milliseconds of this process."""
    start = time.process_time()
    step()
    return (time.process_time() - start) * 1000


def _median(step: Callable[[], object]) -> float:
    return statistics.median(_took(step) for _ in range(ROUNDS))


if __name__ == "__main__":
    main()
