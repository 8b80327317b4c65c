"""The audit log of the API server: who wrote what."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class Write(NamedTuple):
    """One request that changed something, or tried to."""

    user: str  # whom the server took the caller for, after impersonation
    verb: str  # "create" "update" "patch" "delete" "deletecollection"
    resource: str  # "nodes", "pods/binding"
    namespace: str
    name: str
    status: int  # HTTP status: 200, 201, 403, 409
    agent: str  # the first word of the User-Agent


def read_writes(log: Path, offset: int = 0) -> list[Write]:
    """The writes that the log holds from a byte offset on, in the order in which they ended."""
    with log.open("rb") as file:
        file.seek(offset)
        lines = file.read().split(b"\n")[:-1]  # what follows the last newline is still being written
    return [parse_write(msgspec.json.decode(line)) for line in lines]


def parse_write(event: dict[str, Any]) -> Write:
    """An ``audit.k8s.io/v1`` event as a ``Write``."""
    target = event.get("objectRef", {})
    resource = "/".join(part for part in (target.get("resource"), target.get("subresource")) if part)
    return Write(
        user=(event.get("impersonatedUser") or event["user"])["username"],
        verb=event["verb"],
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        status=event.get("responseStatus", {}).get("code", 0),
        agent=event.get("userAgent", "").split(" ")[0],
    )
