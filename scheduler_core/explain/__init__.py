"""Why a pod is where it is, or fits no node. Pure.

``explain`` makes the explanation (``model``) by ``requirements``, ``candidates``, ``near_misses`` (with ``evictions``)
and ``hindrances``; ``reservations`` adds reserved GPUs; ``document`` and ``text`` present it.

    document.NoExplanationError    the input is not a document of kind PodExplanation
"""

from scheduler_core.explain.document import NoExplanationError, explanation_document, parse_explanation
from scheduler_core.explain.explain import explain, explain_malformed, group_excluded
from scheduler_core.explain.model import Explanation
from scheduler_core.explain.reservations import with_reservations
from scheduler_core.explain.text import explanation_text

__all__ = [
    "Explanation",
    "NoExplanationError",
    "explain",
    "explain_malformed",
    "explanation_document",
    "explanation_text",
    "group_excluded",
    "parse_explanation",
    "with_reservations",
]
