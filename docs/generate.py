"""Write the generated pages below docs/, or with --check say which of them are stale (exit code 1)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import click

from agent.documents import read
from agent.machines import find, folder
from agent.metrics import reference as metrics
from agent.snapshot_io import snapshot_schema
from gputopo import cli
from gputopo.labels.reference import reference
from gputopo.render import renderer
from gputopo.render.schema import schema_text
from scheduler_core.policy_file import schema as policy_schema


def command_line() -> str:
    """The page docs/cli.md: `--help` of every command."""
    parts = ["# The command line\n\nThis page is generated from `--help`; `make docs` rewrites it.\n"]
    group = click.Context(cli.main)
    commands: list[tuple[str, click.Command]] = [("gputopo", cli.main)]
    for name in cli.main.list_commands(group):
        command = cli.main.get_command(group, name) or cli.main
        commands.append((f"gputopo {name}", command))
        if isinstance(command, click.Group):
            commands += [(f"gputopo {name} {each}", command.commands[each]) for each in sorted(command.commands)]
    for path, command in commands:
        context = click.Context(command, info_name=path, max_content_width=100, terminal_width=100)
        parts.append(f"## {path}\n\n```\n{command.get_help(context)}\n```\n")
    return "\n".join(parts)


def snapshots() -> str:
    """The JSON Schema of a snapshot."""
    return json.dumps(snapshot_schema(), indent=2, sort_keys=True) + "\n"


def policies() -> str:
    """The JSON Schema of a policy file."""
    return json.dumps(policy_schema(), indent=2, sort_keys=True) + "\n"


def picture(name: str) -> Callable[[], str]:
    """A recorded machine, drawn."""

    def draw() -> str:
        snapshot = find(name, folder())
        if snapshot is None:
            raise SystemExit(f"there is no recorded machine {name!r}")
        return renderer("svg")(read(Path(snapshot).read_text(encoding="utf-8")).topology)

    return draw


DOCS = Path(__file__).parent
PAGES = {
    "labels.md": reference,
    "metrics.md": metrics,
    "cli.md": command_line,
    "schema/node-topology.v1.json": schema_text,
    "schema/snapshot.v1.json": snapshots,
    "schema/policy.v1alpha1.json": policies,
    "images/dgx-1.svg": picture("dgx-1"),
    "images/link-down.svg": picture("link-down"),
}


def stale() -> list[str]:
    """The names of pages that differ from what the code says."""
    return [
        name
        for name, page in PAGES.items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != page()
    ]


def main(check: bool) -> int:
    """Write what is stale, or only name it."""
    names = stale()
    for name in names:
        if not check:
            (DOCS / name).write_text(PAGES[name](), encoding="utf-8")
        print(f"docs/{name}: {'stale; run `make docs`' if check else 'written'}")
    return 1 if check and names else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
