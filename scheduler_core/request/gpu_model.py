"""Whether a GPU is of the model that a pod asks for. Pure.

Products are compared as they are spelled in the label ``nvidia.com/gpu.product``, without regard to case. "A100" stands
for every product that has this word: NVIDIA-A100-SXM4-80GB has, NVIDIA-A10 has not. A text with ``*``, ``?`` or ``[``
is a glob over the whole product.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache

_GLOB = re.compile(r"[*?\[]")
_BETWEEN_WORDS = re.compile(r"[ _-]+")


@lru_cache(maxsize=1 << 12)
def is_model(product: str, wanted: str) -> bool:
    """Whether the product is what is wanted: the product itself, one or several of its words in a row, or a glob."""
    product, wanted = _words(product), _words(wanted)
    if _GLOB.search(wanted):
        return fnmatchcase(product, wanted)
    return f"-{wanted}-" in f"-{product}-"


def _words(text: str) -> str:
    return _BETWEEN_WORDS.sub("-", text.strip().casefold())
