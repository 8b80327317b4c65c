"""Costs of the extender's cluster cache of a fleet, in one process: events, new profiles, garbage collection, memory.

    events     2,000 nodes with 16 GPUs (DGX-2), up to three pods without a report on each: 20,000 events of pods with
               1, 2 and 4 GPUs, then Filter calls for profiles that are new. "in all" is what a profile costs until no
               node waits for its evaluation. For when a call stops: docs/scheduler-performance.md. The
               last row repeats the calls while 15 pods are in flight
    garbage    a full garbage collection, as the extender does it after hours, and the objects that the interpreter
               searches, 60,000 of them for the imports: of the cluster alone, and with the rankings of 16 profiles.
               The nodes: ``bench/filter_fleet.py``
    profiles   resident memory of 1,000 nodes while 12,000 new profiles are requested, 10 in a second of simulated time,
               and 36,000 events arrive. "calls" is the mean CPU time of the Filter calls since the last row

CPU times of the thread. Run: PYTHONPATH=. python bench/fleet_costs.py; --only for one part
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Iterator, Mapping
from random import Random

import msgspec
import psutil
from filter_fleet import Fleet, name
from filter_reservations import Containers
from fleet_cache import POLICY, EmptyCaches, FleetCache
from worst_prediction import pod

from gputopo.recent_results import ResultExpiry
from scheduler_core.extender import service
from scheduler_core.extender.decision_log import DecisionLog
from scheduler_core.extender.extender import Extender
from scheduler_core.request.pod import Pod
from scheduler_core.runtime.garbage import FULL_S, PAUSE_S, GarbageCollection
from tests.machines import MACHINES

DGX2_NODES, DGX2_EVENTS, DGX2_BUSY = 2_000, 20_000, 8
SIZES: tuple[Containers, ...] = ((1,), (2,), (4,))
WISHES: tuple[Mapping[str, str], ...] = ({}, {"island": "required"}, {"numa": "required"}, {"max-pcie-distance": "PXB"})
GARBAGE_NODES, RANKINGS = (5_000, 15_000, 50_000), 16
MEMORY_NODES, PROFILES, EVENTS_PER_PROFILE, PROFILES_PER_S, ROW = 1_000, 12_000, 3, 10, 2_000
DECISIONS = 256  # kept by default
AHEAD_S = 0.002  # between two calls
NAMES = msgspec.json.Decoder(set[str])


class Caller:
    """Calls Filter of an extender for all nodes."""

    def __init__(self, found: FleetCache) -> None:
        self.log = DecisionLog(DECISIONS)
        limits = service._LIMITS  # noqa: SLF001  of the real extender
        self.cache = found.cache
        self.extender = Extender(found.cache, POLICY, time.time, self.log.add_decision, limits)
        self._names = msgspec.json.encode([name(at) for at in range(found.fleet.count)])

    def call(self, asked: Pod, *, forget: bool = True) -> float:
        """Call Filter, and return its CPU time in seconds. ``forget``: the pod goes nowhere."""
        names = NAMES.decode(self._names)
        began = time.thread_time()
        self.extender.filter(asked, names)
        cpu_s = time.thread_time() - began
        if forget:
            self.cache.forget_assumed_pod(asked.metadata.uid)
        return cpu_s

    def evaluate_waiting(self) -> float:
        """Evaluate all nodes that wait, and return the CPU time in seconds."""
        began = time.thread_time()
        while self.extender.evaluate_ahead(AHEAD_S):
            pass
        return time.thread_time() - began


def main() -> None:
    """Print the parts."""
    parts = {"events": print_events, "garbage": print_garbage, "profiles": print_memory}
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", choices=parts)
    only = options.parse_args().only
    for part, measure in parts.items():
        if only in (None, part):
            measure()


def print_events() -> None:
    """Print the times of events and Filter calls on nodes with 16 GPUs."""
    gc.disable()
    random = Random(1)
    fleet = Fleet(DGX2_NODES, [MACHINES["dgx2"]()], [{"topologyManagerPolicy": "none"}])
    for at in range(fleet.count):
        fleet.late[at] = {f"late-{at}-{number}": (random.choice((1, 2, 4)),) for number in range(random.randint(0, 3))}
        while sum(map(sum, fleet.late[at].values())) > DGX2_BUSY:
            fleet.late[at].popitem()
    began = time.thread_time()
    found = FleetCache(fleet)
    print(f"\n{DGX2_NODES:,} DGX-2, {len(set(found.cache.snapshot.states.values()))} states differ")
    print(f"start: {time.thread_time() - began:.1f} s of CPU")
    times = sorted(1e3 * found.change(SIZES).cpu_s for _ in range(DGX2_EVENTS))
    mean, p999 = sum(times) / len(times), times[-(len(times) // 1000) - 1]
    print(f"{len(times):,} events: mean {mean:.2f} ms, p99.9 {p999:.1f} ms, longest {times[-1]:.1f} ms")
    caller = Caller(found)
    called, in_all = [], []
    for number, (sizes, wishes) in enumerate(new_profiles()):
        called.append(1e3 * caller.call(pod(f"new-{number}", sizes, wishes)))
        in_all.append(called[-1] + 1e3 * caller.evaluate_waiting())
    print(f"first Filter of {len(called)} new profiles: in all {min(in_all):.0f} to {max(in_all):.0f} ms, ", end="")
    print(f"in the call {min(called):.0f} to {max(called):.0f} ms")
    for number in range(15):
        caller.call(pod(f"flying-{number}", (number % 3 + 1,), {}), forget=False)
    again = [1e3 * caller.call(pod(f"again-{number}", *each)) for number, each in enumerate(new_profiles())]
    again.sort()
    print(
        f"Filter of the same with 15 pods in flight: median {again[len(again) // 2]:.0f} ms, longest {again[-1]:.0f} ms"
    )
    gc.collect()


def new_profiles() -> Iterator[tuple[Containers, Mapping[str, str]]]:
    """Yield the containers of pods, and their annotations."""
    for wishes in WISHES:
        yield from (((gpus,), wishes) for gpus in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16))
        yield from ((sizes, wishes) for sizes in ((1, 1), (2, 2), (1, 2, 4), (1, 1, 1, 1, 1)))


def print_garbage() -> None:
    """Print the times of full garbage collections."""
    columns = "".join(f"{each:>12}" for each in ("objects", "ms", "objects", "ms"))
    print(f"\n{'':16} {'the cluster':>24}{'with rankings':>24}\n{'nodes':>8}{'pods':>8} {columns}")
    for count in GARBAGE_NODES:
        gc.disable()
        found = FleetCache(Fleet(count))
        found.fleet.held.clear()  # no objects of the extender
        found.fleet.late.clear()
        empty = EmptyCaches()
        empty()  # of results for the last number of nodes
        cluster = full_collection_ms()
        caller = Caller(found)
        for number in range(RANKINGS):
            caller.call(pod(f"new-{number}", (number % 4 + 1,), {"min-vram": f"{number + 1}Gi"}))
            caller.evaluate_waiting()
        ranked = full_collection_ms()
        columns = "".join(f"{each:12,.0f}" for each in (*cluster, *ranked))
        print(f"{count:>8,}{len(found.cache.pods):>8,} {columns}", flush=True)
        gc.unfreeze()
        del found, caller
        gc.collect()


def full_collection_ms() -> tuple[int, float]:
    """Return the number of objects, and the time of a full collection of the extender in ms, the least of three."""
    garbage, times = GarbageCollection(), []
    garbage.start(0.0)
    for turn in range(1, 4):
        began = time.thread_time()
        garbage.tick(turn * (FULL_S + PAUSE_S))
        times.append(1e3 * (time.thread_time() - began))
    return gc.get_freeze_count(), min(times)


def print_memory() -> None:
    """Print the resident memory while new profiles are requested."""
    print(f"\n{'profiles':>9} {'events':>8} {'memory, MiB':>12} {'calls, ms':>10}")
    process, random = psutil.Process(), Random(1)
    found = FleetCache(Fleet(MEMORY_NODES))
    caller, garbage, expiry = Caller(found), GarbageCollection(), ResultExpiry()
    garbage.start(0.0)
    called: list[float] = []
    for number in range(PROFILES + 1):
        if number % ROW == 0:
            mib, mean = process.memory_info().rss / 2**20, 1e3 * sum(called) / max(1, len(called))
            print(f"{number:>9,} {number * EVENTS_PER_PROFILE:>8,} {mib:12.1f} {mean:10.2f}", flush=True)
            called.clear()
        for _ in range(EVENTS_PER_PROFILE):
            found.change(SIZES)
            garbage.collect_new()
        wishes = {**random.choice(WISHES), "min-vram": f"{number + 1}Mi"}
        called.append(caller.call(pod(f"new-{number}", (random.choice((1, 2, 4, 8)),), wishes)))
        caller.extender.evaluate_ahead(AHEAD_S)
        garbage.collect_new()
        if number % PROFILES_PER_S == 0:
            now = number / PROFILES_PER_S
            found.cache.advance_time(time.time())
            expiry.tick(now, found.cache.snapshot.states_in_use)
            garbage.note_call(now)
            garbage.tick(now)


if __name__ == "__main__":
    main()
