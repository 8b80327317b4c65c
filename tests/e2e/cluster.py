"""The cluster of one test: a client of a clean API server, a namespace of its own, and helpers that inspect both."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.api_client import Client
from tests.api_objects import Object
from tests.e2e import audit
from tests.e2e.credentials import write_kubeconfig
from tests.e2e.servers import ControlPlane

T = TypeVar("T")
MARK = "mark-"  # the user agents of writes that only mark a place in the audit log


class Cluster:
    """A cluster without nodes, as an administrator sees it."""

    def __init__(self, plane: ControlPlane, api: Client, namespace: str) -> None:
        self.plane = plane
        self.api = api  # as an administrator
        self.namespace = namespace
        self._logged_since(plane.audit_log.stat().st_size)  # the cleaning after the test before this one
        self._audit_start = plane.audit_log.stat().st_size
        self.create_namespace(namespace)

    @property
    def url(self) -> str:
        """The URL of the API server."""
        return self.plane.url

    def create_namespace(self, name: str) -> None:
        """Create a namespace and its default service account, which pods need and a controller would make."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.api.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})

    def pods(self, name: str = "", namespace: str | None = None) -> str:
        """The path of a pod, or of all pods of a namespace; by default the test's own."""
        return f"/api/v1/namespaces/{namespace or self.namespace}/pods" + (f"/{name}" if name else "")

    def create_pod(self, pod: Object) -> Object:
        """Create a pod in its namespace, by default the test's own; the pod as stored."""
        return dict(self.api.create(self.pods(namespace=pod["metadata"].get("namespace")), pod))

    def pod(self, name: str) -> Object:
        """A pod of the test's namespace."""
        return dict(self.api.get(self.pods(name)))

    def wait_for_pod(self, name: str, until: Callable[[Object], Any], timeout_s: float = 20.0) -> Object:
        """Wait until a pod of the test's namespace satisfies a condition; that pod."""
        return wait_for(lambda: pod if until(pod := self.pod(name)) else None, f"pod {name}", timeout_s)

    def token(self, service_account: str, pod: Object | None = None, namespace: str | None = None) -> str:
        """A token of a service account. Bound to a pod it carries the pod's node as a claim, as a mounted one does."""
        spec: Object = {"expirationSeconds": 3600}
        if pod is not None:
            metadata = pod["metadata"]
            spec["boundObjectRef"] = {
                "kind": "Pod",
                "apiVersion": "v1",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }
        path = f"/api/v1/namespaces/{namespace or self.namespace}/serviceaccounts/{service_account}/token"
        answer = self.api.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        return str(answer["status"]["token"])

    def client(self, token: str) -> Client:
        """A client of that token's bearer; the caller closes it."""
        return Client(self.url, self.plane.authority.certificate, token=token)

    def kubeconfig(self, path: Path, token: str | None = None) -> Path:
        """Write a kubeconfig for a token's bearer, by default for an administrator."""
        if token is None:
            return self.plane.kubeconfig(path)
        return write_kubeconfig(path, self.url, self.plane.authority.certificate, {"token": token})

    def writes(self) -> list[audit.Write]:
        """Every write since this test began, by anybody, the answered ones complete."""
        return [write for write in self._logged_since(self._audit_start) if not write.agent.startswith(MARK)]

    def _logged_since(self, offset: int) -> list[audit.Write]:
        """Writes from an offset of the audit log on.

        An event is logged just after its answer was sent, so a write of our own is made last and awaited.
        """
        mark = f"{MARK}{time.monotonic_ns()}"
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        self.api.request("POST", path, review, headers={"User-Agent": mark})

        def logged() -> list[audit.Write] | None:
            found = audit.read_writes(self.plane.audit_log, offset)
            return found if any(write.agent == mark for write in found) else None

        return wait_for(logged, "the audit log")


def wait_for(probe: Callable[[], T | None], what: str, timeout_s: float = 20.0) -> T:
    """The first answer of ``probe`` that is true. Raises ``TimeoutError`` that says what was awaited."""
    deadline = time.monotonic() + timeout_s
    while not (answer := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:g} s for {what}")
        time.sleep(0.01)
    return answer
