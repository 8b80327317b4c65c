"""``gputopo policy``: check policy files and show their effective values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gputopo.cli import complete
from gputopo.cli.terminal import exit_with_error, read_text, write_out

if TYPE_CHECKING:
    from scheduler_core.policy.file import PolicyFile

_FILE = click.argument("file", shell_complete=complete.files)


@click.group(context_settings={"max_content_width": 100})
def policy() -> None:
    """Check policy files, and show their effective values.

    docs/policies.md describes the format.

    \b
    Examples:
      gputopo policy show
      gputopo policy check policy.yaml
    """


@policy.command()
@_FILE
def check(file: str) -> None:
    """Check a policy FILE and print its errors with their lines; `-` is standard input.

    Exit code 2 if the file has errors.

    \b
    Examples:
      gputopo policy check policy.yaml
      kubectl get configmap -n gputopo gputopo-policy -o jsonpath='{.data.policy\\.yaml}' | gputopo policy check -
    """
    profiles = [placement.policy.name for placement in read_policy_file(file).policies.profiles]
    write_out(f"{file}: valid; profiles, in the order of matching: {', '.join(profiles)}\n")


@policy.command()
@click.argument("file", required=False, shell_complete=complete.files)
def show(file: str | None) -> None:
    """Show the effective values of a policy FILE and the line of each value; without FILE, the built-in values.

    \b
    Examples:
      gputopo policy show
      gputopo policy show policy.yaml | grep -v 'built in'
    """
    from scheduler_core.policy.show import effective_values, effective_values_text  # noqa: PLC0415  start-up of all other commands

    write_out(effective_values_text(effective_values(None if file is None else read_policy_file(file))))


def read_policy_file(file: str) -> PolicyFile:
    """Return the content of a policy file. Exit with an error if it is invalid."""
    from scheduler_core.policy.file import PolicyError, parse_policy_file  # noqa: PLC0415  0.2 s: pydantic

    try:
        return parse_policy_file(read_text(file, "a PlacementPolicy in YAML or JSON"), file)
    except PolicyError as error:
        exit_with_error(str(error))
