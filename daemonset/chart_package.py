"""The chart as an archive for ``helm install`` and ``helm push``: the same files give the same bytes.

python -m daemonset.chart_package FOLDER    writes gputopo-VERSION.tgz; times are SOURCE_DATE_EPOCH, or 0

``helm package`` writes the time of the build into the archive, so its archives differ.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
from pathlib import Path

import yaml

CHART = Path(__file__).with_name("chart")


def packaged(chart: Path, epoch: int) -> tuple[str, bytes]:
    """Return the name of the archive and its bytes. ``epoch``: the time of all files, in seconds since 1970."""
    described = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    archive = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=archive, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for path in sorted(each for each in chart.rglob("*") if each.is_file()):
            content = path.read_bytes()
            entry = tarfile.TarInfo(f"{described['name']}/{path.relative_to(chart).as_posix()}")
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            tar.addfile(entry, io.BytesIO(content))
    return f"{described['name']}-{described['version']}.tgz", archive.getvalue()


if __name__ == "__main__":
    file_name, content = packaged(CHART, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    (Path(sys.argv[1]) / file_name).write_bytes(content)
    print(file_name)
