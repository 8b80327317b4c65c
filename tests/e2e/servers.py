"""etcd and kube-apiserver of a test run, and kube-scheduler and kube-controller-manager where a test wants them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import urllib3
import yaml

from tests.api_client import Client
from tests.e2e.binaries import Binaries
from tests.e2e.credentials import ADMIN, CONTROLLER_MANAGER, SCHEDULER, Authority, Identity, write_kubeconfig
from tests.e2e.process import Server
from tests.ports import free_port

# Writes only: a test counts writes, and a scale test would otherwise log every read of 5,000 nodes.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}
# What a workload needs to come and go. The controllers that judge nodes by their heartbeats stay out: simulated nodes
# have none, and would be tainted after 40 s.
CONTROLLERS = (
    "deployment-controller",
    "replicaset-controller",
    "daemonset-controller",
    "job-controller",
    "garbage-collector-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "disruption-controller",
)
# What the API server makes by itself, the last of each kind.
MADE = {
    "/api/v1/namespaces": {"default", "kube-node-lease", "kube-public", "kube-system"},
    "/api/v1/namespaces/default/services": {"kubernetes"},
    "/api/v1/namespaces/kube-system/configmaps": {
        "extension-apiserver-authentication",
        "kube-apiserver-legacy-service-account-token-tracking",
    },
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"system-cluster-critical", "system-node-critical"},
}


class ControlPlane(NamedTuple):
    """A running etcd and kube-apiserver."""

    binaries: Binaries
    folder: Path
    url: str
    authority: Authority
    audit_log: Path
    servers: tuple[Server, ...]
    etcd_url: str

    def client(self, identity: Identity = ADMIN, **options: Any) -> Client:
        """A client with the certificate of a user."""
        return Client(self.url, self.authority.certificate, certificate=self.authority.client(identity), **options)

    def kubeconfig(self, path: Path, identity: Identity = ADMIN) -> Path:
        """Write a kubeconfig for a user."""
        pem = str(self.authority.client(identity))
        user = {"client-certificate": pem, "client-key": pem}
        return write_kubeconfig(path, self.url, self.authority.certificate, user)

    def restart_apiserver(self) -> None:
        """End kube-apiserver at once and start it anew; returns when it is ready. Every watch breaks."""
        _, apiserver = self.servers
        apiserver.restart()
        apiserver.wait_until(_answers(self.url + "/readyz", self.authority))


@contextmanager
def control_plane(binaries: Binaries, folder: Path, flags: Sequence[str] = ()) -> Iterator[ControlPlane]:
    """Start etcd and kube-apiserver; end them with the context. ``flags`` are further flags of kube-apiserver.

    Raises ``ServerError`` with the end of the log of the server that did not start.
    """
    authority = Authority(folder / "pki")
    with ExitStack() as ends:
        etcd_url, etcd = _etcd(binaries, folder)
        ends.callback(etcd.stop)
        port = free_port()
        audit_log = folder / "logs" / "audit.jsonl"
        command = _apiserver_command(binaries, folder, authority, etcd_url, port)
        apiserver = Server("kube-apiserver", [*command, *flags], folder / "logs" / "kube-apiserver.log")
        ends.callback(apiserver.stop)
        plane = ControlPlane(
            binaries, folder, f"https://127.0.0.1:{port}", authority, audit_log, (etcd, apiserver), etcd_url
        )
        client = plane.client()
        ends.callback(client.close)
        etcd.wait_until(_answers(etcd_url + "/health", authority))
        apiserver.wait_until(_answers(plane.url + "/readyz", authority))
        apiserver.wait_until(lambda: _settled(client))
        yield plane
    shutil.rmtree(folder / "etcd", ignore_errors=True)  # logs stay, data does not


@contextmanager
def scheduler(
    plane: ControlPlane, config: str, name: str = "kube-scheduler", flags: Sequence[str] = ()
) -> Iterator[Server]:
    """Start a kube-scheduler with a KubeSchedulerConfiguration; ready means that its caches are filled.

    What a test need not say is filled in: the kubeconfig, no leader election, and client limits that do not throttle
    (their default of 50 requests a second would be what a benchmark measures).
    """
    document = yaml.safe_load(config)
    document.setdefault("leaderElection", {}).setdefault("leaderElect", False)
    connection = document.setdefault("clientConnection", {})
    connection.setdefault("kubeconfig", str(plane.kubeconfig(plane.folder / f"{name}.kubeconfig", SCHEDULER)))
    connection.setdefault("qps", 1000)
    connection.setdefault("burst", 2000)
    path = plane.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    command: list[str | Path] = [plane.binaries.path("kube-scheduler"), f"--config={path}", "--v=2", *flags]
    with _running(name, command, plane, "readyz") as server:
        yield server


@contextmanager
def controller_manager(plane: ControlPlane, controllers: Sequence[str]) -> Iterator[Server]:
    """Start a kube-controller-manager that runs these controllers."""
    name = "kube-controller-manager"
    kubeconfig = plane.kubeconfig(plane.folder / f"{name}.kubeconfig", CONTROLLER_MANAGER)
    command: list[str | Path] = [
        plane.binaries.path(name),
        f"--kubeconfig={kubeconfig}",
        f"--controllers={','.join(controllers)}",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]
    with _running(name, command, plane, "healthz") as server:  # it has no /readyz
        yield server


@contextmanager
def _running(name: str, command: Sequence[str | Path], plane: ControlPlane, ready: str) -> Iterator[Server]:
    """A component that serves health and metrics on a port of its own, which anybody on this machine may read."""
    port = free_port()
    serving = [
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--tls-cert-file={plane.authority.serving}",
        f"--tls-private-key-file={plane.authority.serving}",
        "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
    ]
    logs = plane.folder / "logs"
    number = len(list(logs.glob(f"{name}*.log"))) if logs.exists() else 0
    server = Server(name, [*command, *serving], logs / f"{name}-{number}.log")
    server.url = f"https://127.0.0.1:{port}"
    try:
        server.wait_until(_answers(f"{server.url}/{ready}", plane.authority))
        yield server
    finally:
        server.stop()


def _etcd(binaries: Binaries, folder: Path) -> tuple[str, Server]:
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command: list[str | Path] = [
        binaries.path("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",  # the data is as short-lived as the test run
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]
    return clients, Server("etcd", command, folder / "logs" / "etcd.log")


def _apiserver_command(
    binaries: Binaries, folder: Path, authority: Authority, etcd_url: str, port: int
) -> list[str | Path]:
    policy = folder / "audit-policy.yaml"
    policy.write_text(yaml.safe_dump(AUDIT_POLICY))
    serving, key = authority.serving, authority.signing_key
    return [
        binaries.path("kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        f"--tls-cert-file={serving}",
        f"--tls-private-key-file={serving}",
        f"--client-ca-file={authority.certificate}",
        "--authorization-mode=Node,RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # it refuses a loopback address, and nothing here is reached by a Service
        "--enable-admission-plugins=NodeRestriction",
        # Taints a new node as not ready until the node lifecycle controller lifts it; that controller is not here.
        "--disable-admission-plugins=TaintNodesByCondition",
        "--allow-privileged=true",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={folder / 'logs' / 'audit.jsonl'}",
        "--audit-log-maxsize=1000",  # MiB: never rotate under a test that reads it
        "--delete-collection-workers=16",
        "--profiling=false",
    ]


def _answers(url: str, authority: Authority) -> Callable[[], bool]:
    """Return a function that tells whether a URL answers 200."""

    def answers() -> bool:
        with urllib3.PoolManager(retries=False, timeout=2.0, ca_certs=str(authority.certificate)) as pool:
            try:
                return pool.request("GET", url).status == 200
            except urllib3.exceptions.HTTPError as nobody:
                raise OSError(url) from nobody

    return answers


def _settled(client: Client) -> bool:
    """Return whether the API server has created its built-in objects; it creates some after it reports ready."""
    return all(
        {item["metadata"]["name"] for item in client.items(path)}.issuperset(names) for path, names in MADE.items()
    )
