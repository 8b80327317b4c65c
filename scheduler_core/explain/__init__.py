"""Why a pod is where it is, or nowhere: ``explain`` makes the story, ``document`` and ``text`` tell it. Pure.

asked      what the pod asks, in words              story     the values
best       the nodes that suit it best              spots     sets of GPUs in words
keepers    for whom planners keep GPUs
nearest    the nearest miss; ``endings`` of pods    advice    what each reason means

document.NoExplanationError    what was read is no explanation
"""

from scheduler_core.explain.document import NoExplanationError, explanation_document, parse_explanation
from scheduler_core.explain.explain import explain, explain_malformed, group_by_reason
from scheduler_core.explain.model import Explanation
from scheduler_core.explain.reservations import with_reservations
from scheduler_core.explain.text import render_text

__all__ = [
    "Explanation",
    "NoExplanationError",
    "explain",
    "explain_malformed",
    "explanation_document",
    "group_by_reason",
    "parse_explanation",
    "render_text",
    "with_reservations",
]
