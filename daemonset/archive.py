"""Archives with the same bytes for the same files, wherever and whenever they are written."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable
from typing import NamedTuple


class ArchivedFile(NamedTuple):
    """A file of an archive."""

    name: str
    content: bytes
    executable: bool = False


def archived(entries: Iterable[ArchivedFile], epoch: int) -> bytes:
    """Return a gzip-compressed tar archive. ``epoch``: the time of all files, in seconds since 1970."""
    archive = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=archive, mode="wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for each in sorted(entries):
            entry = tarfile.TarInfo(each.name)
            entry.size, entry.mtime, entry.mode = len(each.content), epoch, 0o755 if each.executable else 0o644
            tar.addfile(entry, io.BytesIO(each.content))
    return archive.getvalue()
