"""Filters and score factors of other Python packages, found by their entry points.

A package offers a function in the group ``gputopo.filters`` or ``gputopo.factors``, and a policy file uses it by name.
The functions have the signatures of gputopo's own filters and factors (``evaluation.filters``, ``evaluation.score``).
``declare_reads`` says what a function reads of a node and of a pod beyond what all evaluations read. Nodes that agree
in it share one result. A function that declares nothing may read every label and the name of the node, so its result is
computed for each node and each pod anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeVar

from scheduler_core.policy.factors import FACTORS

FILTERS_GROUP, FACTORS_GROUP = "gputopo.filters", "gputopo.factors"
MAX_EXTENSIONS = 64  # of both groups together
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}", re.ASCII)
_MAX_KEYS = 64
_MAX_TEXT = 200
_Function = TypeVar("_Function", bound=Callable[..., Any])


class DeclaredReads(NamedTuple):
    """The keys that a function reads."""

    node_labels: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()


class Extension(NamedTuple):
    """An installed filter or factor."""

    name: str
    function: Callable[..., Any] | None  # None: it cannot be loaded
    reads: DeclaredReads | None = None  # None: not declared, so it may read everything
    measure: str = ""  # the first line of its docstring, for `gputopo why`
    error: str | None = None  # why it cannot be used


class Extensions(NamedTuple):
    """The installed extensions, by name."""

    filters: dict[str, Extension]
    factors: dict[str, Extension]


def declare_reads(
    *, node_labels: Iterable[str] = (), pod_labels: Iterable[str] = (), pod_annotations: Iterable[str] = ()
) -> Callable[[_Function], _Function]:
    """Return a decorator that declares what a filter or factor reads. Raises ``ValueError`` for more than 64 keys."""
    reads = DeclaredReads(tuple(node_labels), tuple(pod_labels), tuple(pod_annotations))
    if sum(map(len, reads)) > _MAX_KEYS:
        raise ValueError(f"{sum(map(len, reads))} keys are declared; at most {_MAX_KEYS} are supported")

    def declare(function: _Function) -> _Function:
        function.gputopo_reads = reads  # type: ignore[attr-defined]
        return function

    return declare


@cache
def installed_extensions() -> Extensions:
    """Return the extensions that are installed, once per process. One that cannot be loaded affects no other."""
    every = entry_points()  # reads the metadata of all packages
    found = sorted((*every.select(group=FILTERS_GROUP), *every.select(group=FACTORS_GROUP)), key=lambda each: each.name)
    loaded = [(each.group, _load(each)) for each in found[:MAX_EXTENSIONS]]
    return Extensions(
        {each.name: each for group, each in loaded if group == FILTERS_GROUP},
        {each.name: each for group, each in loaded if group == FACTORS_GROUP},
    )


@cache
def kept_node_labels() -> frozenset[str] | None:
    """Return the labels of nodes that some installed extension may read; None: all labels."""
    installed = installed_extensions()
    every = [each for each in (*installed.filters.values(), *installed.factors.values()) if each.error is None]
    if any(each.reads is None for each in every):
        return None
    return frozenset(key for each in every if each.reads is not None for key in each.reads.node_labels)


def _load(entry: EntryPoint) -> Extension:
    name = entry.name[:63]
    if _NAME.fullmatch(entry.name) is None or entry.name in FACTORS:
        return Extension(name, None, error="its name is not of a-z, 0-9 and -, or gputopo has a factor of this name")
    try:
        function = entry.load()
    except Exception as error:  # noqa: BLE001  any package may raise anything while it is imported
        return Extension(name, None, error=f"{entry.value}: {type(error).__name__}: {error}"[:_MAX_TEXT])
    if not callable(function):
        return Extension(name, None, error=f"{entry.value} is not a function")
    reads = getattr(function, "gputopo_reads", None)
    text = (getattr(function, "__doc__", None) or name).strip().partition("\n")[0].rstrip(".")[:_MAX_TEXT]
    return Extension(name, function, reads if isinstance(reads, DeclaredReads) else None, text)
