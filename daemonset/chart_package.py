"""The chart as an archive for ``helm install`` and ``helm push``: the same files give the same bytes.

python -m daemonset.chart_package FOLDER [URL]    writes gputopo-VERSION.tgz; times are SOURCE_DATE_EPOCH, or 0

URL: the address of docs/runbooks.md, to which the alerts link by default.

``helm package`` writes the time of the build into the archive, so its archives differ.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import yaml

from daemonset.archive import ArchivedFile, archived

CHART = Path(__file__).with_name("chart")
_NO_RUNBOOKS, _RUNBOOKS = b'    runbookUrl: "" #', b'    runbookUrl: "%s" #'


def packaged(chart: Path, epoch: int, runbooks: str = "") -> tuple[str, bytes]:
    """Return the name of the archive and its bytes.

    ``epoch``: the time of all files, in seconds since 1970. ``runbooks``: the default of the value ``runbookUrl``.
    """
    described = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    entries = (
        ArchivedFile(f"{described['name']}/{path.relative_to(chart).as_posix()}", _content(path, runbooks))
        for path in chart.rglob("*")
        if path.is_file()
    )
    return f"{described['name']}-{described['version']}.tgz", archived(entries, epoch)


def _content(path: Path, runbooks: str) -> bytes:
    content = path.read_bytes()
    if path.name != "values.yaml":
        return content
    if content.count(_NO_RUNBOOKS) != 1:
        raise ValueError(f"{path}: expected one line that begins with {_NO_RUNBOOKS.decode()!r}")
    return content.replace(_NO_RUNBOOKS, _RUNBOOKS % runbooks.encode())


if __name__ == "__main__":
    file_name, content = packaged(CHART, int(os.environ.get("SOURCE_DATE_EPOCH", "0")), *sys.argv[2:3])
    (Path(sys.argv[1]) / file_name).write_bytes(content)
    print(file_name)
