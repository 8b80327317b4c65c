"""``gputopo completion``: the completion script of a shell."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      gputopo completion bash > /etc/bash_completion.d/gputopo
      eval "$(gputopo completion zsh)"
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415  only this command

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    if kind is None:  # pragma: no cover  the choice above is click's own list
        raise click.UsageError(f"no completion for {shell}")
    click.echo(kind(root, {}, "gputopo", "_GPUTOPO_COMPLETE").source())
