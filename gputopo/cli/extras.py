"""The extras of pyproject.toml: packages that only some commands need, and that the base install leaves out."""

from __future__ import annotations

AGENT, CLUSTER = "agent", "cluster"
# Until gputopo is published on PyPI, a package of that name there would not be ours: docs/release.md.
IS_PUBLISHED = False
# Extra -> the modules that gputopo imports from its packages. A test compares this with pyproject.toml.
MODULES = {
    AGENT: frozenset({"h2", "kubernetes", "prometheus_client"}),
    CLUSTER: frozenset({"httptools", "kubernetes", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop"}),
}


def missing_extra_message(command: str | None, module: str | None) -> str | None:
    """Return the error message for a command that could not import a module of its extra.

    Return None if the command's extra does not have that module: then the failed import is a defect of gputopo.
    """
    extra = AGENT if command == "agent" else CLUSTER
    package = (module or "").partition(".")[0]
    if package not in MODULES[extra]:
        return None
    return f"the Python package {package!r} is not installed: run {install_command(extra)}"


def install_command(extra: str, *, is_published: bool = IS_PUBLISHED) -> str:
    """Return the command that installs an extra: from PyPI once gputopo is published there, else in a checkout."""
    if is_published:
        return f"pip install 'gputopo[{extra}]'"
    return f"pip install '.[{extra}]' in a checkout of gputopo; it is not published as a package yet"
