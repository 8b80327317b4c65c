"""The log of a daemon: one line per event on standard error, with fields, as JSON or as text.

_log.info("pass", extra={"fields": {"outcome": "ok"}})   ->   {"time":"…","level":"info","event":"pass","outcome":"ok"}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import msgspec

from gputopo.timestamps import format_micro_timestamp

Fields = Mapping[str, Any]


class _Formatter(logging.Formatter):
    def __init__(self, about: Mapping[str, str], write: Any) -> None:
        super().__init__()
        self._about = about
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        head = {"time": format_micro_timestamp(record.created), "level": record.levelname.lower()}
        fields: dict[str, Any] = {"event": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        line: str = self._write(head, self._about, fields)
        return line


def _json(head: Fields, about: Fields, fields: Fields) -> str:
    return msgspec.json.encode({**head, **about, **fields}, enc_hook=str).decode()


def _text(head: Fields, _: Fields, fields: Fields) -> str:
    """Return ``time level event name=value …``; unknown and empty values are left out."""
    rest = {name: value for name, value in fields.items() if value not in (None, [], {}, "")}
    words = (*head.values(), _printable(str(rest.pop("event"))))
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in rest.items())])


def _word(value: object) -> str:
    plain = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    quoted = not plain or any(each in plain for each in ' "=')
    return msgspec.json.encode(plain).decode() if quoted and plain.isprintable() else _printable(plain)


def _printable(text: str) -> str:
    """Return a text; as a JSON string in ASCII if it has control or format characters, which could forge lines."""
    return text if text.isprintable() else json.dumps(text)


_FORMS = {"json": _json, "text": _text}
DEBUG = ":debug"  # after the name of a form: lines of level debug, too


class LineBudget:
    """Limits the lines of one kind: ``per_second`` on average, and as many in a burst. It counts the omitted lines."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._spent_until = float("-inf")
        self._left_out = 0

    def admit_line(self, now: float) -> int | None:
        """Return the number of lines omitted since the last written line; None: omit this line, too.

        ``now``: monotonic seconds.
        """
        self._spent_until = max(self._spent_until, now - 1.0)
        if self._spent_until > now:
            self._left_out += 1
            return None
        self._spent_until += 1.0 / self._per_second
        left_out, self._left_out = self._left_out, 0
        return left_out


class LogSink(logging.StreamHandler[TextIO]):
    """The handler that writes the log lines of some packages."""

    def __init__(self, stream: TextIO, packages: Sequence[str]) -> None:
        super().__init__(stream)
        self.packages = packages


def start_logging(form: str, stream: TextIO, packages: Sequence[str], about: Mapping[str, str]) -> LogSink:
    """Write the log lines of packages to a stream, with ``about`` in each line. ``form``: json or text.

    With ``:debug`` after the form, lines of level debug are written, too.
    """
    sink = LogSink(stream, packages)
    sink.setFormatter(_Formatter(about, _FORMS[form.removesuffix(DEBUG)]))
    for name in packages:
        logger = logging.getLogger(name)
        logger.addHandler(sink)
        logger.setLevel(logging.DEBUG if form.endswith(DEBUG) else logging.INFO)
        logger.propagate = False
    return sink


def stop_logging(sink: LogSink) -> None:
    """Undo ``start``."""
    for name in sink.packages:
        logger = logging.getLogger(name)
        logger.removeHandler(sink)
        logger.propagate = True
    sink.close()
