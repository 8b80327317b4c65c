"""A policy file that may change while it is in use: the last good one holds, whatever comes after it.

Kubernetes swaps a mounted ConfigMap by a link, so the text is compared and not the time of the file. The caller says
when to look again, and reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile

POLL_S = 2.0  # how often to look; the kubelet takes up to a minute to bring a changed ConfigMap anyway
_log = logging.getLogger(__name__)


class PolicyReload:
    """The policies in force."""

    def __init__(self, read: Callable[[], str] | None, name: str = "", base: Policy = BUILT_IN.node_policy) -> None:
        """``read``: the file's text, raising ``OSError`` or ``ValueError`` where it cannot; None: there is no file.

        ``base``: what holds where the file is silent.

        Raises ``PolicyError`` where the first text is bad, and what ``read`` raises.
        """
        self._read = read
        self._base = base
        self._name = name
        self._text = None if read is None else read()
        alone = Policies((PolicyProfile(base),))
        self.current: Policies = alone if self._text is None else parse_policy_file(self._text, name, base).policies
        self.error: str | None = None  # why a later text is not in force
        self._next_look = -inf
        self._refused: tuple[str, str] | None = None  # that text and why: it stays for hours, and is parsed once

    def poll(self, now: float) -> bool:
        """Look, where it is time to, and log what came of it. As ``look``. ``now``: monotonic seconds."""
        if now < self._next_look:
            return False
        self._next_look = now + POLL_S
        before, changed = self.error, self.reload()
        if changed:
            _log.info("policy", extra={"fields": {"profiles": len(self.current.profiles)}})
        elif self.error not in (None, before):
            _log.error("policy", extra={"fields": {"trouble": self.error, "in_force": "the one before"}})
        return changed

    def reload(self) -> bool:
        """Read again. Whether other policies are in force than before."""
        if self._read is None:
            return False
        try:
            text = self._read()
            if text == self._text:
                self.error = None
                return False
            if self._refused is not None and text == self._refused[0]:
                self.error = self._refused[1]
                return False
            found = self._parsed(text)
        except (OSError, ValueError) as error:  # a PolicyError is a ValueError, and so is text that is not UTF-8
            self.error = str(error)
            return False
        self.error = None
        self._text = text
        changed, self.current = found != self.current, found
        return changed

    def _parsed(self, text: str) -> Policies:
        try:
            return parse_policy_file(text, self._name, self._base).policies
        except PolicyError as error:
            self._refused = text, str(error)
            raise
