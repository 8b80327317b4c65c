"""Reads the settings of the Topology Manager in the files of the kubelet's ``KubeletConfiguration``, YAML or JSON."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from gputopo.process.yaml_loader import load_yaml

_MAX_BYTES = 256 * 1024
_CLOSEST = "prefer-closest-numa-nodes"
_TRUE = {"1", "t", "T", "true", "TRUE", "True"}  # strconv.ParseBool


class KubeletConfig(NamedTuple):
    """The settings, with the kubelet's defaults. Source: ``kubelet.config.k8s.io/v1beta1``."""

    policy: str = "none"  # topologyManagerPolicy
    scope: str = "container"  # topologyManagerScope
    closest: bool = False  # topologyManagerPolicyOptions


class KubeletConfigError(ValueError):
    """A file cannot be read; the message quotes its path and says what to do."""


def read_kubelet_config(paths: Iterable[Path]) -> KubeletConfig:
    """Return the settings in these files; later files override. Of a directory, ``*.conf`` in the order of their names.

    Raises ``KubeletConfigError``.
    """
    merged: dict[str, Any] = {}
    for path in paths:
        for file in sorted(path.glob("*.conf")) if path.is_dir() else [path]:
            merged |= {key: value for key, value in _read_document(file).items() if value is not None}
    default = KubeletConfig()
    options = merged.get("topologyManagerPolicyOptions")
    closest = options.get(_CLOSEST) if isinstance(options, dict) else None
    return KubeletConfig(
        str(merged.get("topologyManagerPolicy") or default.policy)[:63],
        str(merged.get("topologyManagerScope") or default.scope)[:63],
        str(closest) in _TRUE,
    )


def _read_document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_nlink == 0:
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
