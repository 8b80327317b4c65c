"""``nvidia-smi -L``: the GPUs and their MIG devices.

    GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-...)
      MIG 1g.20gb     Device  0: (UUID: MIG-...)

MIG UUIDs were ``MIG-GPU-<gpu>/<gpu instance>/<compute instance>`` until driver 470. Drivers before 300 print
``(S/N: ...)`` instead of a UUID; serial numbers are never returned.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.lines import OutputLine, line_error, split_lines
from agent.sources.smi.unreachable import UnreachableGpu, parse_unreachable


class ListedMig(msgspec.Struct, frozen=True):
    """A MIG device of a GPU."""

    index: int  # within its GPU
    profile: str  # "1g.20gb", "1c.3g.20gb", "1g.10gb+me"
    uuid: str | None


class ListedGpu(msgspec.Struct, frozen=True):
    """A GPU of the list."""

    index: int  # NVML's
    product: str | None
    uuid: str | None  # None where it is missing or replaced by "..."
    mig: tuple[ListedMig, ...] = ()


class Listing(msgspec.Struct, frozen=True):
    """The output of ``nvidia-smi -L``."""

    gpus: tuple[ListedGpu, ...]
    unreachable: tuple[UnreachableGpu, ...] = ()


class GpuHeader(msgspec.Struct, frozen=True):
    """The first line of a GPU, here and in ``nvidia-smi nvlink``."""

    index: int
    product: str | None
    uuid: str | None


def parse_listing(text: str) -> Listing:
    """Return the GPUs of ``nvidia-smi -L``, in its order. Empty text is an empty list.

    Raises ``ParseError`` for an unknown line, a GPU listed twice and a MIG device before any GPU.
    """
    migs: dict[int, list[ListedMig]] = {}  # by the index of the GPU
    headers: list[GpuHeader] = []
    lost = []
    for line in split_lines(text):
        if (header := parse_gpu_header(line)) is not None:
            if header.index in migs:
                raise line_error(line, "this GPU is listed twice; paste the output of one `nvidia-smi -L`")
            headers.append(header)
            migs[header.index] = []
        elif (mig := _parse_mig(line)) is not None:
            if not headers:
                raise line_error(line, "a MIG device before any GPU; paste the whole output of `nvidia-smi -L`")
            migs[headers[-1].index].append(mig)
        elif (unreachable_gpu := parse_unreachable(line)) is not None:
            lost.append(unreachable_gpu)
        elif _PROMPT.search(line.text) is None:
            raise line_error(
                line, "not a line of `nvidia-smi -L`; expected a line like 'GPU 0: NVIDIA L4 (UUID: GPU-...)'"
            )
    gpus = (ListedGpu(gpu.index, gpu.product, gpu.uuid, tuple(migs[gpu.index])) for gpu in headers)
    return Listing(tuple(gpus), tuple(lost))


def parse_gpu_header(line: OutputLine) -> GpuHeader | None:
    """Return the GPU of a header line; None for every other line."""
    match = _GPU.match(line.text)
    if match is None:
        return None
    product, _, rest = match[2].partition("(UUID:")
    product = product.partition("(S/N:")[0].strip()
    return GpuHeader(int(match[1]), product or None, _uuid(rest))


def _parse_mig(line: OutputLine) -> ListedMig | None:
    match = _MIG.fullmatch(line.text)
    return None if match is None else ListedMig(int(match[2]), match[1], _uuid(match[3]))


def _uuid(rest: str) -> str | None:
    candidate = rest.strip().removesuffix(")").strip()
    return candidate if _UUID.fullmatch(candidate) else None


_GPU = re.compile(r"GPU (\d{1,3}):\s(.*)")
_MIG = re.compile(r"MIG (\S{1,40})\s{1,40}Device\s{1,8}(\d{1,3}):\s{0,8}\(UUID:([^()]*)\)")
_UUID = re.compile(r"(?:MIG-)?(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:/\d{1,4}/\d{1,4})?")
_PROMPT = re.compile(r"nvidia-smi (?:-L|--list-gpus)\b")  # the command itself, pasted with its output
