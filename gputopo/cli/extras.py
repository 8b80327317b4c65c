"""The extras of pyproject.toml: packages that only some commands need, and that the base install leaves out."""

from __future__ import annotations

AGENT, CLUSTER = "agent", "cluster"
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
    install = f"pip install 'gputopo[{extra}]' (in a checkout: pip install '.[{extra}]')"
    return f"the Python package {package!r} is not installed: run {install}"
