"""``gputopo policy``: what a policy file says, and whether it is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gputopo.cli.terminal import exit_with_error, read_bytes, write_out

if TYPE_CHECKING:
    from scheduler_core.policy.file import PolicyFile

_FILE = click.argument("file")


@click.group(context_settings={"max_content_width": 100})
def policy() -> None:
    """Check policy files, and show what they come to. docs/policies.md says what can be written in them.

    \b
    Examples:
      gputopo policy show
      gputopo policy check policy.yaml
    """


@policy.command()
@_FILE
def check(file: str) -> None:
    """Say what is wrong with a policy FILE, line by line; `-` is standard input. Exit code 2 where something is.

    \b
    Examples:
      gputopo policy check policy.yaml
      kubectl get configmap -n gputopo gputopo-policy -o jsonpath='{.data.policy\\.yaml}' | gputopo policy check -
    """
    profiles = [placement.policy.name for placement in _read(file).policies.profiles]
    write_out(f"{file}: fine; profiles, in the order in which they are tried: {', '.join(profiles)}\n")


@policy.command()
@click.argument("file", required=False)
def show(file: str | None) -> None:
    """Show all effective values of a policy FILE with the line that each comes from; without one, what is built in.

    \b
    Examples:
      gputopo policy show
      gputopo policy show policy.yaml | grep -v 'built in'
    """
    from scheduler_core.policy.show import effective_values, effective_values_text  # noqa: PLC0415  start-up of all other commands

    write_out(effective_values_text(effective_values(None if file is None else _read(file))))


def _read(file: str) -> PolicyFile:
    from scheduler_core.policy.file import PolicyError, parse_policy_file  # noqa: PLC0415

    try:
        return parse_policy_file(read_bytes(file).decode(), file)
    except UnicodeDecodeError as error:
        exit_with_error(f"{file}: this is no text: {error}")
    except PolicyError as error:
        exit_with_error(str(error))
