"""The command line."""


def run() -> None:
    """Run the command line: the entry point of the console script and of ``python -m gputopo``."""
    import sys  # noqa: PLC0415  modules of this package are also imported without the group

    from gputopo.cli.main import main  # noqa: PLC0415
    from gputopo.cli.terminal import run_program  # noqa: PLC0415

    # kubectl starts its plugin by this name, with the path in front.
    name = "kubectl gputopo" if sys.argv[0].endswith("kubectl-gputopo") else None
    run_program(lambda: main(prog_name=name))
