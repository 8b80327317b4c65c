"""Where in a YAML text each value stands. PyYAML's nodes know; the values that it makes of them do not. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import yaml


class Position(NamedTuple):
    """Both from 1, as editors count."""

    line: int
    column: int


class YamlPositions:
    """A YAML document and the places of its parts."""

    def __init__(self, value: Any, root: yaml.Node | None) -> None:
        self.value = value
        self._root = root

    @classmethod
    def parse_yaml(cls, text: str) -> YamlPositions:
        """Of that text. Raises ``yaml.YAMLError``, also where a key is written twice."""
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return cls(None, None)
        _keys_differ(root, set())
        return cls(loader.construct_document(root), root)

    def position_of(self, path: Sequence[int | str]) -> Position:
        """Where that part stands: its key in a mapping, itself in a list; where it is missing what it should be in."""
        node, mark = self._root, None if self._root is None else self._root.start_mark
        for part in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                mark = node.start_mark
            elif isinstance(node, yaml.MappingNode):
                found = next(((key, value) for key, value in node.value if key.value == part), None)
                if found is None:
                    break
                key, node = found
                mark = key.start_mark
        return Position(1, 1) if mark is None else Position(mark.line + 1, mark.column + 1)


class _Loader(yaml.SafeLoader):
    """Says where a value stands that is not what it looks like, as the date 2026-13-45."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{node.value[:60]!r} is no {kind}", problem_mark=node.start_mark
            ) from error


def _keys_differ(node: yaml.Node, looked_at: set[int]) -> None:
    """Each node once: aliases of aliases of a few hundred characters stand for billions of values."""
    if id(node) in looked_at:
        return
    looked_at.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key should be a word", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
            _keys_differ(value, looked_at)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _keys_differ(each, looked_at)
