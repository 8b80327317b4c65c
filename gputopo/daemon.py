"""What a command that runs for long does first."""

from __future__ import annotations

import signal


def outlive_peers() -> None:
    """Let a connection that its peer has closed be an error of the write, not the end of the process.

    ``gputopo.terminal`` has the whole program end by SIGPIPE, as a shell expects of what writes into a pipe.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
