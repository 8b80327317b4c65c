"""The faults and attacks of the chaos run. Each ends by itself within seconds and leaves nothing behind."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import NamedTuple

import msgspec

from gputopo.kube.rbac import RESERVATIONS
from gputopo.labels import keys
from scheduler_core.request.full_pod import FullPod
from tests.api_client import ApiError
from tests.api_objects import pod
from tests.campaign.fields import hostile_objects
from tests.e2e.chaos.workload import tolerate_absence
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.members import Asked, gang
from tests.e2e.gangs.running import Planner, expire_lease
from tests.e2e.process import Server
from tests.e2e.scheduler.running import Extender, Served
from tests.simulated_node.fleet import Fleet

TENANT = "foe"
_PEERS = 150
_DEEP = msgspec.Raw(b'{"f:a":' * 1_000 + b"{}" + b"}" * 1_000)


class Programs(NamedTuple):
    """The processes under test."""

    extender: Extender
    planners: tuple[Planner, ...]
    kube_scheduler: Server

    @property
    def served(self) -> tuple[Served, ...]:
        """The processes of gputopo."""
        return (self.extender, *self.planners)


class Faults:
    """Faults by name, with a fixed random sequence. ``count``: how often each was injected."""

    def __init__(self, cluster: Cluster, fleet: Fleet, programs: Programs, seed: int) -> None:
        self.count: dict[str, int] = {}
        self._cluster, self._fleet, self._programs = cluster, fleet, programs
        self._random = Random(seed)
        self._faults: dict[str, tuple[int, Callable[[], None]]] = {
            # For half a minute after its start an extender acknowledges no gang, so killing it more often stops gangs.
            "extender killed": (1, self._kill_extender),
            "planner killed": (2, self._kill_planner),
            "planner stopped for 5 s": (1, self._pause_planner),
            "kube-scheduler killed": (2, self._programs.kube_scheduler.restart),
            "API server killed": (1, self._restart_api_server),
            "hostile pods": (5, self._create_hostile_pods),
            "forged placements": (3, self._forge_placements),
            "a gang of thousands of rules": (2, self._create_picky_gang),
            "slow peers": (4, self._open_slow_peers),
            "labels of a node edited": (3, self._edit_labels),
            "a reservation deleted": (1, self._delete_reservation),
        }

    def inject(self) -> str:
        """Inject a random fault, and return its name."""
        names, weights = list(self._faults), [weight for weight, _ in self._faults.values()]
        (name,) = self._random.choices(names, weights)
        tolerate_absence(self._faults[name][1])
        self.count[name] = self.count.get(name, 0) + 1
        return name

    def _kill_extender(self) -> None:
        self._programs.extender.restart()

    def _kill_planner(self) -> None:
        self._random.choice(self._programs.planners).restart()
        expire_lease(self._cluster)

    def _pause_planner(self) -> None:
        planner = self._random.choice(self._programs.planners)
        planner.pause()
        time.sleep(5.0)
        planner.resume()

    def _restart_api_server(self) -> None:
        self._cluster.plane.restart_apiserver()

    def _create_hostile_pods(self) -> None:
        """Create pods with hostile values that the API server accepts, and one that nests deeply."""
        base = pod("hostile", 1, schedulingGates=[{"name": "example.com/never"}])
        step = self._random.randint(40, 400)
        found = [each.text for each in hostile_objects(FullPod, base, step)]
        bodies: list[object] = [msgspec.Raw(text) for text in self._random.sample(found, min(20, len(found)))]
        deep = pod("deep", 0, schedulingGates=[{"name": "example.com/never"}])
        entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": _DEEP}
        deep["metadata"]["managedFields"] = [entry]
        with self._tenant() as collection:
            for number, body in enumerate([deep, *bodies]):
                text = msgspec.json.encode(body).replace(b'"hostile"', b'"hostile-%d"' % number, 1)
                self._create_if_accepted(collection, msgspec.Raw(text))
            time.sleep(2.0)

    def _forge_placements(self) -> None:
        with self._tenant() as collection:
            for node in self._fleet.names:
                fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
                required = {"nodeSelectorTerms": [{"matchFields": fields}]}
                affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
                made = pod(f"claims-{node}", 8, affinity=affinity, schedulerName="nobody")
                made["metadata"]["annotations"] = {keys.POD_RESERVATION.key: "made-up"}
                self._create_if_accepted(collection, made)
            time.sleep(3.0)

    def _create_picky_gang(self) -> None:
        members = gang("picky", Asked(8, 1))
        for at, each in enumerate(members):
            rules = [{"key": f"key-{at}-{number}", "operator": "DoesNotExist"} for number in range(9_000)]
            required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
            each["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        with self._tenant() as collection:
            for each in members:
                self._cluster.api.create(collection, each)
            time.sleep(3.0)

    def _open_slow_peers(self) -> None:
        """Leave requests unfinished on every page listener."""
        with ExitStack() as opened:
            for served in self._programs.served:
                port = int(served.pages.rpartition(":")[2])
                for _ in range(_PEERS):
                    try:
                        peer = opened.enter_context(socket.create_connection(("127.0.0.1", port), 1.0))
                        peer.sendall(b"GET /metrics HTTP/1.1\r\nHost:")
                    except OSError:
                        break
            time.sleep(2.0)

    def _edit_labels(self) -> None:
        node = self._random.choice(self._fleet.names)
        self._cluster.api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {keys.ISLANDS.key: "8"}}})

    def _delete_reservation(self) -> None:
        """Delete a reservation by hand, whatever its state."""
        found = self._cluster.api.items(RESERVATIONS.path(namespace=self._cluster.namespace))
        if found:
            name = self._random.choice(found)["metadata"]["name"]
            self._cluster.api.delete(RESERVATIONS.path(name, self._cluster.namespace))

    def _create_if_accepted(self, collection: str, body: object) -> None:
        """Create an object; the API server refuses most hostile objects."""
        try:
            self._cluster.api.request("POST", collection, body)
        except ApiError as refused:
            if refused.status >= 500:
                raise

    @contextmanager
    def _tenant(self) -> Iterator[str]:
        """Delete the tenant's pods after the block."""
        collection = self._cluster.pods(namespace=TENANT)
        try:
            yield collection
        finally:
            tolerate_absence(lambda: self._cluster.api.request("DELETE", collection, {"gracePeriodSeconds": 0}))
