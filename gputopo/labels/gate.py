"""Our scheduling gate among others, and how a pod loses it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gputopo.labels.keys import GATE


def has_gate(gates: Iterable[str]) -> bool:
    """Whether ours is among them."""
    return GATE in gates


def other_gates(gates: Iterable[str]) -> tuple[str, ...]:
    """Without ours."""
    return tuple(each for each in gates if each != GATE)


def remove_gate_patch(identity: Mapping[str, str], gates: Iterable[str]) -> dict[str, Any]:
    """The merge patch that does nothing else. ``identity``: the metadata that must still hold."""
    return {"metadata": dict(identity), "spec": {"schedulingGates": [{"name": each} for each in other_gates(gates)]}}
