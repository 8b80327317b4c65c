"""Splits a paste into the output of each `nvidia-smi` command in it. Pure.

`nvidia-smi -L` and `nvidia-smi nvlink -s` have the same line for each GPU; the lines below it tell which it is. A bug
report often has both beside a matrix of `topo -m`.
"""

from __future__ import annotations

import re
from itertools import groupby

import msgspec

from agent.snapshot import Output
from agent.sources.errors import ParseError

_GPU_LINE = re.compile(r"[ \t]*GPU (\d{1,3}): [^\n]*\(UUID: ")
_SHORT_GPU_LINE = re.compile(r"[ \t]*GPU (\d{1,3}): [^\n()]*\Z")  # its UUID was removed
_LINK_LINE = re.compile(r"[ \t]*Link \d+: |[^\n]*all links are inactive", re.IGNORECASE)
_MIG_LINE = re.compile(r"[ \t]*MIG \S+\s+Device\s+\d+:")
_UNREACHABLE = re.compile(r"[ \t]*Unable to determine the device handle for gpu", re.IGNORECASE)
_PROMPT = re.compile(r"nvidia-smi[ \t]+(?:-L|--list-gpus|nvlink)\b")


class _Region(msgspec.Struct):
    """Lines about GPUs with ascending indices: the output of one command."""

    lines: list[str]
    last: int = -1  # the last index

    @property
    def command(self) -> str:
        return "nvlink -s" if any(_LINK_LINE.match(line) for line in self.lines) else "-L"


def split_commands(text: str) -> tuple[dict[str, Output], str]:
    """Return the outputs of ``-L`` and ``nvlink -s`` in a paste by arguments, and the text without their lines.

    The GPU lines of ``nvlink -s`` stand for ``-L`` where the paste has none. Raises ``ParseError`` for two outputs of
    one command that differ.
    """
    regions: list[_Region] = []
    rest = []
    open_region = False
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if (short := _SHORT_GPU_LINE.match(line)) and _LINK_LINE.match(following):
            line = f"GPU {short[1]}: (UUID: ...)"  # noqa: PLW2901  the product may be shortened too: it is unknown
        if match := _GPU_LINE.match(line):
            if not open_region or int(match[1]) <= regions[-1].last:
                regions.append(_Region([]))
            regions[-1].lines.append(line)
            regions[-1].last = int(match[1])
            open_region = True
        elif open_region and (_LINK_LINE.match(line) or _MIG_LINE.match(line) or _UNREACHABLE.match(line)):
            regions[-1].lines.append(line)
        else:
            open_region = open_region and not line.strip()
            rest.append("" if _PROMPT.search(line) else line)
    outputs = {}
    for command, some in groupby(sorted(regions, key=lambda each: each.command), key=lambda each: each.command):
        texts = list(dict.fromkeys("\n".join(line.strip() for line in each.lines) + "\n" for each in some))
        if len(texts) > 1:
            raise ParseError(
                f"{texts[1].splitlines()[0][:120]!r}: `nvidia-smi {command}` is in the text {len(texts)} times with "
                "different GPUs, or lists a GPU twice; paste one machine's"
            )
        outputs[command] = Output(texts[0])
    if "nvlink -s" in outputs and "-L" not in outputs:
        headers = [line for line in outputs["nvlink -s"].stdout.splitlines() if _GPU_LINE.match(line)]
        outputs["-L"] = Output("\n".join(headers) + "\n")
    return outputs, "\n".join(rest) + "\n" * text.endswith("\n")
