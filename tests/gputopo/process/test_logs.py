"""One log line per event, as JSON or as text."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gputopo.process import logs

PACKAGES = ("agent", "gputopo")


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def lines(request: pytest.FixtureRequest, stream: io.StringIO) -> Iterator[io.StringIO]:
    handler = logs.start_logging(request.param, stream, PACKAGES, {"node": "gpu-7"})
    yield stream
    logs.stop_logging(handler)


def say() -> None:
    fields: dict[str, object]
    fields = {"outcome": "ok", "degraded": ["gpu3"], "why": 'a "b" c', "error": None, "kept": {}, "duration_s": 0.1}
    logging.getLogger("agent.daemon.loop").info("pass", extra={"fields": fields})


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_json_has_every_field(lines: io.StringIO) -> None:
    say()

    (line,) = lines.getvalue().splitlines()
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "info",
        "node": "gpu-7",
        "event": "pass",
        "outcome": "ok",
        "degraded": ["gpu3"],
        "why": 'a "b" c',
        "error": None,
        "kept": {},
        "duration_s": 0.1,
    }


@pytest.mark.parametrize("lines", ["text"], indirect=True)
def test_text_leaves_out_what_is_empty_and_quotes_what_has_spaces(lines: io.StringIO) -> None:
    say()

    time, rest = lines.getvalue().split(" ", 1)
    assert time.endswith("Z")
    assert rest == 'info pass outcome=ok degraded="[\\"gpu3\\"]" why="a \\"b\\" c" duration_s=0.1\n'


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_a_surprise_is_logged_with_its_trace_on_one_line(lines: io.StringIO) -> None:
    try:
        int("boom")
    except ValueError:
        logging.getLogger("agent.daemon.threads").exception("thread", extra={"fields": {"thread": "poll"}})

    (line,) = lines.getvalue().splitlines()
    assert "invalid literal for int" in json.loads(line)["trace"]


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_logs_of_libraries_and_debug_lines_are_left_out(lines: io.StringIO) -> None:
    logging.getLogger("agent.daemon.loop").debug("detail")
    logging.getLogger("urllib3").warning("retry")

    assert lines.getvalue() == ""


def test_stopping_leaves_no_trace(stream: io.StringIO) -> None:
    before = [list(logging.getLogger(name).handlers) for name in PACKAGES]

    logs.stop_logging(logs.start_logging("text", stream, PACKAGES, {}))

    assert [logging.getLogger(name).handlers for name in PACKAGES] == before


FORGED = (
    "a\rlevel=info",
    "a\n2026-11-21T12:00:00Z info pass",
    "\x1b[2J\x1b]0;title\x07",
    "\x9b31m",
    "\x85next",
    "a\u2028b",
    "\u202edrawkcab",
    "\x7f",
    "\x00",
)


@pytest.mark.parametrize("text", FORGED, ids=ascii)
@pytest.mark.parametrize("lines", ["text"], indirect=True)
def test_text_escapes_what_could_forge_a_line_or_drive_a_terminal(lines: io.StringIO, text: str) -> None:
    logger = logging.getLogger("agent.daemon.loop")
    logger.warning("pod", extra={"fields": {"name": text, "names": [text], "error": RuntimeError(text)}})
    logger.warning(text)

    written = lines.getvalue()
    assert written.count("\n") == 2
    assert written.replace("\n", "").isprintable()
    assert written.isascii()
