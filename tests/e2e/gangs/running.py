"""Runs the planner as a process, with the rights of its role."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gputopo.crd import reservations
from gputopo.kube.rbac import ELECTION, LEASES, LEDGERS, PLANNER, PREEMPTOR, RESERVATIONS, Resource, Role
from tests.api_client import ApiError
from tests.api_objects import Object
from tests.e2e.agent.access import define, define_node_gpus, grant
from tests.e2e.cluster import Cluster
from tests.e2e.credentials import write_kubeconfig
from tests.e2e.process import Server
from tests.e2e.scheduler.running import Served
from tests.ports import free_port

ACCOUNT = "planner"
COMMAND = [sys.executable, "-m", "gputopo", "planner"]
LEASE = "gputopo-planner"
GATED = ("--pool", "gated")  # every GPU pod of the pool is gated: no extender has to acknowledge
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}


class Planner(Served):
    """A planner process."""

    def kill(self) -> None:
        """SIGKILL."""
        self.server.stop()

    def pause(self) -> None:
        """SIGSTOP."""
        self.server.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.server.send(signal.SIGCONT)


def prepare(cluster: Cluster) -> None:
    """Create the custom resources and the service account of the planner."""
    define_node_gpus(cluster)
    define_reservations(cluster)
    grant(cluster, ACCOUNT, merge_roles("planner", PLANNER, PREEMPTOR, ELECTION))
    # Of one that was killed long ago: where there is no Lease at all, planners wait as long as if it had a holder.
    spec = {"holderIdentity": "nobody", "leaseDurationSeconds": 1}
    cluster.api.create(LEASES.path(namespace=cluster.namespace), {"metadata": {"name": LEASE}, "spec": spec})


def merge_roles(name: str, *roles: Role) -> Role:
    """Return a role that may do what any of these roles may do."""
    verbs: dict[Resource, tuple[str, ...]] = {}
    for role in roles:
        for resource, permitted in role.verbs.items():
            verbs[resource] = tuple(dict.fromkeys((*verbs.get(resource, ()), *permitted)))
    return Role(name, verbs)


def define_reservations(cluster: Cluster) -> None:
    """Make the API server serve reservations and ledgers."""
    for definition in (reservations.reservation_crd(), reservations.ledger_crd()):
        try:
            define(cluster, definition)
        except ApiError as refused:
            if refused.status != 409:
                raise


@contextmanager
def running(cluster: Cluster, *options: str, name: str = "planner", server_url: str | None = None) -> Iterator[Planner]:
    """Run a planner within the context, ready or not. ``server_url``: its URL of the API server."""
    folder, token = cluster.plane.folder, {"token": cluster.token(ACCOUNT)}
    title = f"{name}-{cluster.namespace}"
    kubeconfig = write_kubeconfig(
        folder / f"{title}.kubeconfig", server_url or cluster.url, cluster.plane.authority.certificate, token
    )
    pages = free_port()
    space = cluster.namespace
    where = ["--listen", f"127.0.0.1:{pages}", "--lease", f"{space}/{LEASE}"]
    log = folder / "logs" / f"{title}.log"
    server = Server(name, [*COMMAND, *where, *options], log, _CLEAN | {"KUBECONFIG": str(kubeconfig)})
    try:
        yield Planner(server, pages)
    finally:
        server.stop()


def expire_lease(cluster: Cluster) -> None:
    """Let the Lease of a killed planner expire in a second instead of 15."""
    path = LEASES.path(LEASE, cluster.namespace)
    cluster.api.patch(path, {"spec": {"leaseDurationSeconds": 1}})


def ledger(cluster: Cluster, part: str = "spec") -> Object:
    """Return the spec of the ledger; {} before a planner created it."""
    found = cluster.api.items(LEDGERS.path())
    return dict(found[0].get(part, {})) if found else {}


def entries(cluster: Cluster) -> list[Object]:
    """Return the entries of the ledger."""
    return list(ledger(cluster).get("entries", ()))


def reserved(cluster: Cluster) -> list[Object]:
    """Return the reservations of the test's namespace."""
    return cluster.api.items(RESERVATIONS.path(namespace=cluster.namespace))
