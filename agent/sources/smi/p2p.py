"""``nvidia-smi topo -p2p r|w|n|a|p``: which GPUs can read, write, ... each other's memory directly.

              GPU0    GPU1
     GPU0     X       CNS
     GPU1     CNS     X

The values in its legend are ``nvmlGpuP2PStatus_t`` of ``nvmlDeviceGetP2PStatus``. The output does not say which
capability (r, w, n, a, p) it is about: only the caller knows.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from agent.sources.errors import ParseError
from agent.sources.smi.lines import OutputLine, line_error, split_lines

if TYPE_CHECKING:
    from collections.abc import Iterator


class P2pStatus(Enum):
    """The status of a peer-to-peer capability of one GPU towards another."""

    OK = "OK"  # NVML_P2P_STATUS_OK
    CHIPSET_NOT_SUPPORTED = "CNS"  # NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
    GPU_NOT_SUPPORTED = "GNS"  # NVML_P2P_STATUS_GPU_NOT_SUPPORTED
    TOPOLOGY_NOT_SUPPORTED = "TNS"  # NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED
    DISABLED_BY_REGKEY = "DR"  # NVML_P2P_STATUS_DISABLED_BY_REGKEY
    NOT_SUPPORTED = "NS"  # NVML_P2P_STATUS_NOT_SUPPORTED
    UNKNOWN = "U"  # NVML_P2P_STATUS_UNKNOWN


class P2pMatrix(msgspec.Struct, frozen=True):
    """A square matrix in the order of ``gpus``; None on the diagonal. It need not be symmetric."""

    gpus: tuple[int, ...]
    status: tuple[tuple[P2pStatus | None, ...], ...]


def parse_p2p(text: str) -> P2pMatrix:
    """Parse the first peer-to-peer matrix in ``text``; the text around it is ignored.

    Raises ``ParseError`` for a missing matrix, row or cell, and for a cell that is not in the legend.
    """
    rest = split_lines(_UNDERLINE.sub("", text))
    header = next((line for line in rest if _HEADER.fullmatch(line.text)), None)
    if header is None:
        raise ParseError("no header line like 'GPU0 GPU1 ...'; paste the output of `nvidia-smi topo -p2p r`")
    gpus = tuple(int(name[3:]) for name in header.text.split())
    if len(set(gpus)) != len(gpus):
        raise line_error(header, "a GPU has two columns")
    return P2pMatrix(gpus, tuple(_parse_row(gpu, rest, header) for gpu in gpus))


def _parse_row(gpu: int, rest: Iterator[OutputLine], header: OutputLine) -> tuple[P2pStatus | None, ...]:
    line = next(rest, None)
    if line is None:
        raise line_error(header, f"the row of GPU{gpu} is missing: the matrix was cut")
    name, *cells = line.text.split()
    names = header.text.split()
    if name != f"GPU{gpu}":
        raise line_error(line, f"expected the row of GPU{gpu}: the matrix was cut or edited")
    if len(cells) != len(names):
        raise line_error(line, f"{len(cells)} cells for {len(names)} GPUs")
    return tuple(_parse_cell(cell, name == column, line) for cell, column in zip(cells, names, strict=True))


def _parse_cell(cell: str, diagonal: bool, line: OutputLine) -> P2pStatus | None:
    if diagonal != (cell == "X"):
        raise line_error(line, f"{cell!r} on the diagonal, expected X" if diagonal else "'X' off the diagonal")
    if diagonal:
        return None
    try:
        return P2pStatus(cell)
    except ValueError:
        known = ", ".join(status.value for status in P2pStatus)
        raise line_error(line, f"unknown value {cell!r}, expected one of {known}") from None


_UNDERLINE = re.compile(r"\x1b?\[[0-9;]{0,8}m")  # around the header, on a terminal; a paste may have lost the ESC
_HEADER = re.compile(r"GPU\d{1,3}(?:\s+GPU\d{1,3})*")
