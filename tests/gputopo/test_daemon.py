"""A daemon's peers come and go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

WRITES_TO_NOBODY = """
import os, signal
from gputopo.daemon import outlive_peers
from gputopo.terminal import ends_well

def program():
    {first}
    reading, writing = os.pipe()
    os.close(reading)
    try:
        os.write(writing, b"x")
    except BrokenPipeError:
        raise SystemExit(7)

ends_well(program)
"""


@pytest.mark.parametrize(
    ("first", "end"),
    [("outlive_peers()", 7), ("pass", -signal.SIGPIPE)],
    ids=["a daemon is told", "another program ends"],
)
def test_writing_to_a_peer_that_has_gone(first: str, end: int) -> None:
    done = subprocess.run([sys.executable, "-c", WRITES_TO_NOBODY.format(first=first)], env=os.environ, check=False)

    assert done.returncode == end
