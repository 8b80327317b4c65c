"""Reads the settings of Topology Manager and CPU Manager in the kubelet's ``KubeletConfiguration``, YAML or JSON."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from gputopo.process.yaml_loader import load_yaml

_MAX_BYTES = 256 * 1024
_MAX_FILES = 64  # of a directory, and folders in it
_TRUE = {"1", "t", "T", "true", "TRUE", "True"}  # strconv.ParseBool


class KubeletConfig(NamedTuple):
    """The settings, with the kubelet's defaults. None: unknown. Source: ``kubelet.config.k8s.io/v1beta1``."""

    policy: str = "none"  # topologyManagerPolicy
    scope: str | None = "container"  # topologyManagerScope
    closest: bool | None = False  # topologyManagerPolicyOptions: prefer-closest-numa-nodes
    full_cores: bool | None = False  # cpuManagerPolicyOptions: full-pcpus-only
    by_socket: bool | None = False  # cpuManagerPolicyOptions: align-by-socket


class KubeletConfigError(ValueError):
    """A file cannot be read; the message quotes its path and says what to do."""


def read_kubelet_config(paths: Iterable[Path]) -> KubeletConfig:
    """Return the settings in these files; later files override. Of a directory, its drop-in files as the kubelet's.

    Raises ``KubeletConfigError``, also for a setting of another type: the kubelet does not start with it.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        for file in _files(path):
            document = _read_document(file)
            found = {name: check(file, name, document.get(name)) for name, check in _SETTINGS.items()}
            merged = _merge_patch(merged, {name: value for name, value in found.items() if name in document})
    options, cpu_options = merged.get("topologyManagerPolicyOptions", {}), merged.get("cpuManagerPolicyOptions", {})
    return KubeletConfig(
        (merged.get("topologyManagerPolicy") or "none")[:63],
        (merged.get("topologyManagerScope") or "container")[:63],
        options.get("prefer-closest-numa-nodes") in _TRUE,
        cpu_options.get("full-pcpus-only") in _TRUE,
        cpu_options.get("align-by-socket") in _TRUE,
    )


def _merge_patch(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Return the settings after an overriding file: a JSON merge patch (RFC 7396), in which null removes a setting."""
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge_patch(merged.get(name) or {}, value) if isinstance(value, dict) else value
    return merged


def _files(path: Path) -> list[Path]:
    """Return the path, or the ``*.conf`` of a directory and its subdirectories, as ``mergeKubeletConfigurations``.

    The order is that of Go's ``filepath.WalkDir``: by the names at each level, so ``10/a.conf`` before ``10.conf``.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = []
    for walked, (folder, folders, files) in enumerate(os.walk(path, onerror=_cannot_list), 1):
        found += [file for name in (*folders, *files) if _is_drop_in(file := Path(folder, name))]
        if len(found) > _MAX_FILES or walked > _MAX_FILES:
            raise KubeletConfigError(
                f"{path}: more than {_MAX_FILES} folders or files *.conf: expected the kubelet's drop-in files"
            )
    return sorted(found, key=lambda file: file.relative_to(path).parts)


def _is_drop_in(path: Path) -> bool:
    """Return whether the kubelet reads this. It follows links to files, and does not walk links to folders."""
    return path.name.endswith(".conf") and (path.is_symlink() or not path.is_dir())


def _cannot_list(error: OSError) -> NoReturn:
    raise KubeletConfigError(
        f"{error.filename}: {error.strerror or error}: mount the kubelet's configuration files"
    ) from error


def _text(path: Path, name: str, value: object) -> str | None:
    """Return a text, or None. A YAML word like ``off`` is no text without quotes."""
    if value is not None and not isinstance(value, str):
        raise KubeletConfigError(f"{path}: {name}: {str(value)[:40]!r} is not a text: correct it, or put it in quotes")
    return value


def _texts(path: Path, name: str, value: object) -> dict[str, str | None] | None:
    """Return texts by name, or None."""
    if value is not None and not isinstance(value, dict):
        raise KubeletConfigError(f"{path}: {name}: {str(value)[:40]!r} is not a mapping of option names to texts")
    return value and {str(key): _text(path, f"{name}: {str(key)[:63]}", text) for key, text in value.items()}


_SETTINGS: dict[str, Callable[[Path, str, object], Any]] = {
    "topologyManagerPolicy": _text,
    "topologyManagerScope": _text,
    "topologyManagerPolicyOptions": _texts,
    "cpuManagerPolicyOptions": _texts,
}


def _read_document(path: Path) -> dict[str, Any]:
    try:
        # O_NONBLOCK: without it, opening a FIFO waits for a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise KubeletConfigError(f"{path}: not a regular file: remove it, or mount the right path")
            if found.st_nlink == 0:
                raise KubeletConfigError(f"{path}: the file was replaced on the host: restart the agent to read it")
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise KubeletConfigError(
            f"{path}: {error.strerror or error}: mount the kubelet's configuration file"
        ) from error
    if len(text) > _MAX_BYTES:
        raise KubeletConfigError(f"{path}: longer than {_MAX_BYTES >> 10} KiB: expected a KubeletConfiguration")
    try:
        document = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KubeletConfigError(f"{path}: not YAML: {str(error)[:200]}") from error
    if not isinstance(document, dict) or document.get("kind", "KubeletConfiguration") != "KubeletConfiguration":
        raise KubeletConfigError(f"{path}: expected a KubeletConfiguration, found {str(document)[:40]!r}")
    return document
