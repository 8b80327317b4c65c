"""``python -m gputopo``."""

import os
import sys

# `python -m` puts the working directory first on the module path, where a folder `agent` or a file `click.py` would be
# imported instead of ours. It stays on the path if gputopo itself is imported from it, as in a checkout.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120  no pathlib yet
    del sys.path[0]

from gputopo.cli import run

run()
