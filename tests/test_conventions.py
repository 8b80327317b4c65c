"""The conventions of names and imports (CONTRIBUTING.md), over the whole code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("gputopo", "agent", "scheduler_core", "daemonset", "docs")
# Verbs without an object: neither a search nor a reader finds out what they are about.
_BARE_VERBS = {"find", "keep", "look", "of", "put", "read", "take", "tell"}
_ELEMENT_TREE = {"agent/sources/xml_tree.py": {"find"}}  # named as in xml.etree
_STAND_INS = re.compile(r"(What|Whether|Those|Who|Whoever|Nobody)\b")  # in place of a verb or a noun
_MOST_LINES = 400


class Module(NamedTuple):
    """A module, as written."""

    path: str
    tree: ast.Module
    lines: int

    @property
    def imported(self) -> Iterator[str]:
        """The modules that it may import by name, also within functions."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (each.name for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                yield node.module
                yield from (f"{node.module}.{each.name}" for each in node.names)


def modules(*folders: str) -> list[Module]:
    """The modules of these folders."""
    found = (path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py")))
    texts = {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in found}
    return [Module(path, ast.parse(text), text.count("\n")) for path, text in texts.items()]


@pytest.fixture(scope="module")
def code() -> list[Module]:
    return modules(*PACKAGES)


@pytest.fixture(scope="module")
def tests() -> list[Module]:
    return modules("tests")


def test_class_names_are_unique(code: list[Module]) -> None:
    names = Counter(node.name for module in code for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))
    assert [name for name, times in names.items() if times > 1] == []


def test_functions_are_named_by_a_verb_and_its_object(code: list[Module]) -> None:
    found = [
        f"{module.path}:{node.lineno}: {node.name}"
        for module in code
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.strip("_") in _BARE_VERBS - _ELEMENT_TREE.get(module.path, set())
    ]
    assert found == []


def test_docstrings_say_what_happens(code: list[Module]) -> None:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    documented = ((module, node) for module in code for node in ast.walk(module.tree) if isinstance(node, kinds))
    found = [
        f"{module.path}: {docstring.splitlines()[0]}"
        for module, node in documented
        if (docstring := ast.get_docstring(node)) is not None and _STAND_INS.match(docstring)
    ]
    assert found == []


def test_modules_are_short(code: list[Module]) -> None:
    assert [module.path for module in code if module.lines >= _MOST_LINES] == []


def test_no_module_imports_a_test(tests: list[Module]) -> None:
    found = [
        f"{module.path}: {name}"
        for module in tests
        for name in module.imported
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    ]
    assert found == []


def test_unit_tests_import_no_end_to_end_tests(tests: list[Module]) -> None:
    unit = (module for module in tests if not module.path.startswith("tests/e2e/"))
    assert [f"{each.path}: {name}" for each in unit for name in each.imported if name.startswith("tests.e2e")] == []
