"""The server process of `gputopo ui`, over HTTP."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import urllib3

from tests.scheduler_core.ui.cluster_documents import cluster_text
from tests.scheduler_core.ui.pages import Page


class Running(NamedTuple):
    """A server that shows a file of 20 nodes."""

    url: str
    http: urllib3.PoolManager
    pid: int

    def get(self, path: str, headers: dict[str, str] | None = None) -> urllib3.BaseHTTPResponse:
        return self.http.request("GET", f"{self.url}{path}", headers=headers, timeout=30, redirect=False)


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = tmp_path_factory.mktemp("ui") / "cluster.json"
    file.write_bytes(cluster_text(20))
    with subprocess.Popen(
        [sys.executable, "-m", "gputopo", "ui", "--from", file, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        with urllib3.PoolManager() as http:
            yield Running(line.split()[2].rstrip("/"), http, process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_the_pages(ui: Running) -> None:
    for path, words in {
        "/": "of 160 GPUs free",
        "/node?name=gpu-0002": "Pods with GPUs",
        "/pod?namespace=llm&name=finetune-0-0": "llm/finetune-0-0",
        "/gang?namespace=llm&name=next-model": "It fits now, on 4 nodes",
        "/where": "GPUs of each",
        "/where?pods=2&gpus=8&island=1": "2 x 8 GPUs fit now on 2 nodes",
    }.items():
        answer = ui.get(path)
        page = Page(answer.data.decode())
        assert answer.status == 200
        assert words in page.words
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for tag, attributes in page.tags:
            assert tag != "style"
            assert "style" not in attributes
            assert not (attributes.get("href") or attributes.get("src") or "").startswith(("/", "http"))


def test_the_drawing_of_a_machine(ui: Running) -> None:
    answer = ui.get("/node.svg?name=gpu-0002")

    assert (answer.status, answer.headers["Content-Type"]) == (200, "image/svg+xml")
    assert answer.data.startswith(b"<svg")


def test_programs_get_the_totals(ui: Running) -> None:
    found = json.loads(ui.get("/map.json").data)

    assert (found["kind"], found["nodes"]) == ("ClusterMap", 20)
    assert sum(found["gpus"].values()) == 160


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/node?name=none", 404, "no GPU node 'none'"),
        ("/node", 404, "no GPU node ''"),
        ("/node.svg?name=none", 404, "unknown"),
        ("/pod?namespace=x&name=y", 404, "no pod x/y"),
        ("/gang?namespace=x&name=y", 404, "y"),
        ("/pod?name=y", 400, "specify the pod in the address: pod?namespace=NAMESPACE&name=NAME"),
        ("/gang?namespace=x", 400, "specify the gang in the address"),
        ("/where?pods=0&gpus=8", 400, "pods '0' is invalid: expected a number from 1 to 1024"),
        ("/where?pods=1&gpus=%D9%A3%D9%A3%D9%A3%D9%A3%D9%A3%D9%A3%D9%A3", 400, "is invalid"),
        ("/where?gpus=65&pods=1", 400, "expected a number from 1 to 64"),
        ("/../etc/passwd", 404, "unknown page"),
        ("/%3Cscript%3E", 404, "<script>"),
    ],
)
def test_bad_requests_say_what_is_wrong(ui: Running, path: str, status: int, words: str) -> None:
    answer = ui.get(path)

    assert answer.status == status
    page = Page(answer.data.decode())
    assert words in page.words
    assert "script" not in {tag for tag, _ in page.tags}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("free=-1", "free '-1' is not used: expected a number from 0 to 64"),
        ("free=65", "free '65' is not used"),
        ("free=2.5", "free '2.5' is not used"),
        ("fre=4", "'fre' is not used: expected group, q or free"),
        ("free=%3Cb%3E", "free '<b>' is not used"),
        (f"q={'x' * 101}", "only the first 100 characters of the search are used"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_on_the_page(ui: Running, query: str, words: str) -> None:
    answer = ui.get(f"/?{query}")

    assert answer.status == 200
    assert words in Page(answer.data.decode()).words
    assert "is not used" not in ui.get("/?free=&q=gpu").data.decode()


def test_only_requests_for_loopback_names_are_answered(ui: Running) -> None:
    for host in ("evil.example", "evil.example:8480", "localhost.evil.example:1", ""):
        answer = ui.get("/", {"Host": host})
        assert (answer.status, f"open {ui.url}/ instead" in answer.data.decode()) == (421, True)
    assert ui.get("/", {"Host": "localhost:9"}).status == 200


def test_an_unchanged_page_is_not_sent_again(ui: Running) -> None:
    first = ui.get("/?free=4")
    tag = first.headers["ETag"]

    assert ui.get("/?free=4", {"If-None-Match": tag}).status in (200, 304)  # 200 once its ages were counted anew
    assert ui.get("/?free=5", {"If-None-Match": tag}).status == 200


def test_a_browser_that_closes_its_connection_ends_nothing(ui: Running) -> None:
    """A write to a closed connection raises SIGPIPE, which ends a process that does not ignore it."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{ui.pid}/status").read_text().splitlines())

    assert int(status["SigIgn"], 16) >> (signal.SIGPIPE - 1) & 1


def test_the_server_only_reads(ui: Running) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ui.http.request(method, f"{ui.url}/").status == 405


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--listen", "0.0.0.0:0"], "is no loopback address"),
        (["--listen", "off"], "is no loopback address"),
        (["--listen", "localhost:99999999"], "is invalid: expected HOST:PORT"),
        (["--from", "/nonexistent.json"], "/nonexistent.json"),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_bytes(cluster_text(1))
    source = [] if "--from" in arguments else ["--from", str(file)]
    command = [sys.executable, "-m", "gputopo", "ui", *source, *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr
