"""``nvidia-smi -L``: the GPUs, and the MIG devices below each.

    GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-...)
      MIG 1g.20gb     Device  0: (UUID: MIG-...)

MIG UUIDs were ``MIG-GPU-<gpu>/<gpu instance>/<compute instance>`` until driver 470. Drivers before 300 print
``(S/N: ...)`` instead of a UUID; serial numbers are never returned.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.lines import Line, lines, refuse
from agent.sources.smi.unreachable import Unreachable, unreachable


class ListedMig(msgspec.Struct, frozen=True):
    """A MIG device of a GPU."""

    index: int  # within its GPU
    profile: str  # "1g.20gb", "1c.3g.20gb", "1g.10gb+me"
    uuid: str | None


class ListedGpu(msgspec.Struct, frozen=True):
    """A GPU of the list."""

    index: int  # NVML's
    product: str | None
    uuid: str | None  # None where it was left out or replaced by "..."
    mig: tuple[ListedMig, ...] = ()


class Listing(msgspec.Struct, frozen=True):
    """What ``nvidia-smi -L`` prints."""

    gpus: tuple[ListedGpu, ...]
    unreachable: tuple[Unreachable, ...] = ()


class GpuHeader(msgspec.Struct, frozen=True):
    """The line that begins a GPU, here and in ``nvidia-smi nvlink``."""

    index: int
    product: str | None
    uuid: str | None


def parse_listing(text: str) -> Listing:
    """The GPUs of ``nvidia-smi -L``, in its order. No line at all is an empty list.

    Raises ``ParseError`` for a line that is none of its lines, a GPU listed twice and a MIG device above any GPU.
    """
    migs: dict[int, list[ListedMig]] = {}  # by the index of the GPU
    headers: list[GpuHeader] = []
    lost = []
    for line in lines(text):
        if (header := gpu_header(line)) is not None:
            if header.index in migs:
                raise refuse(line, "this GPU is listed twice; paste the output of one `nvidia-smi -L`")
            headers.append(header)
            migs[header.index] = []
        elif (mig := _mig(line)) is not None:
            if not headers:
                raise refuse(line, "a MIG device before any GPU; paste the whole output of `nvidia-smi -L`")
            migs[headers[-1].index].append(mig)
        elif (gone := unreachable(line)) is not None:
            lost.append(gone)
        elif _PROMPT.search(line.text) is None:
            raise refuse(line, "not a line of `nvidia-smi -L`, which are like 'GPU 0: NVIDIA L4 (UUID: GPU-...)'")
    gpus = (ListedGpu(gpu.index, gpu.product, gpu.uuid, tuple(migs[gpu.index])) for gpu in headers)
    return Listing(tuple(gpus), tuple(lost))


def gpu_header(line: Line) -> GpuHeader | None:
    """The GPU that a line begins; None for every other line."""
    match = _GPU.match(line.text)
    if match is None:
        return None
    product, _, rest = match[2].partition(" (UUID:")
    product = product.partition(" (S/N:")[0].strip()
    return GpuHeader(int(match[1]), product or None, _uuid(rest))


def _mig(line: Line) -> ListedMig | None:
    match = _MIG.fullmatch(line.text)
    return None if match is None else ListedMig(int(match[2]), match[1], _uuid(match[3]))


def _uuid(rest: str) -> str | None:
    candidate = rest.strip().removesuffix(")").strip()
    return candidate if _UUID.fullmatch(candidate) else None


_GPU = re.compile(r"GPU (\d{1,3}):\s(.*)")
_MIG = re.compile(r"MIG (\S{1,40})\s{1,40}Device\s{1,8}(\d{1,3}):\s{0,8}\(UUID:([^()]*)\)")
_UUID = re.compile(r"(?:MIG-)?(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/\d{1,4}/\d{1,4})?")
_PROMPT = re.compile(r"nvidia-smi (?:-L|--list-gpus)\b")  # the command itself, pasted along
