"""The error of the model, and the check that raises it.

ModelError(ValueError)      a value breaks an invariant; the message quotes the value
"""

from __future__ import annotations


class ModelError(ValueError):
    """A value breaks an invariant of the model."""


def require(holds: bool, message: str) -> None:
    """Raise ``ModelError`` with a message unless an invariant holds."""
    if not holds:
        raise ModelError(message)
