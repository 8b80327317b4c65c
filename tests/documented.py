"""The commands of gputopo in README, docs and help."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gputopo.cli.main import COMMANDS
from tests.pages import PAGES

BLOCK = re.compile(r"^```(?:console|sh|bash|shell)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# They read a cluster, or this machine's GPUs, unless an option names a file or an example machine.
NEED_CLUSTER = {
    "nodes",
    "pods",
    "gangs",
    "preemptions",
    "why",
    "what-if",
    "observe",
    "ui",
    "ui-server",
    "cleanup",
    "release",
}
NEED_CLUSTER |= {"agent", "extender", "planner", "replay", "scheduler-config"}


def lines(text: str) -> Iterator[str]:
    """The command lines of a text, with continued lines joined."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            yield line[2:]


def gputopo_calls(line: str) -> Iterator[tuple[str, ...]]:
    """The arguments of each call of gputopo in a command line; a comment, or prose after two spaces, is left out."""
    words = shlex.shlex(re.split(r"\s{2,}|\s#", line)[0], posix=True, punctuation_chars="|&;(){}<>")
    words.whitespace_split = True
    words.commenters = ""
    call: list[str] | None = None
    skip, first = False, True
    try:
        found = [*words, ";"]
    except ValueError:  # a quoted text of several lines
        return
    for word in found:
        if re.fullmatch(r"[|&;(){}]+", word):
            if call:
                yield tuple(call)
            call, first = None, True
            continue
        if re.fullmatch(r"[<>]+", word):
            skip = True  # a file that the shell opens
        elif skip:
            skip = False
        elif call is not None:
            call.append(word)
        elif first and word == "gputopo":
            call = []
        first = False


def documented() -> Iterator[tuple[str, tuple[str, ...]]]:
    for page in PAGES:
        if page.name not in ("cli.md", "CHANGELOG.md"):
            for block in BLOCK.findall(page.read_text(encoding="utf-8")):
                yield from ((page.name, call) for line in lines(block) for call in gputopo_calls(line))
    for name, each in COMMANDS.items():
        text = each.load().help or ""
        for line in re.findall(r"^ +(gputopo .*)$", text.partition("Examples:")[2], re.MULTILINE):
            yield from ((f"{name} --help", call) for call in gputopo_calls(line.strip()))


CALLS = sorted({call: (page, call) for page, call in documented() if call}.values())
