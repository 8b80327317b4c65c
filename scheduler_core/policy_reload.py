"""A policy file that may change while it is in use: the last good one holds, whatever comes after it.

Kubernetes swaps a mounted ConfigMap by a link, so the text is compared and not the time of the file. The caller says
when to look again, and reads.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler_core.policies import BUILT_IN, Policies
from scheduler_core.policy_file import PolicyError, parse

EVERY_S = 10.0  # how often to look: the kubelet takes up to a minute to bring a changed ConfigMap anyway


class PolicyReload:
    """The policies in force."""

    def __init__(self, read: Callable[[], str] | None, name: str = "") -> None:
        """``read``: the file's text, raising ``OSError`` or ``ValueError`` where it cannot; None: there is no file.

        Raises ``PolicyError`` where the first text is bad, and what ``read`` raises.
        """
        self._read = read
        self._name = name
        self._text = None if read is None else read()
        self.current: Policies = BUILT_IN if self._text is None else parse(self._text, name).policies
        self.trouble: str | None = None  # why a later text is not in force

    def look(self) -> bool:
        """Read again. Whether other policies are in force than before."""
        if self._read is None:
            return False
        try:
            text = self._read()
            if text == self._text:
                self.trouble = None
                return False
            found = parse(text, self._name).policies
        except (OSError, ValueError) as error:  # a PolicyError is a ValueError, and so is text that is not UTF-8
            self.trouble = str(error)
            return False
        self.trouble = None
        self._text = text
        changed, self.current = found != self.current, found
        return changed


__all__ = ["EVERY_S", "PolicyError", "PolicyReload"]
