"""The command line."""


def run() -> None:
    """Run the command line: the entry point of the console script and of ``python -m gputopo``."""
    from gputopo.cli.main import main  # noqa: PLC0415  modules of this package are also imported without the group
    from gputopo.cli.terminal import run_program  # noqa: PLC0415

    run_program(main)
