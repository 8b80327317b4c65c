"""The errors of the nvidia-smi parsers.

ParseError(ValueError)    the text is not what its command prints; the message quotes the line and says why
"""

from __future__ import annotations


class ParseError(ValueError):
    """The text is not what its command prints."""
