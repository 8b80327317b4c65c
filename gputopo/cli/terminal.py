"""Standard streams, files, colours and exit codes of the commands.

Exit code 1 means degraded hardware and nothing else: an error here exits with 2 and a message.
docs/troubleshooting.md lists all.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import click

if TYPE_CHECKING:
    from gputopo.render.wording import Paint

DEGRADED, BAD_INPUT, NO_GPU, NO_CLUSTER, INCOMPLETE, INTERRUPTED = 1, 2, 3, 4, 5, 130  # exit codes
MAX_BYTES = 64 * 1024 * 1024  # larger than any real document; a device file is not read to its end
# Colours that colour-blind readers can distinguish, on light and on dark terminals.
_ISLANDS = ("cyan", "yellow", "magenta", "green", "blue", "bright_cyan", "bright_yellow", "bright_magenta")
_OUTPUT_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
_PACKED = {b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2"}  # programs by the first bytes
_GZIP = b"\x1f\x8b"  # the first bytes
_ENDS_EARLY, _INVALID_GZIP = "the gzip data ends early", "not a valid gzip file"
_QUOTED = 60  # characters of a file name


def exit_with_error(message: str, code: int = BAD_INPUT) -> NoReturn:
    """Print the message to standard error and exit."""
    click.echo(f"gputopo: {message}", err=True)
    sys.exit(code)


def read_bytes(source: str) -> bytes:
    """Return the content of a file, or of standard input for "-". Exit with an error if it cannot be read."""
    try:
        if source != "-":
            with open(source, "rb") as file:  # noqa: PTH123  pathlib costs 8 ms of start-up
                data = file.read(MAX_BYTES + 1)
        elif sys.stdin is None:
            exit_with_error("standard input is closed: name a file, or pipe the input into `--from -`")
        else:
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
    except OSError as error:
        exit_with_error(f"cannot read {source}: {error.strerror}")
    if len(data) > MAX_BYTES:
        exit_with_error(f"{source}: input exceeds {MAX_BYTES // 1024**2} MiB")
    return data


def stdin_kind() -> str | None:
    """Return whether standard input is a "pipe" or a "file"; None: a terminal, a device, a socket, or closed.

    It reads nothing, so it does not block.
    """
    import stat  # noqa: PLC0415  only for a message

    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or replaced by an object that is no file
        return None
    return "pipe" if stat.S_ISFIFO(mode) else "file" if stat.S_ISREG(mode) else None


def read_packed(source: str) -> bytes:
    """Return the content of a file or of standard input as ``read_bytes`` does, in UTF-8, of a gzip file unpacked."""
    data = read_bytes(source)
    for magic, program in _PACKED.items():
        if data.startswith(magic):
            exit_with_error(f"{source}: packed by {program}; unpack it first: {program} -dc FILE > UNPACKED")
    return _in_utf8(_unpacked(source, data) if data.startswith(_GZIP) else data)


def unpacked_lines(source: str, file: Any) -> Iterator[bytes]:
    """Yield the lines of a binary file, of a gzip file unpacked: for files that are too long to be read as a whole."""
    import io  # noqa: PLC0415  only for such files

    buffered = file if hasattr(file, "peek") else io.BufferedReader(file)
    if not buffered.peek(len(_GZIP)).startswith(_GZIP):
        yield from buffered
        return
    import gzip  # noqa: PLC0415  only for a packed file
    import zlib  # noqa: PLC0415

    try:
        yield from gzip.GzipFile(fileobj=buffered)
    except EOFError:
        exit_with_error(f"{source}: {_ENDS_EARLY}")
    except (gzip.BadGzipFile, zlib.error) as error:
        exit_with_error(f"{source}: {_INVALID_GZIP}: {error}")


def read_text(source: str, expected: str) -> str:
    """Return the text of a file or of standard input as ``read_packed`` does; ``expected``: what it should contain."""
    return decode_utf8(read_packed(source), source, expected)


def decode_utf8(data: bytes, source: str, expected: str) -> str:
    """Return the text of the bytes of ``source``. Exit with an error if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start})"
        exit_with_error(f"{source}: {what}; expected {expected}")


