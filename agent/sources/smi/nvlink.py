"""``nvidia-smi nvlink -s``: state and rate of every link.

    GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-...)
             Link 0: 25.781 GB/s    up
             Link 3: <inactive>     down
    GPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-...)
    NVML: Unable to retrieve NVLink information as all links are inActive

Rates are those of NVML's ``NVML_FI_DEV_NVLINK_GET_SPEED``: MB/s (10^6 bytes), one link, ONE direction. A machine whose
GPUs have no NVLink port at all prints nothing. Links that NVML cannot read are left out by nvidia-smi, so a missing
number says nothing.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.lines import Line, lines, refuse
from agent.sources.smi.listing import GpuHeader, gpu_header
from agent.sources.smi.unreachable import unreachable


class LinkStatus(msgspec.Struct, frozen=True):
    """One NVLink of a GPU, as ``nvlink -s`` tells it."""

    link: int
    active: bool | None  # None: it said neither; ``said`` holds its words
    mbps: int | None = None  # MB/s, one direction; None where the link is down
    said: str | None = None


class GpuLinkStatus(msgspec.Struct, frozen=True):
    """The NVLinks of a GPU, as ``nvlink -s`` tells them."""

    gpu: GpuHeader
    links: tuple[LinkStatus, ...] = ()
    all_inactive: bool = False  # "all links are inActive", printed instead of links

    @property
    def active(self) -> int:
        """The links known to be up."""
        return sum(link.active is True for link in self.links)


def parse_nvlink_status(text: str) -> tuple[GpuLinkStatus, ...]:
    """The output of ``nvidia-smi nvlink -s``. Raises ``ParseError`` for a line that is none of its lines."""
    found = []
    for block in _blocks(text):
        inactive = any(_ALL_INACTIVE in line.text.lower() for line in block.other)
        links = tuple(_status(number, said) for number, said in block.links.items())
        found.append(GpuLinkStatus(block.gpu, links, inactive))
    return tuple(found)


class _Block(msgspec.Struct):
    """The lines of one GPU."""

    gpu: GpuHeader
    links: dict[int, str] = msgspec.field(default_factory=dict)  # link -> what was said of it
    other: list[Line] = msgspec.field(default_factory=list)


def _blocks(text: str) -> list[_Block]:
    blocks: dict[int, _Block] = {}
    block: _Block | None = None
    for line in lines(text):
        if (header := gpu_header(line)) is not None:
            if header.index in blocks:
                raise refuse(line, "this GPU comes twice; paste the output of one `nvidia-smi nvlink -s`")
            block = blocks[header.index] = _Block(header)
        elif unreachable(line) is None and _PROMPT.search(line.text) is None:
            if block is None:
                raise refuse(line, "not a line of `nvidia-smi nvlink`, whose first line is like 'GPU 0: NVIDIA ...'")
            _add(block, line)
    return list(blocks.values())


def _add(block: _Block, line: Line) -> None:
    if match := _LINK.match(line.text):
        if int(match[1]) in block.links:
            raise refuse(line, f"link {match[1]} of GPU {block.gpu.index} comes twice")
        block.links[int(match[1])] = match[2].strip()
    elif _ALL_INACTIVE in line.text.lower():
        block.other.append(line)
    else:
        raise refuse(line, "not a line of `nvidia-smi nvlink`, which are like 'Link 0: 25 GB/s'")


def _status(link: int, said: str) -> LinkStatus:
    if match := _RATE.fullmatch(said):
        rate = float(match[1]) * (1 if match[2].lower() == "mb" else 1000)
        return LinkStatus(link, active=True, mbps=round(rate))
    if _INACTIVE.fullmatch(said):
        return LinkStatus(link, active=False)
    return LinkStatus(link, active=None, said=said)


_ALL_INACTIVE = "all links are inactive"
_LINK = re.compile(r"Link (\d{1,3}):(.*)")
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,9})?) ?([GM]B)/s", re.IGNORECASE)
_INACTIVE = re.compile(r"<?inactive>?", re.IGNORECASE)
_PROMPT = re.compile(r"nvidia-smi nvlink\b")  # the command itself, pasted along
