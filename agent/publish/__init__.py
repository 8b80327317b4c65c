"""Publishers: where the facts of a node are written, one class per `--publish` value.

PublishError(Exception)     the write failed; ``retry_after`` has the seconds to wait, where the server gave them
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import EncodedTopology
from gputopo.model import NodeTopology


class PublishError(Exception):
    """The API server or the file system did not accept the write."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RestoredField(msgspec.Struct, frozen=True, order=True):
    """A key or field of the agent that another client had changed, and that the agent has written again."""

    name: str  # a label or annotation of the Node, or a path: ".allocations"
    managers: tuple[str, ...] = ()  # field managers of that change; (): unknown, because a deleted field has none


class PublishOutcome(msgspec.Struct, frozen=True):
    """The result of a publication."""

    written: bool  # False: already published; nothing was stored
    kept_by_others: tuple[str, ...] = ()  # keys of other field managers, left unchanged
    restored: tuple[RestoredField, ...] = ()
    renewed: bool = False  # the heartbeat was written


class NodeEvent(msgspec.Struct, frozen=True):
    """A Kubernetes Event about this node."""

    reason: str  # CamelCase: "GpuLost"
    message: str
    warning: bool


class Publisher(Protocol):
    """A destination of facts. Every method raises ``PublishError``."""

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Write these facts to the node."""
        ...

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Write the node's ``NodeGpus``."""
        ...

    def write_event(self, event: NodeEvent) -> None:
        """Write a Kubernetes Event on the Node, where the destination has Events."""
        ...


@runtime_checkable
class ReadsPublished(Protocol):
    """A publisher that can read back what an earlier process published."""

    def read_published(self) -> NodeTopology | None:
        """Return the topology that is published now; None where there is none that can be decoded."""
        ...
