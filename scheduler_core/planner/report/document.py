"""Gangs as documents: what ``-o json`` and ``-o yaml`` print. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gputopo.render import report
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.planner.report.model import GangExplanation


def gang_list(gangs: Iterable[GangSummary]) -> dict[str, Any]:
    """Return the gangs as a document of kind ``GangList``, in the order given."""
    return report.document("GangList", {"items": list(gangs)})


def gang_explanation_document(explanation: GangExplanation) -> dict[str, Any]:
    """Return the explanation as a document of kind ``GangExplanation``."""
    return report.document("GangExplanation", explanation)
