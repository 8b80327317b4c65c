"""``nvidia-smi nvlink -s``: state and rate of every link.

    GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-...)
             Link 0: 25.781 GB/s    up
             Link 3: <inactive>     down
    GPU 1: NVIDIA A100-PCIE-40GB (UUID: GPU-...)
    NVML: Unable to retrieve NVLink information as all links are inActive

Rates are those of NVML's ``NVML_FI_DEV_NVLINK_GET_SPEED``: MB/s (10^6 bytes), one link, ONE direction. On a machine
without NVLink ports the output is empty. nvidia-smi leaves out links that NVML cannot read, so a missing number has no
meaning.
"""

from __future__ import annotations

import re

import msgspec

from agent.sources.smi.lines import OutputLine, line_error, split_lines
from agent.sources.smi.listing import GpuHeader, parse_gpu_header
from agent.sources.smi.unreachable import parse_unreachable


class LinkStatus(msgspec.Struct, frozen=True):
    """One NVLink of a GPU in ``nvlink -s``."""

    link: int
    active: bool | None  # None: unknown; ``raw`` has the text
    mbps: int | None = None  # MB/s, one direction; None where the link is down
    raw: str | None = None


class GpuLinkStatus(msgspec.Struct, frozen=True):
    """The NVLinks of a GPU in ``nvlink -s``."""

    gpu: GpuHeader
    links: tuple[LinkStatus, ...] = ()
    all_inactive: bool = False  # "all links are inActive", printed instead of links

    @property
    def active(self) -> int:
        """The number of links known to be up."""
        return sum(link.active is True for link in self.links)


def parse_nvlink_status(text: str) -> tuple[GpuLinkStatus, ...]:
    """Parse the output of ``nvidia-smi nvlink -s``. Raises ``ParseError`` for an unknown line."""
    found = []
    for block in _split_blocks(text):
        inactive = any(_ALL_INACTIVE in line.text.lower() for line in block.other)
        links = tuple(_parse_status(number, status) for number, status in block.links.items())
        found.append(GpuLinkStatus(block.gpu, links, inactive))
    return tuple(found)


class _GpuBlock(msgspec.Struct):
    """The lines of one GPU."""

    gpu: GpuHeader
    links: dict[int, str] = msgspec.field(default_factory=dict)  # link -> its text
    other: list[OutputLine] = msgspec.field(default_factory=list)


def _split_blocks(text: str) -> list[_GpuBlock]:
    blocks: dict[int, _GpuBlock] = {}
    block: _GpuBlock | None = None
    for line in split_lines(text):
        if (header := parse_gpu_header(line)) is not None:
            if header.index in blocks:
                raise line_error(line, "this GPU is listed twice; paste the output of one `nvidia-smi nvlink -s`")
            block = blocks[header.index] = _GpuBlock(header)
        elif parse_unreachable(line) is None and _PROMPT.search(line.text) is None:
            if block is None:
                raise line_error(
                    line, "not a line of `nvidia-smi nvlink`; expected a first line like 'GPU 0: NVIDIA ...'"
                )
            _add_line(block, line)
    return list(blocks.values())


def _add_line(block: _GpuBlock, line: OutputLine) -> None:
    if match := _LINK.match(line.text):
        if int(match[1]) in block.links:
            raise line_error(line, f"link {match[1]} of GPU {block.gpu.index} is listed twice")
        block.links[int(match[1])] = match[2].strip()
    elif _ALL_INACTIVE in line.text.lower():
        block.other.append(line)
    else:
        raise line_error(line, "not a line of `nvidia-smi nvlink`; expected a line like 'Link 0: 25 GB/s'")


def _parse_status(link: int, raw: str) -> LinkStatus:
    if match := _RATE.fullmatch(raw):
        rate = float(match[1]) * (1 if match[2].lower() == "mb" else 1000)
        return LinkStatus(link, active=True, mbps=round(rate))
    if _INACTIVE.fullmatch(raw):
        return LinkStatus(link, active=False)
    return LinkStatus(link, active=None, raw=raw)


_ALL_INACTIVE = "all links are inactive"
_LINK = re.compile(r"Link (\d{1,3}):(.*)")
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,9})?) ?([GM]B)/s", re.IGNORECASE)
_INACTIVE = re.compile(r"<?inactive>?", re.IGNORECASE)
_PROMPT = re.compile(r"nvidia-smi nvlink\b")  # the command itself, pasted with its output
