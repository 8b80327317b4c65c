"""Digests of the images of others: from a registry, into one file, and from there into what is installed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from daemonset.images import IMAGES, Image, load_images, pinned, unpinned, update
from daemonset.registry import RegistryError, fetch_digest
from tests.daemonset.tools import CHART, DAEMONSET, run

A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
MANIFEST = b'{"schemaVersion": 2, "manifests": []}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"
TEXT = """\
# kept
- name: docker.io/library/python # also kept
  tag: 3.13.1-slim
  digest: ""
- name: registry.k8s.io/kube-scheduler
  tag: v1.37.1
  digest: "{}"
"""


@contextmanager
def registry(*, named: str = DIGEST, token: str = "t", body: bytes = MANIFEST) -> Iterator[str]:
    """A registry that wants a token of every client, as docker.io does. HOST:PORT."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers["Host"]
            if self.path.startswith("/token"):
                assert self.path == "/token?service=s&scope=repository%3Alibrary%2Fpython%3Apull"
                self.answer(200, b'{"token": "t"}')
            elif self.headers["Authorization"] != f"Bearer {token}":
                realm = f'Bearer realm="http://{host}/token",service="s",scope="repository:library/python:pull"'
                self.answer(401, b"{}", **{"WWW-Authenticate": realm})
            elif self.path != "/v2/library/python/manifests/3.13":
                self.answer(404, b"no such tag")
            else:
                assert self.headers["Accept"].startswith("application/vnd.oci.image.index.v1+json, ")
                self.answer(200, body, **{"Docker-Content-Digest": named})

        def answer(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def fetched(host: str, tag: str = "3.13") -> str:
    with urllib3.PoolManager(retries=False) as http:
        return fetch_digest(http, f"{host}/library/python", tag, "http")


def test_the_digest_of_an_image_is_that_of_the_bytes() -> None:
    with registry() as host:
        assert fetched(host) == DIGEST


@pytest.mark.parametrize(
    ("server", "tag", "result"),
    [
        pytest.param({"named": A}, "3.13", "but its bytes have", id="a digest that is not of the bytes"),
        pytest.param({"token": "another"}, "3.13", "answers 401", id="a token that is not taken"),
        pytest.param({}, "4", "answers 404: b'no such tag'", id="no such tag"),
        pytest.param({"body": b" " * (5 << 20)}, "3.13", "more than 4194304 bytes", id="an endless manifest"),
    ],
)
def test_an_invalid_answer_of_a_registry_is_refused(server: dict[str, Any], tag: str, result: str) -> None:
    with registry(**server) as host, pytest.raises(RegistryError, match=result) as caught:
        fetched(host, tag)

    assert host in str(caught.value)


def test_a_registry_that_cannot_be_reached_is_named() -> None:
    with registry() as host:
        pass

    with pytest.raises(RegistryError, match=f"http://{host}/.*: no answer"):
        fetched(host)


def answering(**digests: str) -> Callable[[str, str], str]:
    def fetch(name: str, tag: str) -> str:
        if tag not in digests:
            raise RegistryError(f"no {name}:{tag}")
        return digests[tag]

    return fetch


def test_missing_digests_are_written_and_comments_stay(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(TEXT.format(B))

    assert update(path, answering(**{"3.13.1-slim": A, "v1.37.1": B})) == []
    assert path.read_text() == TEXT.format(B).replace('""', A)
    assert unpinned(path) == []


def test_a_digest_that_changed_or_cannot_be_had_is_reported_and_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "images.yaml"
    path.write_text(TEXT.format(B))

    changed = (
        f"registry.k8s.io/kube-scheduler:v1.37.1@{B}: the registry now serves {A}; empty the digest to take that one"
    )
    assert update(path, answering(**{"v1.37.1": A})) == ["no docker.io/library/python:3.13.1-slim", changed]
    assert path.read_text() == TEXT.format(B)
    assert unpinned(path) == ["docker.io/library/python:3.13.1-slim has no digest: run `make digests docs`"]


@pytest.mark.parametrize("digest", ["latest", "sha256:ab", "sha512:" + "a" * 64, A.upper()])
def test_an_invalid_digest_is_refused(digest: str) -> None:
    with pytest.raises(ValueError, match=rf"kube-scheduler:v1.37.1: not a digest.*{digest}"):
        load_images(TEXT.format(digest))


def test_dockerfile_and_kustomization_take_the_first_image_of_a_name() -> None:
    name = "registry.k8s.io/kube-scheduler"
    images = [Image("docker.io/library/python", "3.14", A), Image(name, "v1.38.0", ""), Image(name, "v1.37.1", B)]
    kustomization = (
        f"images:\n  - name: gputopo\n    newTag: 1\n  - name: {name}\n    newTag: v1.37.1\n    digest: {B}\nx: 1\n"
    )

    assert pinned("ARG PYTHON_IMAGE=docker.io/library/python:3.13@x\nFROM x\n", images) == (
        f"ARG PYTHON_IMAGE=docker.io/library/python:3.14@{A}\nFROM x\n"
    )
    assert yaml.safe_load(pinned(kustomization, images)) == {
        "images": [{"name": "gputopo", "newTag": 1}, {"name": name, "newTag": "v1.38.0"}],
        "x": 1,
    }
    assert pinned(pinned(kustomization, images), images[:1] + images[2:]) == kustomization


def test_the_base_image_of_the_build_has_a_digest() -> None:
    python, scheduler, *_ = load_images(IMAGES.read_text())

    assert python.digest
    assert (python.name, scheduler.name) == ("docker.io/library/python", "registry.k8s.io/kube-scheduler")


@pytest.mark.parametrize(
    ("settings", "version", "image"),
    [
        pytest.param((), "v1.36.3-gke.1000", "registry.k8s.io/kube-scheduler:v1.36.3@{}", id="a version that is known"),
        pytest.param((), "v1.36.99", "registry.k8s.io/kube-scheduler:v1.36.99", id="a version that is not"),
        pytest.param(
            ("digest=" + A,), "v1.36.99", f"registry.k8s.io/kube-scheduler:v1.36.99@{A}", id="a digest is set"
        ),
        pytest.param(("repository=r.example/k",), "v1.36.3", "r.example/k:v1.36.3", id="a mirror"),
    ],
)
def test_the_chart_takes_the_digest_of_the_version(settings: tuple[str, ...], version: str, image: str) -> None:
    flags = [flag for each in settings for flag in ("--set", f"scheduler.kubeScheduler.{each}")]
    text = run("helm", "template", "x", CHART, "--set", "scheduler.enabled=true", "--kube-version", version, *flags)
    known = {each.tag: each.digest for each in load_images(IMAGES.read_text())}

    assert f"image: {image.format(known['v1.36.3'])}\n" in text


def test_another_tag_in_a_kustomization_drops_the_digest(tmp_path: Path) -> None:
    """Otherwise the digest would win over the version that a user chose."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    name = "registry.k8s.io/kube-scheduler"
    for folder, image in (("inner", {"newTag": "v1.37.1", "digest": A}), ("outer", {"newTag": "v1.36.3"})):
        (tmp_path / folder).mkdir()
        resources = ["pod.yaml"] if folder == "inner" else ["../inner"]
        document = {"resources": resources, "images": [{"name": name, **image}]}
        (tmp_path / folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "inner/pod.yaml").write_text(
        yaml.safe_dump({**pod, "spec": {"containers": [{"name": "c", "image": name}]}})
    )

    assert f"image: {name}:v1.37.1@{A}\n" in run("kubectl", "kustomize", tmp_path / "inner")
    assert f"image: {name}:v1.36.3\n" in run("kubectl", "kustomize", tmp_path / "outer")


def test_no_manifest_names_an_image_by_tag_alone_that_has_a_digest() -> None:
    (image, *_) = [each for each in load_images(IMAGES.read_text()) if each.name == "registry.k8s.io/kube-scheduler"]

    assert f"image: {image.reference}\n" in run("kubectl", "kustomize", DAEMONSET / "scheduler/default")
