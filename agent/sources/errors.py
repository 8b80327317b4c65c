"""The error of all parsers.

ParseError(ValueError)    the text is not the expected output or file; the message quotes it and says why
"""

from __future__ import annotations


class ParseError(ValueError):
    """The text is not the output of its command, or not the content of its file."""
