"""gputopo's scheduling gate, and the patch that removes it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gputopo.labels.keys import GATE


def has_gate(gates: Iterable[str]) -> bool:
    """Return whether gputopo's gate is among the gates of a pod."""
    return GATE in gates


def other_gates(gates: Iterable[str]) -> tuple[str, ...]:
    """Return the gates of other projects."""
    return tuple(each for each in gates if each != GATE)


def remove_gate_patch(identity: Mapping[str, str], gates: Iterable[str]) -> dict[str, Any]:
    """Return the merge patch that removes only gputopo's gate. ``identity``: metadata as precondition."""
    return {"metadata": dict(identity), "spec": {"schedulingGates": [{"name": each} for each in other_gates(gates)]}}
