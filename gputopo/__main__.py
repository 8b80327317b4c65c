"""``python -m gputopo``."""

from gputopo.cli import main

main()
