"""Publishers that need no API server: a file for Node Feature Discovery, and standard output."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TextIO

import msgspec

from agent.publish import NodeEvent, PublishError, PublishOutcome
from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import EncodedTopology
from gputopo.timestamps import format_timestamp


class FeaturesFilePublisher:
    """``--publish features.d``: a file that NFD's worker reads, and ignores after ``lifetime`` unless it is renewed.

    The expiry removes the labels of an agent that has stopped. The file stays when the agent exits, so that a restart
    removes no label. Mirrors and the annotation are left out, as with ``NodeFeature`` (see ``nodefeature``).
    """

    def __init__(
        self, path: Path, lifetime: timedelta, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._path = path
        self._lifetime = lifetime
        self._now = now
        self._written: dict[str, str] | None = None
        self._renew_at = datetime.min.replace(tzinfo=UTC)

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Write the labels if they changed, the file is missing, or half of its lifetime is over."""
        now = self._now()
        if facts.labels == self._written and now < self._renew_at and self._path.exists():
            return PublishOutcome(written=False)
        expiry = format_timestamp((now + self._lifetime).timestamp())
        lines = [f"# +expiry-time={expiry}", *(f"{key}={value}" for key, value in sorted(facts.labels.items()))]
        self._replace("\n".join(lines) + "\n")
        self._written = dict(facts.labels)
        self._renew_at = now + self._lifetime / 2
        return PublishOutcome(written=True)

    def write_state(self, state: NodeGpus) -> PublishOutcome:  # noqa: ARG002  part of the protocol
        """Write nothing: NFD supports labels only."""
        return PublishOutcome(written=False)

    def write_event(self, event: NodeEvent) -> None:
        """Write nothing: there is no API server."""

    def _replace(self, text: str) -> None:
        """Replace the file atomically. NFD ignores files whose name begins with a dot."""
        partial = self._path.with_name(f".{self._path.name}")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(self._path)
        except OSError as error:
            raise PublishError(f"cannot write {self._path}: {error.strerror}") from error


class StandardOutputPublisher:
    """``--publish stdout``: labels as ``key=value``, state and Events as JSON, each only when it changed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._facts: EncodedTopology | None = None
        self._state: NodeGpus | None = None

    def publish_facts(self, facts: EncodedTopology) -> PublishOutcome:
        """Print the facts."""
        if facts == self._facts:
            return PublishOutcome(written=False)
        self._facts = facts
        published = facts.labels | facts.mirrors | facts.annotations
        self._print("".join(f"{key}={value}\n" for key, value in published.items()))
        return PublishOutcome(written=True)

    def write_state(self, state: NodeGpus) -> PublishOutcome:
        """Print the state."""
        if state == self._state:
            return PublishOutcome(written=False)
        self._state = state
        self._print(msgspec.json.encode(state).decode() + "\n")
        return PublishOutcome(written=True)

    def write_event(self, event: NodeEvent) -> None:
        """Print the event."""
        self._print(msgspec.json.encode(event).decode() + "\n")

    def _print(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            raise PublishError(f"cannot write to standard output: {error.strerror}") from error
