"""Gangs as documents: what ``-o json`` and ``-o yaml`` print. Pure.

Keys are camelCase as in Kubernetes; what is unknown is null; within ``v1`` keys are added, never renamed or removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gputopo.render.schema import API_VERSION
from scheduler_core.planner.report.listing import GangSummary
from scheduler_core.planner.report.model import GangExplanation


def gang_list(gangs: Iterable[GangSummary]) -> dict[str, Any]:
    """The gangs as a document of kind ``GangList``, in the order given."""
    return _plain({"apiVersion": API_VERSION, "kind": "GangList", "items": list(gangs)})


def explanation_document(told: GangExplanation) -> dict[str, Any]:
    """The story of one gang as a document of kind ``GangExplanation``."""
    return {"apiVersion": API_VERSION, "kind": "GangExplanation", **_plain(told)}


def _plain(value: object) -> dict[str, Any]:
    # Through JSON's own types, so that a reader of the dict and a reader of the text see the same (lists, not tuples).
    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value))
    return body
