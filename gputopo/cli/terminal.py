"""The edge to the person at the terminal: standard streams, files, colour, and how the program ends.

Exit code 1 means degraded hardware and nothing else, so whatever goes wrong here ends with 2 and a sentence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from gputopo.render.wording import Paint

BAD_INPUT = 2
MAX_BYTES = 64 * 1024 * 1024  # far above any real document; a device file or a disk image is not read to its end
# Colours that people with colour-blindness tell apart, and that show on light and dark terminals alike.
_ISLANDS = ("cyan", "yellow", "magenta", "green", "blue", "bright_cyan", "bright_yellow", "bright_magenta")


def exit_with_error(message: str, code: int = BAD_INPUT) -> NoReturn:
    """End the program with a sentence on standard error."""
    click.echo(f"gputopo: {message}", err=True)
    sys.exit(code)


def read_bytes(source: str) -> bytes:
    """What is in a file, or in standard input for "-"; the program ends where it cannot be read."""
    try:
        if source != "-":
            with open(source, "rb") as file:  # noqa: PTH123  pathlib costs 8 ms of start-up
                data = file.read(MAX_BYTES + 1)
        elif sys.stdin is None:
            exit_with_error("standard input is closed; name a file, or pipe something into `--from -`")
        else:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        exit_with_error(f"cannot read {source}: {error.strerror}")
    if len(data) > MAX_BYTES:
        exit_with_error(f"{source}: more than {MAX_BYTES} bytes are no topology")
    return data


def write_file(name: str, text: str) -> None:
    """Write a regular file whole or not at all; a pipe or a device is written to as it is, never replaced."""
    from pathlib import Path  # noqa: PLC0415  as above

    target = Path(name).resolve()
    direct = target.exists() and not target.is_file()
    partial = target if direct else target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        if not direct:
            partial.unlink(missing_ok=True)
        exit_with_error(f"cannot write {name!r}: {error.strerror}")


def write_out(text: str) -> None:
    """Write to standard output; what its encoding cannot say is escaped."""
    if sys.stdout is None:
        exit_with_error("standard output is closed")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=not text.endswith("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # the reader has seen enough: click's and the shell's business
    except OSError as error:
        exit_with_error(f"cannot write to standard output: {error.strerror}")


def supports_unicode() -> bool:
    """Whether standard output can show box-drawing characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "└↔·".encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def terminal_paint() -> Paint:
    """How roles of text are coloured: not at all where nobody looks or NO_COLOR is set (no-color.org)."""
    if os.environ.get("NO_COLOR") or sys.stdout is None or not sys.stdout.isatty():
        return lambda _, text: text
    return _style


def _style(role: str, text: str) -> str:
    """The text in the colours of its role (the roles are listed at ``gputopo.render.wording.plain``)."""
    kind, _, number = role.partition("-")
    if kind == "island":
        return click.style(text, fg=_ISLANDS[int(number) % len(_ISLANDS)], bold=True)
    if kind in ("bad", "good"):
        return click.style(text, fg="red" if kind == "bad" else "green", bold=kind == "bad")
    if kind == "title":
        return click.style(text, bold=True)
    return click.style(text, dim=kind in ("dim", "frame", "unknown"))


def run_program(program: Callable[[], object]) -> None:
    """Run a program as a shell expects it to end: killed by SIGPIPE when its reader goes, 70 after an error of ours."""
    import signal  # noqa: PLC0415  here alone

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        program()
    except Exception:  # noqa: BLE001  the last resort: exit code 1 has another meaning
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        exit_with_error("this is an error of gputopo's: please report it, with the input if you can share it", 70)
