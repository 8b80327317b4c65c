"""The chart as an archive for ``helm install`` and ``helm push``: the same files give the same bytes.

python -m daemonset.chart_package FOLDER    writes gputopo-VERSION.tgz; times are SOURCE_DATE_EPOCH, or 0

``helm package`` writes the time of the build into the archive, so its archives differ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from daemonset.archive import ArchivedFile, archived

CHART = Path(__file__).with_name("chart")


def packaged(chart: Path, epoch: int) -> tuple[str, bytes]:
    """Return the name of the archive and its bytes. ``epoch``: the time of all files, in seconds since 1970."""
    described = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    entries = (
        ArchivedFile(f"{described['name']}/{path.relative_to(chart).as_posix()}", path.read_bytes())
        for path in chart.rglob("*")
        if path.is_file()
    )
    return f"{described['name']}-{described['version']}.tgz", archived(entries, epoch)


if __name__ == "__main__":
    file_name, content = packaged(CHART, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    (Path(sys.argv[1]) / file_name).write_bytes(content)
    print(file_name)
