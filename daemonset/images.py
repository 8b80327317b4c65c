"""Digests of the images of others: ``images.yaml`` and its copies in the Dockerfile, the kustomizations and the chart.

python -m daemonset.images --update     ask the registries; write missing digests; exit code 1 if another digest differs
python -m daemonset.images --release    exit code 1 while a digest is missing
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import urllib3
import yaml

from daemonset.registry import RegistryError, fetch_digest

HERE = Path(__file__).parent
IMAGES = HERE / "images.yaml"
KUBE_SCHEDULER = "registry.k8s.io/kube-scheduler"
_DIGEST = re.compile(r"(sha256:[0-9a-f]{64})?")


class Image(NamedTuple):
    """An image by tag; ``digest`` is "" while it is unknown."""

    name: str
    tag: str
    digest: str

    @property
    def reference(self) -> str:
        """NAME:TAG@DIGEST; the tag is for people, the digest decides."""
        return f"{self.name}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def load_images(text: str) -> list[Image]:
    """Return the images of ``images.yaml``. Raises ``ValueError`` for what is not a digest."""
    images = [Image(**each) for each in yaml.safe_load(text)]
    for image in images:
        if not _DIGEST.fullmatch(image.digest):
            raise ValueError(f"{image.name}:{image.tag}: not a digest (sha256: and 64 hex digits): {image.digest!r}")
    return images


def pinned(text: str, images: list[Image]) -> str:
    """Return a Dockerfile or a kustomization with the references of these images: the first of each name."""
    for image in reversed(images):
        digest = f"\n    digest: {image.digest}" if image.digest else ""
        name = re.escape(image.name)
        text = re.sub(rf"(_IMAGE=){name}:.*", rf"\g<1>{image.reference}", text)
        text = re.sub(
            rf"(- name: {name}\n    newTag: ).*(\n    digest: .*)?", rf"\g<1>{image.tag}{digest}", text, count=1
        )
    return text


def digests_by_tag(images: list[Image], name: str) -> dict[str, str]:
    """Return the known digests of an image."""
    return {each.tag: each.digest for each in images if each.name == name and each.digest}


def with_digest(text: str, image: Image, digest: str) -> str:
    """Return ``images.yaml`` with the digest of an image. Comments stay."""
    entry = rf"(- name: {re.escape(image.name)}(?: #.*)?\n  tag: {re.escape(image.tag)}\n  digest: ).*"
    return re.sub(entry, rf"\g<1>{digest}", text)


def update(path: Path, fetch: Callable[[str, str], str]) -> list[str]:
    """Write the missing digests. Return what is wrong; a digest that is already there is never replaced."""
    found, problems = path.read_text(encoding="utf-8"), []
    for image in load_images(found):
        try:
            digest = fetch(image.name, image.tag)
        except RegistryError as error:
            problems.append(str(error))
            continue
        if image.digest not in {"", digest}:
            problems.append(f"{image.reference}: the registry now serves {digest}; empty the digest to take that one")
        elif not image.digest:
            found = with_digest(found, image, digest)
    path.write_text(found, encoding="utf-8")
    return problems


def unpinned(path: Path = IMAGES) -> list[str]:
    """Return why these images cannot be released; nothing if each has a digest."""
    images = load_images(path.read_text(encoding="utf-8"))
    return [f"{each.reference} has no digest: run `make digests docs`" for each in images if not each.digest]


if __name__ == "__main__":
    http = urllib3.PoolManager(timeout=urllib3.Timeout(connect=5, read=30), retries=2)
    complaints = update(IMAGES, partial(fetch_digest, http)) if "--update" in sys.argv[1:] else unpinned()
    print(*complaints, sep="\n", end="\n" if complaints else "")
    sys.exit(1 if complaints else 0)
