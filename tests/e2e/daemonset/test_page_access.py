"""The pages of the real programs, attacked from the pod network, and read as they may be read."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import urllib3
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.page_reviews import AUDIENCE
from gputopo.kube.rbac import GANG_READER, LEASES
from tests.api_objects import Object
from tests.e2e.agent.access import RBAC, define_node_gpus, grant
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, apply, documents
from tests.e2e.gangs.running import define_reservations, prepare
from tests.e2e.process import Server
from tests.ports import free_port

pytestmark = pytest.mark.e2e
OWN_PAGES = {
    "extender": ("/decisions", "/explain/team-a/llm-0"),
    "planner": ("/gangs",),
    "observe": ("/report",),
}
SHARED_PAGES = ("/healthz", "/readyz", "/metrics")
READERS = "gputopo-page-reader"
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}


def pod_network() -> str:
    """An address of this machine that is not loopback: its peers are what pods are to each other."""
    for address in (each for addresses in psutil.net_if_addrs().values() for each in addresses):
        if address.family == socket.AF_INET and not address.address.startswith("127."):
            return str(address.address)
    pytest.skip("this machine has only a loopback interface")


@contextmanager
def served(cluster: Cluster, program: str, kubeconfig: Path, *options: str) -> Iterator[int]:
    """Run a program, which serves its pages on every address at the port."""
    port = free_port()
    of_program = {
        "extender": ("--verbs", f"127.0.0.1:{free_port()}"),
        "planner": ("--lease", f"{cluster.namespace}/gputopo-planner"),
        "observe": (),
    }[program]
    command = [sys.executable, "-m", "gputopo", program, "--listen", f"0.0.0.0:{port}", *of_program, *options]
    log = cluster.plane.folder / "logs" / f"{program}-{cluster.namespace}.log"
    server = Server(program, command, log, _CLEAN | {"KUBECONFIG": str(kubeconfig)})
    try:
        server.wait_until(lambda: page("127.0.0.1", port, "/healthz")[0] == 200)
        yield port
    finally:
        server.stop()


def page(host: str, port: int, path: str, token: str | None = None) -> tuple[int, str]:
    """Status and text of a page."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        answer = urllib3.request("GET", f"http://{host}:{port}{path}", headers=headers, retries=False, timeout=10)
    except urllib3.exceptions.HTTPError as error:
        raise OSError(path) from error
    return answer.status, answer.data.decode()


def page_token(cluster: Cluster, account: str, audience: str | None = AUDIENCE) -> str:
    """Return a token, as `kubectl create token ACCOUNT --audience gputopo` prints it."""
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/{account}/token"
    spec: Object = {"expirationSeconds": 3600} | ({} if audience is None else {"audiences": [audience]})
    answer = cluster.api.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return str(answer["status"]["token"])


@pytest.mark.parametrize("program", OWN_PAGES)
def test_the_pod_network_reads_probes_and_metrics_and_nothing_of_tenants(
    cluster: Cluster, program: str, tmp_path: Path
) -> None:
    prepare(cluster)
    network, stolen = pod_network(), page_token(cluster, "default")
    with served(cluster, program, cluster.kubeconfig(tmp_path / "admin")) as port:
        refused = [page(network, port, path, token) for path in OWN_PAGES[program] for token in (None, stolen)]
        shared = [page(network, port, path)[0] for path in SHARED_PAGES]
        local = [page("127.0.0.1", port, path)[0] for path in OWN_PAGES[program]]

    assert {status for status, _ in refused} == {403}
    assert all("kubectl port-forward" in text for _, text in refused)
    assert (shared[0], shared[2]) == (200, 200)
    assert shared[1] in {200, 503}  # ready or not, the kubelet is told
    assert set(local) <= {200, 404}  # 404: no such pod


def test_with_reviews_only_the_bearer_of_a_permitted_token_reads(cluster: Cluster, tmp_path: Path) -> None:
    define_node_gpus(cluster)
    define_reservations(cluster)
    apply(cluster, documents("base/namespace.yaml", "scheduler/components/page-access/roles.yaml"))
    files = (f"scheduler/planner-without-gates/{name}.yaml" for name in ("service-account", "rbac"))
    apply(cluster, documents(*files))
    kubeconfig = cluster.kubeconfig(tmp_path / "planner", cluster.token("gputopo-planner", namespace="gputopo"))
    for account in ("tenant", "operator"):
        grant(cluster, account, GANG_READER)
    bind(cluster, "operator")
    network, token = pod_network(), page_token(cluster, "operator")
    stranger = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.AAAA"

    lease = {"holderIdentity": "nobody", "leaseDurationSeconds": 1}  # a planner waits if there has been no Lease
    cluster.api.create(LEASES.path(namespace=NAMESPACE), {"metadata": {"name": "gputopo-planner"}, "spec": lease})
    options = ("--pages", "authorized", "--lease", f"{NAMESPACE}/gputopo-planner")

    with served(cluster, "planner", kubeconfig, *options) as port:
        wait_for(lambda: '"leads":true' in page("127.0.0.1", port, "/gangs")[1], "the planner to lead", 60)
        answers = {
            "none": page(network, port, "/gangs"),
            "forged": page(network, port, "/gangs", stranger),
            "another audience": page(network, port, "/gangs", page_token(cluster, "operator", None)),
            "no permission": page(network, port, "/gangs", page_token(cluster, "tenant")),
            "permitted": page(network, port, "/gangs", token),
        }
        metrics = page(network, port, "/metrics")[0]
        (tmp_path / "token").write_text(f"{token}\n")
        arguments = ["--server", f"http://{network}:{port}", "--token-file", str(tmp_path / "token")]
        config = str(cluster.kubeconfig(tmp_path / "operator", cluster.token("operator")))
        result = CliRunner().invoke(main.main, ["gangs", "--kubeconfig", config, *arguments])
        refused = CliRunner().invoke(main.main, ["gangs", "--kubeconfig", config, *arguments[:2]])

    expected = {"none": 401, "forged": 401, "another audience": 401, "no permission": 403, "permitted": 200}
    assert {name: status for name, (status, _) in answers.items()} == expected
    assert READERS in answers["no permission"][1]
    assert metrics == 200
    assert result.exit_code == 0, result.output
    assert (refused.exit_code, "401: this page needs a bearer token" in refused.output) == (4, True)


def bind(cluster: Cluster, account: str) -> None:
    """Bind the role, as `kubectl create clusterrolebinding NAME --clusterrole gputopo-page-reader` does."""
    body = {
        "metadata": {"name": f"{cluster.namespace}-{account}-pages"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": cluster.namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": READERS},
    }
    cluster.api.create(f"{RBAC}/clusterrolebindings", body)
