"""Requests with the host and the credentials of the official client package."""

from __future__ import annotations

import ipaddress
import ssl
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import urllib3.util.ssl_
import yaml
from cryptography import x509

from gputopo.kube import transport
from gputopo.kube.client import Kube
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import KubeError
from gputopo.kube.objects import PartialObject
from gputopo.kube.rbac import NODES, PODS, READER
from tests.api_server import Answer, Asked, api_server, kubeconfig
from tests.authority import SERVER, Authority
from tests.call_counts import count_calls

NODE = {"metadata": {"name": "n"}}
PATCH = {"metadata": {"name": "p", "namespace": "team", "uid": "u", "resourceVersion": "7"}}


def connection(path: Path, url: str, user: dict[str, Any] | None = None, proxy: str | None = None) -> Kube:
    """Return a connection by a kubeconfig."""
    document = kubeconfig(url, "s3cret")
    document["clusters"][0]["cluster"] |= {} if proxy is None else {"proxy-url": proxy}
    document["users"][0]["user"] = user or document["users"][0]["user"]
    path.write_text(yaml.safe_dump(document))
    return from_kubeconfig(READER._replace(verbs={**READER.verbs, PODS: ("patch",)}), str(path))


def test_the_work_of_a_write_does_not_depend_on_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes sets seven variables in a pod for each Service of its namespace."""
    with api_server(lambda _: Answer(NODE)) as server:
        kube = connection(tmp_path / "config", server.url)

        def work() -> int:
            kube.patch(PODS, PATCH)
            return count_calls(lambda: kube.patch(PODS, PATCH))

        before = work()
        for number in range(300):
            monkeypatch.setenv(f"SERVICE_{number}_PORT", "tcp://10.0.0.1:80")

        assert work() < before + 200
        kube.close()


def test_new_credentials_are_used_after_they_were_rejected(tmp_path: Path) -> None:
    tokens = count()
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\necho >> {tmp_path}/calls\ncat {tmp_path}/credential\n")
    plugin.chmod(0o755)

    def issue() -> None:
        status = f'{{"token": "t{next(tokens)}", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'
        text = f'{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {status}}}'
        (tmp_path / "credential").write_text(text)

    def answer(request: Asked) -> Answer:
        valid = request.headers["authorization"] == "Bearer t1"
        return Answer(NODE) if valid else Answer({"message": "expired"}, 401)

    issue()
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    with api_server(answer) as server:
        kube = connection(tmp_path / "config", server.url, user)
        with pytest.raises(KubeError, match="401"):
            kube.get(NODES, "n", PartialObject)
        issue()

        assert kube.get(NODES, "n", PartialObject).metadata.name == "n"
        calls = (tmp_path / "calls").read_text()
        kube.get(NODES, "n", PartialObject)
        assert (tmp_path / "calls").read_text() == calls  # used for a few seconds
        kube.close()


def test_credentials_are_renewed_after_some_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PREPARED_S", -1.0)
    with api_server(lambda _: Answer(NODE)) as server:
        kube = connection(tmp_path / "config", server.url)
        kube.get(NODES, "n", PartialObject)
        kube._api.configuration.refresh_api_key_hook = lambda found: found.api_key.update(BearerToken="Bearer new")
        kube.get(NODES, "n", PartialObject)
        kube.close()

    assert [each.headers["authorization"] for each in server.asked] == ["Bearer s3cret", "Bearer new"]


def test_the_path_of_the_server_is_kept(tmp_path: Path) -> None:
    with api_server(lambda _: Answer(NODE)) as server:
        kube = connection(tmp_path / "config", f"{server.url}/k8s/clusters/c-1")
        kube.get(NODES, "n", PartialObject)
        kube.close()

    assert [each.path for each in server.asked] == ["/k8s/clusters/c-1/api/v1/nodes/n"]


def test_a_proxy_of_the_kubeconfig_is_used(tmp_path: Path) -> None:
    with api_server(lambda _: Answer(NODE)) as server:
        kube = connection(tmp_path / "config", "http://cluster.invalid:6443", proxy=server.url)
        kube.get(NODES, "n", PartialObject)
        kube.close()

    (request,) = server.asked
    assert request.path == "/api/v1/nodes/n"
    assert request.headers["host"] == "cluster.invalid:6443"


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with api_server(lambda _: Answer("moved", 302, {"Location": "/elsewhere"})) as server:
        kube = connection(tmp_path / "config", server.url)
        with pytest.raises(KubeError, match="cannot be decoded"):
            kube.get(NODES, "n", PartialObject)
        kube.close()

    assert [each.path for each in server.asked] == ["/api/v1/nodes/n"]


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("strict", [True, False])
def test_certificates_that_kubectl_accepts_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    """As with Python 3.13, whichever runs the tests. An unknown CA and another name are refused."""
    monkeypatch.setattr(urllib3.util.ssl_, "sys", SimpleNamespace(version_info=(3, 13)))
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    ours, others = (Authority(make_folder(tmp_path / name), strict=strict) for name in ("ours", "others"))

    def read_node(certificate: Path, cluster: dict[str, Any]) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        with api_server(lambda _: Answer(NODE), context) as server:
            document = kubeconfig(server.url, "s3cret")
            document["clusters"][0]["cluster"] |= cluster
            (tmp_path / "config").write_text(yaml.safe_dump(document))
            kube = from_kubeconfig(READER, str(tmp_path / "config"))
            try:
                return kube.get(NODES, "n", PartialObject).metadata.name
            finally:
                kube.close()

    certificate = ours.certificate("kube-apiserver", here, usage=SERVER)
    authority = {"certificate-authority": str(ours.folder / "ca.crt")}
    assert read_node(certificate, authority) == "n"
    assert read_node(certificate, {"insecure-skip-tls-verify": True}) == "n"
    for wrong in ({}, {"certificate-authority": str(others.folder / "ca.crt")}):
        with pytest.raises(KubeError, match="its certificate is not accepted: "):
            read_node(certificate, wrong)
    with pytest.raises(KubeError, match=r"not valid for '127\.0\.0\.1'"):
        read_node(ours.certificate("kube-apiserver", x509.DNSName("elsewhere"), usage=SERVER), authority)


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path
