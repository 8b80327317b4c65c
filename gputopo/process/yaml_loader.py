"""A YAML loader for text from outside: merge keys cannot multiply it.

Not libyaml: deep nesting raises a RecursionError in Python, and ends the process there.
"""

from __future__ import annotations

from typing import Any

import yaml

_MAX_MERGED = 100_000  # entries; a kilobyte of mappings that merge each other stands for billions


class BoundedLoader(yaml.SafeLoader):
    """``yaml.SafeLoader`` that raises ``yaml.MarkedYAMLError`` if merge keys (``<<``) make too many entries."""

    def __init__(self, stream: bytes | str) -> None:
        super().__init__(stream)
        self._merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace the merge keys of a mapping by the entries that they stand for."""
        super().flatten_mapping(node)
        self._merged += len(node.value)
        if self._merged > _MAX_MERGED:
            raise yaml.MarkedYAMLError(
                problem=f"mappings and merge keys (<<) make more than {_MAX_MERGED} entries",
                problem_mark=node.start_mark,
            )


def load_yaml(text: bytes | str) -> Any:
    """Return the only document in a text. Raises yaml.YAMLError, ValueError (an invalid date) and RecursionError."""
    loader = BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
