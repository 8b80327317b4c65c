"""The conventions of names and imports (CONTRIBUTING.md), over the whole code. By lines: parsing it takes 15 s."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PACKAGES = ("gputopo", "agent", "scheduler_core", "daemonset", "docs")
_CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
# Verbs without an object: neither a search nor a reader finds out what they are about.
_BARE_VERB = re.compile(r"^ *(?:async )?def (_*(?:find|keep|look|of|put|read|take|tell))\(", re.MULTILINE)
_ELEMENT_TREE = ("agent/sources/xml_tree.py: find",)  # named as in xml.etree
_STAND_IN = re.compile(r' +"""(?:What|Whether|Those|Who|Whoever|Nobody)\b')  # in place of a verb or a noun
_IMPORT = re.compile(r"^ *from (tests[\w.]*) import (\([^)]*\)|.*)|^ *import (tests[\w.]*)", re.MULTILINE)
_MOST_LINES = 400


@cache
def modules(*folders: str) -> Mapping[str, str]:
    """The texts of the modules of these folders, by path."""
    found = (path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py")))
    return {str(path.relative_to(REPOSITORY)): path.read_text(encoding="utf-8") for path in found}


def imports_of_tests(text: str) -> list[str]:
    """The imports from the folder ``tests``, each as one line."""
    return [" ".join(found.groups("")) for found in _IMPORT.finditer(text)]


def test_class_names_are_unique() -> None:
    names = Counter(name for text in modules(*PACKAGES).values() for name in _CLASS.findall(text))
    assert len(names) > 1000
    assert [name for name, times in names.items() if times > 1] == []


def test_functions_are_named_by_a_verb_and_its_object() -> None:
    found = [f"{path}: {name}" for path, text in modules(*PACKAGES).items() for name in _BARE_VERB.findall(text)]
    assert found == [*_ELEMENT_TREE]


def test_docstrings_of_functions_say_what_happens() -> None:
    found = [
        f"{path}: {line}"
        for path, text in modules(*PACKAGES).items()
        for before, line in pairwise(text.splitlines())
        if _STAND_IN.match(line) and not before.startswith("class ")
    ]
    assert found == []


def test_modules_are_short() -> None:
    assert [path for path, text in modules(*PACKAGES).items() if text.count("\n") >= _MOST_LINES] == []


def test_no_module_imports_a_test() -> None:
    found = [f"{path}: {line}" for path, text in modules("tests").items() for line in imports_of_tests(text)]
    assert len(found) > 1000
    assert [line for line in found if re.search(r"\.test_|[ (]test_\w+", line.partition(": ")[2])] == []


def test_unit_tests_import_no_end_to_end_tests() -> None:
    unit = (item for item in modules("tests").items() if not item[0].startswith("tests/e2e/"))
    assert [(path, line) for path, text in unit for line in imports_of_tests(text) if "tests.e2e" in line] == []
