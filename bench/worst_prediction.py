"""The longest predictions of GPUs on one node, in CPU time, for machines of up to 16 GPUs.

A row for each machine of 16 GPUs of the tests, and one for all machines of up to 8 GPUs. On each node up to three pods
were bound, and not reported, or deleted since the last report. Pods have one to five containers; kubelets have
different Topology Managers.

    mean, p99.9     of 1,200 events: a pod is bound, reported or deleted. Results are cached, as in the extender
    longest event   of these, of further events with empty caches, also on nodes without other pods, and of checks of
                    the kubelet's reports, which are done after the event
    evaluation      longest evaluation of a node for one new pod, with empty caches: 1 to 16 GPUs, up to 5 containers
    in flight       longest check that a pod fits, whichever of 15 in-flight pods come to the node, with empty caches

A time with empty caches is the least of three. Machines themselves, with their symmetries, stay known. The program
fails if an event or an evaluation takes longer than ``MOST_MS``, or a check longer than ``MOST_IN_FLIGHT_MS``.

Run: PYTHONPATH=. python bench/worst_prediction.py [MACHINE...]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import NamedTuple

import msgspec
from filter_fleet import Fleet
from filter_reservations import Containers
from fleet_cache import POLICY, EmptyCaches, FleetCache

from gputopo.model import NodeTopology
from scheduler_core.cache.assumed_pods import AssumedPod
from scheduler_core.cache.node_record import NodeRecord, parse_occupant
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.evaluate import Evaluation, evaluator_for
from scheduler_core.evaluation.in_flight import fits_with_all
from scheduler_core.evaluation.score import Score
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodProfile, PodRequest, parse_request
from tests.machines import MACHINES
from tests.scheduler_core.allocation.machines16 import MACHINES16

MOST_MS = 100.0  # nearly twice the longest time measured: other programs make CPU times longer
MOST_IN_FLIGHT_MS = 1_000.0  # of up to 32 sets of pods; in a call, the check stops earlier
EVENTS, TURNS, NODES, TRIES = 1_200, 160, 20, 3
SIZES: tuple[Containers, ...] = ((1,), (1,), (2,), (4,), (3,), (8,), (1, 1), (2, 1), (2, 2), (1, 1, 1, 1, 1))
POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
KUBELETS = (None, *({"topologyManagerPolicy": each} for each in POLICIES))  # None: unknown
WISHES: tuple[Mapping[str, str], ...] = (
    {},
    {"island": "required"},
    {"numa": "required"},
    {"max-pcie-distance": "PXB"},
    {"min-bandwidth": "100"},
    {"interconnect": "nvlink"},
)
IN_FLIGHT = (1, 2, 3)  # GPUs of in-flight pods, five pods of each


class Longest:
    """The longest piece of work, and its description."""

    def __init__(self) -> None:
        self.cpu_s, self.what = 0.0, "nothing"

    def note(self, cpu_s: float, what: str) -> None:
        """Note a piece of work."""
        if cpu_s > self.cpu_s:
            self.cpu_s, self.what = cpu_s, what

    def measure(self, prepare: Callable[[], object], work: Callable[[], object], what: str) -> None:
        """Note the least time of several tries, each after ``prepare``; one try if the work is not the longest."""
        least = inf
        for _ in range(TRIES):
            prepare()
            began = time.thread_time()
            work()
            least = min(least, time.thread_time() - began)
            if least <= self.cpu_s:
                return
        self.note(least, what)


class ShapeTimes(NamedTuple):
    """The times of a row, in seconds."""

    mean: float
    p999: float
    event: Longest
    evaluation: Longest
    in_flight: Longest


class Turn(NamedTuple):
    """A node after an event, and a pod for which it is evaluated."""

    snapshot: ClusterSnapshot
    record: NodeRecord
    profile: PodProfile

    @property
    def state(self) -> NodeState:
        """The state of the node, derived anew."""
        return state_of(self.record, time.time(), POLICY)

    def evaluate(self, state: NodeState) -> Evaluation:
        """Evaluate the node for the pod."""
        return evaluator_for(self.profile, POLICY)(state)

    @property
    def asked(self) -> str:
        """The pod, as text."""
        steps = ", ".join(
            f"{each.devices}{'' if each.holds_until_end else ' (init)'}"
            for each in self.profile.device_request.whole_gpu_steps
        )
        wishes = [
            field
            for field in ("island", "numa", "max_pcie_distance", "min_gbps", "interconnect")
            if getattr(self.profile.constraints, field) is not None
        ]
        return f"a pod of {steps} GPUs{''.join(f', {each}' for each in wishes)}"

    @property
    def place(self) -> str:
        """The node, as text."""
        gpus, topology = self.record.gpus, self.record.machine.topology
        assert gpus is not None
        assert topology is not None
        named = {each.pod.name for each in gpus.allocations or ()}
        pending = [
            "+".join(str(step.devices) for step in pod.profile.device_request.whole_gpu_steps)
            for pod in (*self.record.pods, *self.record.departed)
            if pod.name not in named
        ]
        policy = None if gpus.kubelet is None else gpus.kubelet.topology_manager_policy
        return (
            f"a node with {len(topology.gpus)} {topology.gpus[0].product}, {len(gpus.allocations or ())} in use, pods "
            f"without a report: {', '.join(pending) or 'none'}; pods that have ended: {len(self.record.departed)}; "
            f"Topology Manager: {policy or 'unknown'}"
        )


def main() -> None:
    """Print the table; fail if something took longer than stated."""
    gc.disable()  # as in the extender
    columns = ("mean", "p99.9", "longest event", "evaluation", "in flight")
    print(f"{'CPU time, ms':<28}" + "".join(f"{each:>15}" for each in columns))
    found: dict[str, ShapeTimes] = {}
    for name, machines in rows().items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        found[name] = each = shape_times(machines)
        times = (each.mean, each.p999, each.event.cpu_s, each.evaluation.cpu_s, each.in_flight.cpu_s)
        print(f"{name:<28}" + "".join(f"{1e3 * cpu_s:15.2f}" for cpu_s in times), flush=True)
        gc.collect()
    longest = {part: longest_of(found, part) for part in ("event", "evaluation", "in_flight")}
    most = 1e3 * max(longest["event"], longest["evaluation"])
    in_flight = 1e3 * longest["in_flight"]
    print(
        f"longest of all: {most:.0f} ms for an event or an evaluation, stated are {MOST_MS:.0f}; "
        f"{in_flight:.0f} ms with pods in flight, stated are {MOST_IN_FLIGHT_MS:.0f}"
    )
    sys.exit(most > MOST_MS or in_flight > MOST_IN_FLIGHT_MS)


def rows() -> dict[str, list[NodeTopology]]:
    """Return the machines of each row."""
    known = [each() for each in MACHINES.values()]
    small = [each for each in known if 0 < len(each.gpus) <= 8 and all(gpu.uuid for gpu in each.gpus)]
    return {
        "up to 8 GPUs": small,
        "a40x10": [MACHINES["a40x10"]()],
        **{name: [each()] for name, each in MACHINES16.items()},
    }


def longest_of(found: Mapping[str, ShapeTimes], part: str) -> float:
    """Print what took longest, and return its time in seconds."""
    name = max(found, key=lambda name: getattr(found[name], part).cpu_s)
    longest: Longest = getattr(found[name], part)
    print(f"longest {part.replace('_', ' ')}: {1e3 * longest.cpu_s:.0f} ms, {name}: {longest.what}")
    return longest.cpu_s


def shape_times(machines: Sequence[NodeTopology]) -> ShapeTimes:
    """Measure nodes with these machines."""
    cache = FleetCache(Fleet(max(NODES, len(machines) * len(KUBELETS)), machines, KUBELETS))
    random, empty = Random(1), EmptyCaches()
    empty()
    event, evaluation, in_flight = Longest(), Longest(), Longest()
    times = sorted(cache.change(SIZES).cpu_s for _ in range(EVENTS))
    event.note(times[-1], "an event with cached results of others")
    for number, profile in zip(range(TURNS), profiles(random), strict=False):
        change = cache.change(SIZES)
        turn = Turn(cache.cache.snapshot, cache.cache.snapshot.records[change.node], profile)
        event.measure(empty, lambda: turn.state, turn.place)  # noqa: B023  called at once
        checks = f"the check of a report, {turn.place}"
        event.measure(empty, lambda: cache.check_predictions(change.changes), checks)  # noqa: B023
        if number % 4 == 0:
            measure_in_flight(turn, in_flight, empty)
        if number % 2:
            turn = turn._replace(record=without_reported_pods(turn.record))
            event.measure(empty, lambda: turn.state, turn.place)  # noqa: B023  called at once
        state = turn.state
        evaluation.measure(empty, lambda: turn.evaluate(state), f"{turn.asked}, on {turn.place}")  # noqa: B023
    return ShapeTimes(sum(times) / len(times), times[-(len(times) // 1000) - 1], event, evaluation, in_flight)


def measure_in_flight(turn: Turn, longest: Longest, empty: EmptyCaches) -> None:
    """Measure how long the check takes whether the pod fits with pods in flight, if it fits without them."""
    turn = turn._replace(profile=profile_of((turn.profile.gpus % 4 + 2,), {"island": "required"}))
    name, evaluator = turn.record.name, evaluator_for(turn.profile, POLICY)
    state = turn.snapshot.states[name]
    pods = [parse_occupant(pod(f"{gpus}-{at}", (gpus,), {})) for gpus in IN_FLIGHT for at in range(5)]
    coming = [AssumedPod(each, frozenset({name, "other"}), inf) for each in pods if each is not None]
    if isinstance(turn.evaluate(state), Score):

        def prepare() -> None:
            empty()
            evaluator(state)

        longest.measure(
            prepare,
            lambda: fits_with_all(turn.profile, turn.snapshot, name, coming, evaluator),
            f"{turn.asked}, on {turn.place}",
        )


def without_reported_pods(record: NodeRecord) -> NodeRecord:
    """Return the node with the pods that the kubelet has not reported, and no others."""
    assert record.gpus is not None
    named = {each.pod.name for each in record.gpus.allocations or ()}
    pods = tuple(each for each in record.pods if each.name not in named)
    gpus = msgspec.structs.replace(record.gpus, allocations=())
    return msgspec.structs.replace(record, gpus=gpus, pods=pods, departed=())


def profiles(random: Random) -> Iterator[PodProfile]:
    """Yield pods with one container of 1 to 16 GPUs, then with several containers, without end."""
    for gpus in range(1, 17):
        yield profile_of((gpus,), WISHES[gpus % len(WISHES)])
    while True:
        sizes = tuple(random.choice((1, 1, 2, 2, 3, 4, 5, 6, 8)) for _ in range(random.randint(2, 5)))
        if sum(sizes) <= 16:
            yield profile_of(sizes, random.choice(WISHES), init=random.random() < 0.25)


def profile_of(sizes: Containers, wishes: Mapping[str, str], *, init: bool = False) -> PodProfile:
    """Return the profile of a pod."""
    found = parse_request(pod("asked", sizes, wishes, init=init))
    assert isinstance(found, PodRequest), found
    return found.profile


def pod(name: str, sizes: Containers, wishes: Mapping[str, str], *, init: bool = False) -> Pod:
    """Return a pod with these GPUs for each container. ``init``: the first is an init container."""
    annotations = {f"gputopo.io/{key}": value for key, value in wishes.items()}
    containers = [{"name": f"c{at}", "resources": {"limits": {WHOLE: str(gpus)}}} for at, gpus in enumerate(sizes)]
    spec = {"initContainers": containers[: int(init)], "containers": containers[int(init) :]}
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


if __name__ == "__main__":
    main()
