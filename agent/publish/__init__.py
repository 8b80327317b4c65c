"""Where facts go: one publisher per `--publish`.

PublishError(Exception)     it was not taken; ``retry_after`` says how many seconds to wait, where the taker told
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import NodeFacts
from gputopo.model import NodeTopology


class PublishError(Exception):
    """The API server, or the file system, did not take it."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Outcome(msgspec.Struct, frozen=True):
    """What became of facts that were handed over."""

    written: bool  # False: it is there already; no call that writes was made
    kept_by_others: tuple[str, ...] = ()  # keys that somebody else owns; they stay theirs


class Event(msgspec.Struct, frozen=True):
    """Something to tell people about this node."""

    reason: str  # "GpuLost": one word, for machines
    message: str
    warning: bool


class Publisher(Protocol):
    """A place to publish to. Every method raises ``PublishError``."""

    def publish(self, facts: NodeFacts) -> Outcome:
        """Make the node carry these facts."""
        ...

    def report(self, state: NodeGpus) -> bool:
        """Make the node's ``NodeGpus`` say this; True: written."""
        ...

    def announce(self, event: Event) -> None:
        """A Kubernetes Event on the Node, where there is one."""
        ...


@runtime_checkable
class Recalls(Protocol):
    """A publisher that can tell what was published before this process was."""

    def recall(self) -> NodeTopology | None:
        """The topology that is published now; None where there is none, or none that can be read."""
        ...
