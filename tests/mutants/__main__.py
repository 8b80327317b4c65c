"""`make mutants`: judge every mutant of every format, and print the table of docs/testing.md.

`python -m tests.mutants [--limit N] [FOLDER]`: at most N mutants per text; also mutants of the files of a folder.
"""

import argparse
import sys
from pathlib import Path

from tests.mutants.campaign import run_campaign, table
from tests.mutants.judge import Verdict

parser = argparse.ArgumentParser(prog="python -m tests.mutants")
parser.add_argument("--limit", type=int)
parser.add_argument("folder", type=Path, nargs="?")
options = parser.parse_args()
results = list(run_campaign(options.limit, options.folder))
for result in results:
    for case in result.wrong:
        print(f"{result.kind}: {case.mutant}: {case.verdict.value}: {case.labels}", file=sys.stderr)
print(table(results))
sys.exit(any(result.counts[Verdict.UNREPORTED] for result in results))
