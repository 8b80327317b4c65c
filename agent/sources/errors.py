"""The errors of the sources.

ParseError(ValueError)    the text is not what its command or file holds; the message quotes it and says why
"""

from __future__ import annotations


class ParseError(ValueError):
    """The text is not what its command prints, or its file holds."""