def _in_utf8(data: bytes) -> bytes:
    """Return the text without a byte order mark; PowerShell writes UTF-16."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").encode(errors="replace")
    return data.removeprefix(b"\xef\xbb\xbf")


def _unpacked(source: str, data: bytes) -> bytes:
    import zlib  # noqa: PLC0415  only for a packed file

    found = b""
    try:
        while data.startswith(_GZIP):  # `cat a.gz b.gz` has two parts; what is no part is ignored, as by gzip
            unpacker = zlib.decompressobj(wbits=31)
            found += unpacker.decompress(data, MAX_BYTES + 1 - len(found))
            if len(found) > MAX_BYTES:
                exit_with_error(f"{source}: it unpacks to more than {MAX_BYTES >> 20} MiB")
            if not unpacker.eof:
                exit_with_error(f"{source}: {_ENDS_EARLY}")
            data = unpacker.unused_data
    except zlib.error as error:
        exit_with_error(f"{source}: {_INVALID_GZIP}: {error}")
    return found


def write_file(name: str, text: str) -> None:
    """Write a file atomically. A pipe or a device is written to directly, not replaced."""
    from contextlib import suppress  # noqa: PLC0415  as above
    from pathlib import Path  # noqa: PLC0415

    target = Path(name)
    try:
        target = target.resolve()
        direct = target.exists() and not target.is_file()
    except OSError as error:
        exit_with_error(f"cannot write {name[:_QUOTED]!r}: {error.strerror}")
    partial = target if direct else target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        if not direct:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        exit_with_error(f"cannot write {name!r}: {error.strerror}")


def write_out(text: str) -> None:
    """Write to standard output; characters that its encoding lacks are escaped."""
    if sys.stdout is None:
        exit_with_error("standard output is closed")
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), nl=not text.endswith("\n"))


def supports_unicode() -> bool:
    """Return whether the encoding of standard output has box-drawing characters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        "└↔·".encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def terminal_width() -> int | None:
    """Return the columns of the terminal that standard output is; None: it is none, or does not know its width.

    ``COLUMNS`` overrides it, without a terminal too: ``watch`` sets it for the commands whose output it shows.
    """
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 6 and int(wanted):
        return int(wanted)
    return (os.get_terminal_size().columns or None) if is_terminal() else None


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def has_colours() -> bool:
    """Return whether output is coloured: on a terminal without NO_COLOR (no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def terminal_paint() -> Paint:
    """Return how roles of text are coloured: not at all without ``has_colours``."""
    return _style if has_colours() else lambda _, text: text


def _style(role: str, text: str) -> str:
    """Return the text in the colour of its role (the roles are listed at ``gputopo.render.wording.without_colour``)."""
    kind, _, number = role.partition("-")
    if kind == "island":
        return click.style(text, fg=_ISLANDS[int(number) % len(_ISLANDS)], bold=True)
    if kind in ("bad", "good"):
        return click.style(text, fg="red" if kind == "bad" else "green", bold=kind == "bad")
    if kind == "title":
        return click.style(text, bold=True)
    return click.style(text, dim=kind in ("dim", "frame", "unknown"))


def run_program(program: Callable[[], object]) -> None:
    """Run a program. SIGPIPE kills it when its reader closes the pipe; an error of gputopo exits with 70."""
    import signal  # noqa: PLC0415  only here

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        try:
            program()
        except SystemExit as ended:
            _exit_while_threads_run(ended)
            raise
    except Exception as error:  # noqa: BLE001  the last resort: exit code 1 has another meaning
        if _is_failed_output(error):  # also of click, which prints help texts
            _discard_output()
            exit_with_error(f"cannot write to standard output: {error.strerror}")
        import traceback  # noqa: PLC0415

        traceback.print_exc()
        exit_with_error("internal error of gputopo: please report it, with the input if you can share it", 70)


def _discard_output() -> None:
    """Send what standard output still buffers nowhere: the interpreter would fail to write it, and exit with 120."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _exit_while_threads_run(ended: SystemExit) -> None:
    """End the process here if threads still run: reads of the API server whose results are no longer needed.

    At an ordinary end OpenSSL frees what such a thread may be using, and the process crashes (exit code 139).
    """
    import atexit  # noqa: PLC0415  only here
    import os  # noqa: PLC0415
    import threading  # noqa: PLC0415

    if all(each is threading.current_thread() for each in threading.enumerate()):
        return
    if ended.code is not None and not isinstance(ended.code, int):
        click.echo(ended.code, err=True)
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  ends pools; waits for all but daemon threads
    atexit._run_exitfuncs()  # noqa: SLF001  removes the temporary files of client certificates
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(ended.code if isinstance(ended.code, int) else int(ended.code is not None))


def _is_failed_output(error: Exception) -> TypeGuard[OSError]:
    """Return whether a write to a stream failed. An error of a file that is opened by name has its name."""
    return isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_ERRORS


def near_names_text(name: str, names: Iterable[str], most: int = 1) -> str:
    """Return "; did you mean NAME?" with the most similar names, lower case compared; "" if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415  only for a message

    from gputopo.render.wording import escape_invisible  # noqa: PLC0415  only for a message

    close = get_close_matches(name.lower(), names, n=most)
    return f"; did you mean {' or '.join(map(escape_invisible, close))}?" if close else ""
