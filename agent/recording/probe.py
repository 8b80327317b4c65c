"""Asks every source of a machine, once: hardware and driver in, ``Snapshot`` out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from agent.snapshot import Host, Nvml, Output, Snapshot, Sysfs
from gputopo import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Facts = TypeVar("Facts")


class Machine(NamedTuple):
    """Where a machine's facts are found; the defaults are this machine's."""

    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    nvidia_smi: str | None = "nvidia-smi"  # None: do not run it
    environ: Mapping[str, str] = os.environ
    nvml: Any = None  # the NVML bindings; None: pynvml


def probe(machine: Machine | None = None) -> Snapshot:
    """What the sources say, verbatim. Raises nothing: a source that ends in a surprise is in ``Snapshot.errors``."""
    machine = machine or Machine()
    errors: dict[str, str] = {}
    sysfs = _ask("sysfs", errors, lambda: _sysfs(machine))
    return Snapshot(
        recorder=f"gputopo {__version__}",
        host=_ask("host", errors, lambda: _host(machine, sysfs or Sysfs())),
        nvml=_ask("nvml", errors, lambda: _nvml(machine)),
        smi=_ask("smi", errors, lambda: _smi(machine)),
        sysfs=sysfs,
        errors=errors,
    )


def _ask(name: str, errors: dict[str, str], read: Callable[[], Facts]) -> Facts | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001  whatever it is, it must not take the other sources down
        errors[name] = f"{type(error).__name__}: {error}"
        return None


# A source is imported where it is asked: one that cannot be imported fails alone, too.


def _sysfs(machine: Machine) -> Sysfs:
    from agent.sources.sysfs import read_sysfs  # noqa: PLC0415

    return read_sysfs(machine.sys)


def _host(machine: Machine, sysfs: Sysfs) -> Host:
    from agent.sources.host import read_host  # noqa: PLC0415

    return read_host(machine.proc, machine.environ, sysfs)


def _nvml(machine: Machine) -> Nvml:
    from agent.sources.nvml import read_nvml  # noqa: PLC0415

    return read_nvml(machine.nvml or _bindings(), os.cpu_count() or 1)


def _bindings() -> Any:
    import pynvml  # noqa: PLC0415

    return pynvml


def _smi(machine: Machine) -> dict[str, Output] | None:
    from agent.sources.smi.runner import read_smi  # noqa: PLC0415

    return None if machine.nvidia_smi is None else read_smi(machine.nvidia_smi, machine.environ)
