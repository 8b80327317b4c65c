"""The planner's CPU time per gang at a sustained rate on 15,000 nodes, in one process and on one thread.

As ``planner_loop.py``: a minimal API server and kube-scheduler in the same process answer at once. Nodes with 8 GPUs
are in racks of 16, blocks of 256 and zones of 2,048; half of them are partly in use. Ten gangs arrive each second, of
several sizes, some with a required level; each lives for some seconds. ``--requests``: number of different requests.

    decode, apply, round, plan, answers   as in ``planner_loop.py``
    cores                                 CPU time by the time in which the gangs arrive

Run: make bench
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Mapping
from random import Random

import msgspec
from planner_loop import MAKERS, TURN_S, Spent, Stage, node, node_name, planned
from queue_fairness import running

from gputopo.labels import keys
from scheduler_core.cache.events import NodeUpdate
from scheduler_core.planner.leader.plan_task import run_plan
from tests.api_objects import Object

NODES, RATE, SECONDS = 15_000, 10.0, 30.0
LIFE_S = 10.0
RACK, BLOCK, ZONE = 16, 256, 2_048  # nodes
SHAPES: tuple[tuple[int, int, str | None], ...] = (
    (4, 1, None),
    (2, 8, None),
    (16, 8, None),
    (8, 2, "rack"),
    (32, 4, "block"),
    (4, 4, None),
    (2, 1, "kubernetes.io/hostname"),
)  # members, GPUs of each, required level


def main() -> None:
    """Print the CPU time of each part."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--nodes", type=int, default=NODES)
    options.add_argument("--rate", type=float, default=RATE)
    options.add_argument("--seconds", type=float, default=SECONDS)
    options.add_argument("--requests", type=int, default=len(SHAPES))
    options.add_argument("--profile", choices=("decode", "apply", "round", "plan", "answers"), nargs="+", default=())
    asked = options.parse_args()
    MAKERS[NodeUpdate] = racked
    spent = Spent(asked.profile)
    stage = GangRate(spent, asked.nodes, asked.rate, asked.requests)
    stage.arrive(SECONDS / 3)  # the first plan of each request, and the first evaluation of each class of nodes
    spent.seconds.clear()
    before = stage.started
    stage.arrive(asked.seconds)
    gangs = stage.started - before
    print(f"{asked.nodes:,} nodes, {asked.rate:g} gangs a second: {gangs} gangs started; ms of CPU for each gang")
    for part, seconds in spent.seconds.items():
        print(f"  {part:<7} {1000 * seconds / gangs:7.2f}")
    total = sum(spent.seconds.values())
    print(f"  {'all':<7} {1000 * total / gangs:7.2f}   {total / asked.seconds:.2f} cores")
    spent.show()


class GangRate(Stage):
    """A term of leadership in which gangs arrive and end."""

    def __init__(self, spent: Spent, nodes: int, rate: float, requests: int) -> None:
        super().__init__(spent, nodes, rate)
        self._requests, self._next_tick = requests, 0.0
        self.started = 0  # gangs
        random = Random(0)
        used = ((node_name(at), random.randint(1, 8)) for at in range(nodes) if at % 2)
        self.begin(0, [running(f"there-{name}", gpus, name) for name, gpus in used])
        self._each_s, self._next = 1 / rate, 0.0
        self._numbers = 0
        self._unbound: dict[str, set[str]] = {}  # by gang: UIDs
        self._ends: deque[tuple[float, list[str]]] = deque()

    def arrive(self, seconds: float) -> None:
        """Let gangs arrive for this time."""
        end = self._now + seconds
        while self._now < end:
            self._now += TURN_S
            while self._next <= self._now:
                self._next += self._each_s
                self._create()
            while self._ends and self._ends[0][0] <= self._now:
                for uid in self._ends.popleft()[1]:
                    self._lines.append(msgspec.json.encode({"type": "DELETED", "object": self._pods.pop(uid)}) + b"\n")
            while self._to_bind:
                self._bind(self._to_bind.popleft())
            self._answer(1 << 30)
            self._show()
            if self._tasks:
                with self._spent.on("plan"):
                    found = run_plan(self._tasks.popleft(), self._memory)
                with self._spent.on("round"):
                    self._term.apply_plan(found)
            if self._now >= self._next_tick:
                self._next_tick = self._now + 1.0
                with self._spent.on("round"):
                    self._term.tick()
            if self._now >= self._due:
                self._due = self._now + 1.0
                with self._spent.on("round"):
                    self._term.run_round()

    def _create(self) -> None:
        vram, shape = divmod(self._numbers % self._requests, len(SHAPES))
        size, gpus, required = SHAPES[shape]
        gang = f"gang-{self._numbers}"
        self._numbers += 1
        pods = list(
            gated_members(
                gang, size, gpus, {keys.POD_GANG_REQUIRED.key: required, keys.POD_MIN_VRAM.key: f"{1 + vram}Mi"}
            )
        )
        for pod in pods:
            self._version += 1
            pod["metadata"]["resourceVersion"] = str(self._version)
            self._pods[pod["metadata"]["uid"]] = pod
            self._lines.append(msgspec.json.encode({"type": "ADDED", "object": pod}) + b"\n")
        self._unbound[gang] = {pod["metadata"]["uid"] for pod in pods}

    def _bind(self, uid: str) -> None:
        super()._bind(uid)
        gang = self._pods[uid]["metadata"]["annotations"][keys.POD_GANG.key]
        left = self._unbound[gang]
        left.discard(uid)
        if not left:
            self.started += 1
            del self._unbound[gang]
            uids = [
                each
                for each, pod in self._pods.items()
                if pod["metadata"]["annotations"].get(keys.POD_GANG.key) == gang
            ]
            self._ends.append((self._now + LIFE_S, uids))


def gated_members(gang: str, size: int, gpus: int, wishes: Mapping[str, str | None]) -> Iterator[Object]:
    """Yield the gated members of a gang. ``wishes``: annotations; None: not there."""
    for rank in range(size):
        pod = planned(0, gpus)
        annotations = {keys.POD_GANG.key: gang, keys.POD_GANG_SIZE.key: str(size)}
        annotations |= {key: value for key, value in wishes.items() if value is not None}
        pod["metadata"] |= {"name": f"{gang}-{rank}", "uid": f"uid-{gang}-{rank}", "annotations": annotations}
        yield pod


def racked(at: int, nodes: int) -> Object:
    """Return a node with labels of its rack, block and zone."""
    found = node(at, nodes)
    found["metadata"]["labels"] |= {
        "cloud.provider.com/topology-rack": f"rack-{at // RACK}",
        "cloud.provider.com/topology-block": f"block-{at // BLOCK}",
        "topology.kubernetes.io/zone": f"zone-{at // ZONE}",
    }
    return found


if __name__ == "__main__":
    main()
