"""The load of ``bench/soak.py``: gangs and pods that arrive and end, and the API writes of the agents of all nodes."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

from agent.allocation.watch import POLL_S
from agent.daemon.metrics import AgentMetrics
from agent.daemon.publication import Publication
from agent.daemon.schedule import NodeSchedule
from agent.publish.node import NodePublisher
from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.kube.client import Kube
from gputopo.labels import keys
from gputopo.timestamps import format_timestamp
from gputopo.timing import HEARTBEAT_S
from tests.api_client import Watch
from tests.api_objects import Object, gpu_node
from tests.e2e.background import BackgroundWork
from tests.e2e.cluster import Cluster
from tests.e2e.gangs import members
from tests.e2e.scheduler import running as extenders
from tests.simulated_node.shapes import SHAPES, on_node

GANG_S, POD_S = 1.0, 1.0  # between two gangs, and between two single pods
WARM_UP_GANG_S = 0.5  # between two additional gangs of the warm-up
LIFE_S = 20.0  # of a bound gang or pod
UNFIT = 20  # gangs that never fit, with the fixed requests; and as many with requests of their own
GANGS = (members.Asked(4, 1), members.Asked(2, 8), members.Asked(4, 2, {"island": "required"}), members.Asked(8, 4))
WARM_UP_GANG = members.Asked(2, 1)
PODS: tuple[tuple[int, dict[str, str]], ...] = ((1, {}), (2, {"island": "required"}), (1, {}), (4, {}))
POD_KEY = "bench/soak"  # annotation of the single pods
WORKERS = 8  # threads that publish the first state of the nodes


class PodChange(NamedTuple):
    """A pod that was bound to a node, or that ended there."""

    node: str
    pod: str
    gpus: int
    is_bound: bool


PodChanges = deque[PodChange]


class _Stream:
    """Creates numbered objects at a fixed rate."""

    def __init__(self, every_s: float, until: float, create: Callable[[int], None]) -> None:
        self._every_s, self._until, self._create = every_s, until, create
        self._next_at, self._numbers = time.monotonic(), count()

    def create_due(self, now: float) -> None:
        """Create an object if one is due."""
        if self._next_at <= now < self._until:
            self._next_at += self._every_s
            self._create(next(self._numbers))


class Arrivals(BackgroundWork):
    """Creates gangs and pods, records when they are bound, and deletes them later."""

    def __init__(self, cluster: Cluster, changes: PodChanges, warm_up_s: float) -> None:
        super().__init__("arrivals", 0.05)
        self.own_requests = 0  # gangs and pods with a request that no other gang or pod has
        self._cluster, self._changes = cluster, changes
        self._created: dict[str, float] = {}  # by gang
        self._bound: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by gang: pod -> node
        self._sizes: dict[str, tuple[int, int]] = {}  # by gang: members, and GPUs of each
        self._ends: deque[tuple[float, str]] = deque()
        self._waits: list[float] = []
        for number in range(2 * UNFIT):
            asked = members.Asked(2, 5 + number % 4, {keys.POD_GANG_REQUIRED.key: "kubernetes.io/hostname"})
            self._create_gang(f"unfit-{number}", asked, own=number >= UNFIT)
        now = time.monotonic()
        self._streams = (
            _Stream(GANG_S, float("inf"), self._create_numbered_gang),
            _Stream(POD_S, float("inf"), self._create_pod),
            _Stream(
                WARM_UP_GANG_S,
                now + warm_up_s,
                lambda number: self._create_gang(f"warm-up-{number}", WARM_UP_GANG, own=True),
            ),
        )
        self._is_stopped = False
        self._watch = self._list_and_watch()
        self._watcher = threading.Thread(target=self._follow)
        self._watcher.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_stopped = True
        self._watch.stop()
        self._watcher.join()

    def take_waits(self) -> list[float]:
        """Return the waits of the gangs that were bound since the last call."""
        found, self._waits = self._waits, []
        return found

    def _turn(self) -> None:
        now = time.monotonic()
        for stream in self._streams:
            stream.create_due(now)
        while self._ends and self._ends[0][0] <= now:
            self._end(self._ends.popleft()[1])

    def _own_wishes(self) -> dict[str, str]:
        """Return an annotation that makes a request differ from all others, and that every GPU satisfies."""
        self.own_requests += 1
        return {keys.POD_MIN_VRAM.key: f"{self.own_requests}Mi"}

    def _create_numbered_gang(self, number: int) -> None:
        self._create_gang(f"gang-{number}", GANGS[number // 2 % len(GANGS)], own=number % 2 == 1)

    def _create_gang(self, gang: str, asked: members.Asked, *, own: bool) -> None:
        self._sizes[gang] = asked.size, asked.gpus
        pods = members.gang(gang, asked._replace(wishes={**asked.wishes, **self._own_wishes()}) if own else asked)
        self._cluster.api.create_all([(self._cluster.pods(), each) for each in pods], asked.size)
        self._created[gang] = time.monotonic()

    def _create_pod(self, number: int) -> None:
        gpus, wishes = PODS[number // 2 % len(PODS)]
        own = self._own_wishes() if number % 2 else {}
        name = f"pod-{number}"
        self._sizes[name] = 1, gpus
        self._cluster.create_pod(extenders.gpu_pod(name, gpus, {**wishes, **own, POD_KEY: name}))

    def _end(self, gang: str) -> None:
        _, gpus = self._sizes.pop(gang)  # first: the watch takes no more notice of it
        self._created.pop(gang, None)
        for pod, node in self._bound.pop(gang).items():
            self._cluster.api.delete(self._cluster.pods(pod))
            self._changes.append(PodChange(node, pod, gpus, is_bound=False))

    def _follow(self) -> None:
        while not self._is_stopped:
            for what, pod in self._watch:
                if what != "DELETED":
                    self._observe(pod)
            if not self._is_stopped:  # the API server ends the watch of a client that is too slow
                self._watch = self._list_and_watch()

    def _list_and_watch(self) -> Watch:
        listed = self._cluster.api.get(self._cluster.pods())
        for pod in listed["items"]:
            self._observe(pod)
        return self._cluster.api.watch(self._cluster.pods(), listed["metadata"]["resourceVersion"], timeout_s=7200)

    def _observe(self, pod: Object) -> None:
        node, annotations = members.node_of(pod), pod["metadata"].get("annotations", {})
        gang = members.gang_of(pod) or annotations.get(POD_KEY)
        asked = None if gang is None else self._sizes.get(gang)
        if node is None or gang is None or asked is None:
            return
        (size, gpus), bound, name = asked, self._bound[gang], pod["metadata"]["name"]
        if name in bound:
            return
        bound[name] = node
        self._changes.append(PodChange(node, name, gpus, is_bound=True))
        if len(bound) == size:
            now = time.monotonic()
            self._ends.append((now + LIFE_S, gang))
            if gang in self._created:
                self._waits.append(now - self._created[gang])


class NodeAgent:
    """The agent of one node without discovery and kubelet: its publication, and the GPUs of its pods."""

    def __init__(self, at: int, kube: Kube, lease_after_s: float, metrics: AgentMetrics) -> None:
        shapes = list(SHAPES.values())
        self.node = f"gpu-node-{at:05}-pool-a1b2c3"
        topology = on_node(shapes[at % len(shapes)](), self.node)
        self._uuids = [gpu.uuid for gpu in topology.gpus if gpu.uuid is not None]
        self._holders: dict[str, str] = {}  # by UUID of a GPU: the pod
        self._starting: dict[str, int] = {}  # by pod: GPUs to allocate
        self._publication = Publication(
            NodePublisher(kube, self.node, lease_after_s), NodeSchedule(self.node), HEARTBEAT_S, metrics
        )
        self._publication.set_topology(topology, time.monotonic(), mirror=True)

    def apply_change(self, change: PodChange) -> None:
        """Note that a pod was bound or ended."""
        if change.is_bound:
            self._starting[change.pod] = change.gpus
        else:
            self._starting.pop(change.pod, None)
            self._holders = {uuid: pod for uuid, pod in self._holders.items() if pod != change.pod}

    def publish(self, namespace: str, *, changed: bool) -> None:
        """Send what is due, or at once if the pods of the node changed. ``namespace``: of all pods."""
        now = time.monotonic()
        if changed:
            self._allocate()
        self._publication.load_published(now)
        if self._publication.awaiting_published or not (changed or self._publication.next_due_at() <= now):
            return
        allocations = tuple(
            DeviceAllocation(uuid, PodRef(namespace, self._holders[uuid], "main"))
            for uuid in self._uuids
            if uuid in self._holders
        )
        self._publication.set_state(format_timestamp(time.time()), allocations, (), None, None, now)
        self._publication.send_due(now)

    def _allocate(self) -> None:
        """Allocate GPUs to the pods that were bound, where enough are free."""
        for pod, gpus in list(self._starting.items()):
            free = [uuid for uuid in self._uuids if uuid not in self._holders]
            if gpus <= len(free):
                del self._starting[pod]
                self._holders |= dict.fromkeys(free[:gpus], pod)


class Agents(BackgroundWork):
    """The API writes of the agents of all nodes, by the agents' own code.

    Once a second, as an agent asks the kubelet, each node has its allocations compared with what is published.
    """

    def __init__(self, cluster: Cluster, nodes: Iterable[int], kube: Kube, lease_after_s: float) -> None:
        """Create the nodes and publish their first state."""
        super().__init__("agents", POLL_S)
        self.changes: PodChanges = deque()
        self._metrics = AgentMetrics()
        self._namespace = cluster.namespace
        self._agents = {each.node: each for each in (NodeAgent(at, kube, lease_after_s, self._metrics) for at in nodes)}
        cluster.api.create_all([("/api/v1/nodes", gpu_node(name, 8)) for name in self._agents])
        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda each: each.publish(self._namespace, changed=True), self._agents.values()))

    def writes(self, kind: str) -> int:
        """Return the number of stored writes of a kind: node, nodegpus, lease."""
        return round(self._metrics.registry.get_sample_value("gputopo_writes_total", {"object": kind}) or 0)

    def failures(self) -> int:
        """Return the number of failed writes."""
        found = (
            self._metrics.registry.get_sample_value("gputopo_publish_failures_total", {"object": kind})
            for kind in ("node", "nodegpus", "event")
        )
        return round(sum(each or 0 for each in found))

    def _turn(self) -> None:
        changed = set[str]()
        while self.changes:
            change = self.changes.popleft()
            self._agents[change.node].apply_change(change)
            changed.add(change.node)
        for name, each in self._agents.items():
            each.publish(self._namespace, changed=name in changed)
