"""Reload of a policy file that changes while it is in use. An invalid file never replaces a valid one.

Kubernetes replaces a mounted ConfigMap by a symbolic link, so the text is compared, not the file's modification time.
The caller decides when to poll, and reads the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.policy.policy import Policy
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile

POLL_S = 2.0  # the kubelet takes up to a minute to update a mounted ConfigMap anyway
_log = logging.getLogger(__name__)


class PolicyReload:
    """The policies in force."""

    def __init__(self, read: Callable[[], str] | None, name: str = "", base: Policy = BUILT_IN.node_policy) -> None:
        """``read``: returns the text of the file, or raises ``OSError`` or ``ValueError``; None: there is no file.

        ``base``: values that the file does not set.

        Raises ``PolicyError`` if the first text is invalid, and what ``read`` raises.
        """
        self._read = read
        self._base = base
        self._name = name
        self._text = None if read is None else read()
        without_file = Policies((PolicyProfile(base),))
        self.current: Policies = (
            without_file if self._text is None else parse_policy_file(self._text, name, base).policies
        )
        self.error: str | None = None  # why the current text of the file is not in use
        self._next_poll = -inf
        self._refused: tuple[str, str] | None = None  # the last invalid text and why, so that it is parsed only once

    def poll(self, now: float) -> bool:
        """Reload if it is time, and log the result. Returns as ``reload``. ``now``: monotonic seconds."""
        if now < self._next_poll:
            return False
        self._next_poll = now + POLL_S
        before, changed = self.error, self.reload()
        if changed:
            _log.info("policy", extra={"fields": {"profiles": len(self.current.profiles)}})
        elif self.error not in (None, before):
            _log.error("policy", extra={"fields": {"trouble": self.error, "in_force": "previous policy"}})
        return changed

    def reload(self) -> bool:
        """Read the file again. Return True if other policies are in use than before."""
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
        except (OSError, ValueError) as error:  # including PolicyError and UnicodeDecodeError
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
