"""``python -m gputopo``."""

from gputopo.cli import run

run()
