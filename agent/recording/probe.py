"""Probes all sources of a machine once: hardware and driver in, ``Snapshot`` out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agent.snapshot import Host, Nvml, Output, Snapshot, Sysfs
from gputopo import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Facts = TypeVar("Facts")


class ProbeTarget(NamedTuple):
    """The places of a machine's facts; the defaults are those of this machine."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    nvidia_smi: str | None = "nvidia-smi"  # None: do not run it
    environ: Mapping[str, str] = os.environ
    nvml: Any = None  # the NVML bindings; None: pynvml


def probe_machine(target: ProbeTarget | None = None, before: Callable[[str], None] = lambda _: None) -> Snapshot:
    """Return the unchanged output of all sources. Never raises: an exception of a source is in ``Snapshot.errors``.

    ``before`` is called with the name of each source before it is read.
    """
    target = target or ProbeTarget()
    errors: dict[str, str] = {}

    def read_or_none(name: str, source: Callable[[], Facts]) -> Facts | None:
        before(name)
        return _read_source(name, errors, source)

    sysfs = read_or_none("sysfs", lambda: _read_sysfs(target))
    return Snapshot(
        recorder=f"gputopo {__version__}",
        host=read_or_none("host", lambda: _read_host(target, sysfs or Sysfs())),
        nvml=read_or_none("nvml", lambda: _read_nvml(target)),
        smi=read_or_none("smi", lambda: _read_smi(target)),
        sysfs=sysfs,
        errors=errors,
    )


def _read_source(name: str, errors: dict[str, str], read: Callable[[], Facts]) -> Facts | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001  a failing source must not affect the others
        errors[name] = f"{type(error).__name__}: {error}"
        return None


# Each source is imported where it is read, so that an import error does not affect the others.


def _read_sysfs(target: ProbeTarget) -> Sysfs:
    from agent.sources.sysfs import read_sysfs  # noqa: PLC0415

    return read_sysfs(target.sys)


def _read_host(target: ProbeTarget, sysfs: Sysfs) -> Host:
    from agent.sources.host import read_host  # noqa: PLC0415

    return read_host(target.proc, target.environ, sysfs)


def _read_nvml(target: ProbeTarget) -> Nvml:
    from agent.sources.nvml import read_nvml  # noqa: PLC0415

    return read_nvml(target.nvml or _bindings(), os.cpu_count() or 1)


def _bindings() -> Any:
    import pynvml  # noqa: PLC0415

    return pynvml


def _read_smi(target: ProbeTarget) -> dict[str, Output] | None:
    from agent.sources.smi.runner import read_smi  # noqa: PLC0415

    return None if target.nvidia_smi is None else read_smi(target.nvidia_smi, target.environ)
