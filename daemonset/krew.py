"""The kubectl plugin of a release for an own krew index: its archive and its manifest.

python -m daemonset.krew FOLDER [URL]    reads the wheel in FOLDER, writes kubectl-gputopo-VERSION.tar.gz, and, if URL
                                         is named, gputopo.yaml. URL: where the files of the release are published

The archive holds the wheel, the locked packages with their hashes, and a program that installs both at its first start,
because Python packages contain compiled code for one platform and one version of Python.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

import gputopo
from daemonset.archive import ArchivedFile, archived

DAEMONSET = Path(__file__).parent
PROGRAM = "kubectl-gputopo"
SYSTEMS, MACHINES = ("darwin", "linux"), ("amd64", "arm64")
_DESCRIPTION = """\
Shows the GPUs of a cluster as they are connected: NVLink islands, free GPUs that
can be used together, the placement of running pods, and why a pod or a gang waits.
It reads with the rights of your kubeconfig, and needs no installation in the
cluster for what kubectl can read.
"""
_CAVEATS = """\
Needs Python 3.11, 3.12 or 3.13. The first start downloads its Python packages,
each held to its SHA-256, from PyPI or the index that pip is configured to use.
"""


class PluginError(Exception):
    """The plugin cannot be packed; the message says why and what to do."""


def plugin_archive(wheel: Path, epoch: int) -> tuple[str, bytes]:
    """Return the name of the archive and its bytes. ``epoch``: the time of all files, in seconds since 1970."""
    files = (DAEMONSET / "kubectl" / PROGRAM, DAEMONSET.parent / "LICENSE", DAEMONSET / "requirements.lock", wheel)
    entries = [ArchivedFile(file.name, file.read_bytes(), file.name == PROGRAM) for file in files]
    return f"{PROGRAM}-{gputopo.__version__}.tar.gz", archived(entries, epoch)


def plugin_manifest(name: str, archive: bytes, url: str) -> str:
    """Return the krew manifest of an archive that is published below ``url``. Raises ``PluginError``.

    Format: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest
    """
    if urlsplit(url).scheme != "https" or not urlsplit(url).netloc:
        raise PluginError(f"{url!r} is not the https:// URL of a folder: name where the files of the release are")
    digest = hashlib.sha256(archive).hexdigest()
    platforms = [
        {
            "selector": {"matchLabels": {"os": system, "arch": machine}},
            "uri": f"{url.rstrip('/')}/{name}",
            "sha256": digest,
            "files": [{"from": "*", "to": "."}],
            "bin": PROGRAM,
        }
        for system in SYSTEMS
        for machine in MACHINES
    ]
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gputopo"},
        "spec": {
            "version": f"v{gputopo.__version__}",
            "shortDescription": "Show GPU topology, free islands and placements",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(manifest, sort_keys=False)


def main(arguments: list[str]) -> int:
    """Write the files; 1 if they cannot be made, 2 if the arguments are wrong."""
    if len(arguments) not in (1, 2):
        print("usage: python -m daemonset.krew FOLDER [URL]", file=sys.stderr)
        return 2
    folder, url = Path(arguments[0]), arguments[1] if len(arguments) == 2 else ""
    wheel = folder / f"gputopo-{gputopo.__version__}-py3-none-any.whl"
    if not wheel.is_file():
        print(f"error: {wheel} does not exist: build the wheel first (make dist)", file=sys.stderr)
        return 1
    name, content = plugin_archive(wheel, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    try:
        manifest = plugin_manifest(name, content, url) if url else None
    except PluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    (folder / name).write_bytes(content)
    if manifest is not None:
        (folder / "gputopo.yaml").write_text(manifest, encoding="utf-8")
    print(name if manifest else f"{name}; no manifest for krew: name the URL of the release, make dist DOWNLOADS=URL")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
