"""`gputopo ui-server` with the rights of its manifest, on a real control plane: what each user may see."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import urllib3
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect
from playwright.sync_api import Page as BrowserPage

from gputopo.kube.page_reviews import AUDIENCE
from scheduler_core.ui.main import VIEWER_ROLE
from tests.api_objects import Object, pod
from tests.e2e.agent.access import RBAC
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, apply, documents
from tests.e2e.process import Server
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.gated_pods import gated
from tests.e2e.scheduler.running import prepare, started
from tests.ports import free_port
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import nvswitch_8

pytestmark = pytest.mark.e2e
ACCOUNT = "gputopo-ui"
OTHER = "other-tenant"
REVIEWS = {"tokenreviews", "subjectaccessreviews"}
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("GPUTOPO_", "KUBE"))}
_SOON = 20_000  # milliseconds


class Pages(NamedTuple):
    """The pages of a running server, as bearers of tokens get them."""

    port: int

    def get(self, path: str, token: str | None = None, **headers: str) -> tuple[int, str]:
        found = headers if token is None else {"Authorization": f"Bearer {token}", **headers}
        try:
            answer = urllib3.request("GET", f"http://127.0.0.1:{self.port}{path}", headers=found, retries=False)
        except urllib3.exceptions.HTTPError as error:
            raise OSError(path) from error
        return answer.status, answer.data.decode()


@pytest.fixture
def pages(cluster: Cluster, fleet: Fleet, agents_of: StartAgents, tmp_path: Path) -> Iterator[Pages]:
    """The pages of a node with pods of two tenants, and a waiting gang of each, served with the manifest's rights."""
    prepare(cluster)
    fleet.add(NodeSpec(name="switch", shape=nvswitch_8()))
    agents_of()
    cluster.create_namespace(OTHER)
    files = (f"scheduler/ui/{name}.yaml" for name in ("service-account", "rbac"))
    apply(cluster, documents("base/namespace.yaml", *files))
    for space, name in ((cluster.namespace, "train"), (OTHER, "model-x")):
        found = pod(name, 2, nodeName="switch")
        found["metadata"]["namespace"] = space
        cluster.create_pod(found)
        waiting = gated(f"next-{name}", 0, 2)
        waiting["metadata"]["namespace"] = space
        cluster.create_pod(waiting)
    started(cluster, "train")
    config = cluster.kubeconfig(tmp_path / "ui.kubeconfig", cluster.token(ACCOUNT, namespace=NAMESPACE))
    served = Pages(free_port())
    command = [sys.executable, "-m", "gputopo", "ui-server", "--listen", f"0.0.0.0:{served.port}"]
    server = Server("ui-server", command, tmp_path / "ui.log", _CLEAN | {"KUBECONFIG": str(config)})
    try:
        server.wait_until(lambda: served.get("/readyz")[0] == 200)
        yield served
    finally:
        server.stop()
    user = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    assert {each.resource for each in cluster.writes() if each.user == user} <= REVIEWS
    assert "Traceback" not in server.log.read_text()


def viewer(cluster: Cluster, account: str, *, page: bool = True, everywhere: bool = False, here: bool = False) -> str:
    """A new account's token. ``page``: it may see the pages; its pods may be listed ``everywhere`` or ``here``."""
    space = cluster.namespace
    cluster.api.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": account}})
    subject = {"kind": "ServiceAccount", "name": account, "namespace": space}

    def bind(role: str, path: str) -> None:
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": f"{space}-{account}-{role}"}, "subjects": [subject], "roleRef": reference}
        cluster.api.create(path, body)

    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    cluster.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": f"lists-{account}"}, "rules": rules})
    if page:
        bind(VIEWER_ROLE, f"{RBAC}/clusterrolebindings")
    if everywhere:
        bind(f"lists-{account}", f"{RBAC}/clusterrolebindings")
    if here:
        bind(f"lists-{account}", f"{RBAC}/namespaces/{space}/rolebindings")
    path = f"/api/v1/namespaces/{space}/serviceaccounts/{account}/token"
    spec: Object = {"expirationSeconds": 3600, "audiences": [AUDIENCE]}
    answer = cluster.api.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return str(answer["status"]["token"])


def test_each_viewer_sees_the_names_that_it_may_list(cluster: Cluster, pages: Pages) -> None:
    reader, tenant = viewer(cluster, "reader", everywhere=True), viewer(cluster, "tenant", here=True)
    nobody, own = viewer(cluster, "nobody", page=False, everywhere=True), f"{cluster.namespace}/train"
    wait_for(lambda: f"{OTHER}/model-x" in pages.get("/", reader)[1], "the pod of the other tenant")

    for path in ("/", "/?q=model", "/node?name=switch", "/map.json", "/where?pods=1&gpus=8"):
        status, text = pages.get(path, tenant)
        assert (status, OTHER in text, "model-x" in text) == (200, False, False), path
    assert own in pages.get("/", tenant)[1]
    assert own in pages.get("/", reader)[1]
    assert "another namespace&#x27;s pod (2)" in pages.get("/", tenant)[1].replace("'", "&#x27;")
    for page, name in (("pod", "model-x"), ("gang", "next-model-x")):
        hidden = pages.get(f"/{page}?namespace={OTHER}&name={name}", tenant)
        absent = pages.get(f"/{page}?namespace={OTHER}&name={name[:-1]}y", tenant)
        assert hidden == (404, absent[1].replace(f"{name[:-1]}y", name))
        assert pages.get(f"/{page}?namespace={OTHER}&name={name}", reader)[0] == 200
    for path in ("/", "/map.json", "/events", "/node.svg?name=switch", "/pod?namespace=a&name=b"):
        assert pages.get(path)[0] == 401
        assert pages.get(path, "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.AAAA")[0] == 401
        assert pages.get(path, cluster.token("reader"))[0] == 401  # issued for the API server
        assert pages.get(path, nobody)[0] == 403
    assert VIEWER_ROLE in pages.get("/", nobody)[1]
    assert pages.get("/healthz") == (200, "ok\n")


def errors_of(page: BrowserPage) -> list[str]:
    """The errors that scripts of a page raise from now on."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    return found


def test_a_person_logs_in_sees_changes_and_logs_out(cluster: Cluster, browser: Browser, pages: Pages) -> None:
    reader, tenant = viewer(cluster, "reader", everywhere=True), viewer(cluster, "tenant", here=True)
    url = f"http://localhost:{pages.port}"
    for token, other in ((reader, f"{OTHER}/model-x (2)"), (tenant, "another namespace's pod (2)")):
        context = browser.new_context()
        page = context.new_page()
        errors = errors_of(page)
        page.goto(f"{url}/node?name=switch")
        assert Axe().run(page).violations_count == 0
        page.get_by_label("Token").fill("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.AAAA")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("does not accept this token")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page).to_have_url(f"{url}/node?name=switch")
        expect(page.locator("main")).to_contain_text(other)
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("link", name="Cluster").click()
        expect(page.locator("#state")).to_have_text("live", timeout=_SOON)
        name = "late" if token is reader else "later"
        cluster.create_pod(pod(name, 1, nodeName="switch"))
        expect(page.locator("#node-switch")).to_contain_text(f"{cluster.namespace}/{name} (1)", timeout=_SOON)
        assert Axe().run(page).violations_count == 0
        assert (OTHER in page.content()) == (token is reader)
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        assert context.cookies() == []
        assert errors == []
        context.close()
