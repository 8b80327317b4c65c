"""The reference gRPC client of a PodResources socket: it shows that the sockets are what they claim to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from tests.simulated_node.podresources import MESSAGES, METHODS, SERVICE


@contextmanager
def pod_resources(socket: Path) -> Iterator[Callable[..., Any]]:
    """Ask a node's kubelet: ``ask("Get", pod_name="train", pod_namespace="default")``."""
    with grpc.insecure_channel(f"unix:{socket}") as channel:

        def ask(method: str, **fields: str) -> Any:
            request, response = (MESSAGES[name] for name in METHODS[method])
            call = channel.unary_unary(
                f"/{SERVICE}/{method}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            return call(request(**fields), timeout=10)

        yield ask
