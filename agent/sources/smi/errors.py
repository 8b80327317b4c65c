"""The error of this package.

ParseError(ValueError)      the text is not what the subcommand prints, or too damaged to be read safely
"""

from __future__ import annotations


class ParseError(ValueError):
    """The text cannot be read. The message quotes the line at fault, says why, and says what to do."""
