"""Matching of GPU products with the model that a pod requests. Pure.

Products are compared as spelled in the label ``nvidia.com/gpu.product``, ignoring case. "A100" matches every product
that contains this word: NVIDIA-A100-SXM4-80GB, but not NVIDIA-A10. A text with ``*``, ``?`` or ``[`` is a glob over the
whole product.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

_GLOB = re.compile(r"[*?\[]")
_BETWEEN_WORDS = re.compile(r"[ _-]+")


@lru_cache(maxsize=1 << 12)
def is_model(product: str, wanted: str) -> bool:
    """Return True if ``wanted`` is the product, one or several consecutive words of it, or a glob that matches it."""
    product, wanted = _words(product), _words(wanted)
    if _GLOB.search(wanted):
        return fnmatchcase(product, wanted)
    return f"-{wanted}-" in f"-{product}-"


def _words(text: str) -> str:
    return _BETWEEN_WORDS.sub("-", text.strip().casefold())
