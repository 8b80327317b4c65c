"""The agent's log: one line an event on standard error, with fields, as JSON or as text.

_log.info("pass", extra={"fields": {"outcome": "ok"}})   ->   {"time":"…","level":"info","event":"pass","outcome":"ok"}
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec


class _Lines(logging.Formatter):
    def __init__(self, node: str, write: Any) -> None:
        super().__init__()
        self._node = node
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        fields: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "node": self._node}
        fields |= {"event": record.getMessage()} | getattr(record, "fields", {})
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        line: str = self._write(fields)
        return line


def _json(fields: dict[str, Any]) -> str:
    return msgspec.json.encode(fields, enc_hook=str).decode()


def _text(fields: dict[str, Any]) -> str:
    """``time level event name=value …``; what is unknown or empty is left out."""
    rest = {name: value for name, value in fields.items() if value not in (None, [], {}, "")}
    head = " ".join(str(rest.pop(name)) for name in ("time", "level", "event"))
    rest.pop("node", None)
    return " ".join([head, *(f"{name}={_word(value)}" for name, value in rest.items())])


def _word(value: object) -> str:
    plain = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return plain if plain and not any(each in plain for each in ' "=\n') else msgspec.json.encode(plain).decode()


_FORMS = {"json": _json, "text": _text}


def start(form: str, node: str, stream: TextIO) -> logging.Handler:
    """Send what this package and ``gputopo`` log from info on to a stream; returns what does so."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Lines(node, _FORMS[form]))
    for name in ("agent", "gputopo"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return handler


def stop(handler: logging.Handler) -> None:
    """Undo ``start``."""
    for name in ("agent", "gputopo"):
        logger = logging.getLogger(name)
        logger.removeHandler(handler)
        logger.propagate = True
    handler.close()
