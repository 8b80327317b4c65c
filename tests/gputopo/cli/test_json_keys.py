"""The keys of each JSON document are of one style, as docs/json.md says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gputopo.cli import main
from tests.gputopo.cli.cluster_files import file_of, of_kind
from tests.gputopo.cli.cluster_objects import pod
from tests.gputopo.cli.gang_objects import member

CAMEL, SNAKE = re.compile(r"[a-z]+([A-Z][a-z]*|[0-9][a-z]?)*"), re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
RUNNING = pod("train", 3, node="gpu-0", phase="Running")


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, below in value.items():
            if key.isidentifier():  # others are data: indices, names of products
                yield key
            yield from keys(below)
    elif isinstance(value, list):
        for below in value:
            yield from keys(below)


@pytest.mark.parametrize(
    ("style", "arguments"),
    [
        (CAMEL, ("show", "dgx-a100")),
        (CAMEL, ("nodes", "--from", "{file}")),
        (CAMEL, ("pods", "--from", "{file}")),
        (CAMEL, ("gangs", "--from", "{file}")),
        (CAMEL, ("why", "pod", "train", "-n", "a", "--from", "{file}")),
        (CAMEL, ("why", "gang", "llm", "-n", "a", "--from", "{file}")),
        (CAMEL, ("what-if", "-f", "{pod}", "--from", "{file}")),
        (SNAKE, ("simulate", "--cluster", "dgx-1*2", "--jobs", "20")),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_keys_of_one_style(tmp_path: Path, style: re.Pattern[str], arguments: tuple[str, ...]) -> None:
    file = file_of(tmp_path, [RUNNING, member("w-0")])
    (tmp_path / "p.json").write_text(json.dumps(of_kind(pod("new", 1), "Pod")), encoding="utf-8")
    filled = [each.replace("{file}", file).replace("{pod}", str(tmp_path / "p.json")) for each in arguments]

    found = CliRunner().invoke(main.main, [*filled, "-o", "json"])

    assert found.exit_code == 0, found.output
    assert not [key for key in keys(json.loads(found.stdout)) if not style.fullmatch(key)]
