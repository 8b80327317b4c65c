"""The position of each value in a YAML text. PyYAML's nodes have it; the values made from them do not. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import yaml

from gputopo.process.yaml_loader import BoundedLoader


class Position(NamedTuple):
    """A position; both numbers start at 1."""

    line: int
    column: int


class YamlPositions:
    """A YAML document and the positions of its parts."""

    def __init__(self, value: Any, root: yaml.Node | None) -> None:
        self.value = value
        self._root = root

    @classmethod
    def parse_yaml(cls, text: str, prepare: Callable[[yaml.Node], None] = lambda _: None) -> YamlPositions:
        """Parse the text. Raises ``yaml.YAMLError``, also for duplicate keys.

        ``prepare`` may change the nodes before their values are made: positions stay those of the text.
        """
        loader = _PolicyLoader(text)
        root = loader.get_single_node()
        if root is None:
            return cls(None, None)
        prepare(root)
        _check_keys(root, set())
        return cls(loader.construct_document(root), root)

    def position_of(self, path: Sequence[int | str]) -> Position:
        """Return the position of a part: of its key in a mapping, of the item in a list; of the parent if missing."""
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


class _PolicyLoader(BoundedLoader):
    """Reports the position of an invalid value, such as the date 2026-13-45."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(
                problem=f"{node.value[:60]!r} is not a valid {kind}", problem_mark=node.start_mark
            ) from error


def _check_keys(node: yaml.Node, visited: set[int]) -> None:
    """Visit each node once: a few hundred characters of nested aliases can stand for billions of values."""
    if id(node) in visited:
        return
    visited.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key should be a scalar", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value!r}", problem_mark=key.start_mark)
            seen.add(key.value)
            _check_keys(value, visited)
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            _check_keys(each, visited)
