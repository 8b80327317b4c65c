"""The example package of docs/extensions.md, and packages made for a test, installed for the length of a test."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from scheduler_core.evaluation import evaluate
from scheduler_core.evaluation.extensions import CALLS
from scheduler_core.policy.extensions import installed_extensions, kept_node_labels

EXAMPLE = Path(__file__).parents[1] / "docs/examples/rack-constraints"
EntryPoints = Mapping[str, Mapping[str, str]]  # group -> name -> object


def write_distribution(folder: Path, name: str, entry_points: EntryPoints) -> None:
    """Write the metadata that an installer leaves: what ``importlib.metadata`` reads."""
    metadata = folder / f"{name}-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in names.items())
        for group, names in entry_points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines))


def install_example(folder: Path) -> None:
    """Install the example package as its pyproject.toml says."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    write_distribution(folder, "rack_constraints", project["project"]["entry-points"])
    for module in project["tool"]["setuptools"]["py-modules"]:
        (folder / f"{module}.py").write_text((EXAMPLE / f"{module}.py").read_text())


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Make the packages in the folder known to this process within the block."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    _forget()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]
        _forget()


def _forget() -> None:
    installed_extensions.cache_clear()
    kept_node_labels.cache_clear()
    for kept in (CALLS.failures, CALLS.disabled, CALLS.last_failure, vars(CALLS)["_in_a_row"]):
        kept.clear()
    forget_evaluations()


def forget_evaluations() -> None:
    """Forget the results that this process keeps."""
    for name in ("evaluator_for", "_cached_reasons", "_cached_scores"):
        vars(evaluate)[name].cache_clear()
