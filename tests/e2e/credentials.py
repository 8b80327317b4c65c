"""The credentials of a test run: one certificate authority, client certificates, and kubeconfig files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import trustme
import yaml


class Identity(NamedTuple):
    """A user whom the API server knows by a client certificate."""

    user: str
    groups: tuple[str, ...] = ()


ADMIN = Identity("gputopo-test", ("system:masters",))
SCHEDULER = Identity("system:kube-scheduler")
CONTROLLER_MANAGER = Identity("system:kube-controller-manager")


class Authority:
    """Issues the certificates of one control plane into a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self._issued: dict[Identity, Path] = {}
        self._numbers = itertools.count()
        self.certificate = folder / "ca.crt"
        self.serving = folder / "serving.pem"  # key and certificate of every server here
        self.signing_key = folder / "service-accounts.key"  # private key of service-account tokens
        self._ca.cert_pem.write_to_path(self.certificate)
        self._ca.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(self.serving)
        self._ca.issue_cert("service-accounts").private_key_pem.write_to_path(self.signing_key)

    def client(self, identity: Identity) -> Path:
        """A PEM file with key and certificate of a user. One group at most: trustme writes one organization."""
        if identity not in self._issued:
            (group,) = identity.groups or (None,)
            # A host name that nobody uses: without one trustme writes an empty critical list, which Go refuses.
            leaf = self._ca.issue_cert("client.invalid", common_name=identity.user, organization_name=group)
            path = self._folder / f"client-{next(self._numbers)}.pem"
            leaf.private_key_and_cert_chain_pem.write_to_path(path)
            self._issued[identity] = path
        return self._issued[identity]


def write_kubeconfig(path: Path, server: str, authority: Path, user: Mapping[str, Any]) -> Path:
    """Write a kubeconfig with one context. ``user`` is as in that format: client-certificate, token, ..."""
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
                "users": [{"name": "test", "user": dict(user)}],
            }
        )
    )
    return path
