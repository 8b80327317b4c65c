"""Costs of `gputopo ui`: page weight, time to the first page, and the server's CPU time with many viewers.

A server process shows a synthetic cluster on which pods come and go (10 a second); another process holds the viewers'
streams open and, as browsers do, fetches the page when it is told to. With ``--rights`` the server is that of
``gputopo ui-server``: pods are in 200 namespaces, and each viewer may list those of another 20. The answers of the API
server to reviews are made here. Run: PYTHONPATH=. python bench/ui.py
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from random import Random
from typing import NamedTuple

import psutil
import urllib3

from gputopo.kube.cluster_file import FileKube
from gputopo.kube.page_reviews import PageUser, Verdict
from gputopo.kube.rbac import UI
from gputopo.process.daemon import bind_socket
from gputopo.process.decoding import convert
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.pod_source import PlannerPod
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.full_pod import FullPod
from scheduler_core.runtime.event_loop import Deliver, run_daemon
from scheduler_core.runtime.http_server import Listener
from scheduler_core.runtime.page_access import PageAccess
from scheduler_core.ui import main
from scheduler_core.ui.pending import ui_pod
from scheduler_core.ui.server import LIMITS, ui_app
from scheduler_core.ui.service import UiService
from scheduler_core.ui.viewers import ReviewedViewers
from tests.scheduler_core.ui.cluster_documents import cluster_text, gpu_pod

EVENTS = 10  # pods a second that are bound or end
IDLE_S = 30.0
NAMESPACES, OWN = 200, 20  # with --rights: of the cluster, and those of which a viewer may list the pods


class _Changes:
    """A watch set that delivers pods that come and go."""

    def __init__(self, deliver: Deliver, nodes: int) -> None:
        self._deliver, self._nodes = deliver, nodes
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def status(self, now: float) -> tuple[()]:  # noqa: ARG002  the signature of ``WatchSet``
        return ()

    async def _run(self) -> None:
        for number in count():
            node = f"gpu-{number * 7919 % self._nodes:04}"
            pod = convert(gpu_pod(namespace_of(f"p-{number}"), f"p-{number}", 1, node, time.time()), FullPod)
            found = ui_pod(pod.metadata.uid, pod, BUILT_IN.parse_pod)
            assert found is not None
            name = f"p-{number - 50}"
            gone = () if number < 50 else (f"{namespace_of(name)}-{name}",)
            self._deliver(Batch(PlannerPod, (found,), gone))
            await asyncio.sleep(1 / EVENTS)


def serve(nodes: int, *, rights: bool) -> None:
    """Serve a cluster of so many nodes until a signal."""
    if not rights:
        service = _watched(cluster_text(nodes))
        main.serve(
            service, "127.0.0.1:0", lambda line: print(line, flush=True), lambda deliver: _Changes(deliver, nodes)
        )
        return
    service = _watched(in_namespaces(cluster_text(nodes)))
    access = PageAccess(lambda token, _: Verdict(200, "", PageUser(token)), valid_s=30.0, max_verdicts=4000)
    listener = Listener(
        ui_app(service, ReviewedViewers(access, may_list)), bind_socket(("127.0.0.1", 0)), limits=LIMITS
    )
    print(f"gputopo ui-server: http://127.0.0.1:{listener.port}/", flush=True)
    asyncio.run(run_daemon(service, (listener,), lambda deliver: _Changes(deliver, nodes)))


def _watched(text: bytes) -> UiService:
    """Return the service of a cluster whose pages are kept up to date."""
    service = UiService()
    main.apply_lists(service, FileKube(text, UI))
    return service


def namespace_of(pod: str) -> str:
    """Return the namespace of a pod."""
    return f"team-{zlib.crc32(pod.encode()) % NAMESPACES:03}"


def in_namespaces(text: bytes) -> bytes:
    """Return the cluster with its pods in other namespaces."""
    found = json.loads(text)
    for item in found["items"]:
        for each in (
            [item["metadata"]] if item["kind"] == "Pod" else [held["pod"] for held in item.get("allocations", ())]
        ):
            each["namespace"] = namespace_of(each["name"])
            each["uid"] = f"{each['namespace']}-{each['name']}"
    return json.dumps(found).encode()


def may_list(user: PageUser, namespace: str) -> bool:
    """Return whether a user may list the pods of a namespace."""
    return namespace in own_namespaces(user.username)


@lru_cache
def own_namespaces(user: str) -> frozenset[str]:
    """Return the namespaces of a user."""
    return frozenset(f"team-{number:03}" for number in Random(user).sample(range(NAMESPACES), OWN))


class Received(NamedTuple):
    """Bytes and pages that the viewers received."""

    bytes: int  # of the streams
    pages: int
    refused: int  # of the pages


async def view(url: str, viewers: int, seconds: float) -> Received:
    """Hold the streams of viewers open."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    end = time.monotonic() + seconds

    async def one(number: int) -> int:
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n{token(number)}\r\n".encode())
        received, page = 0, None
        while (left := end - time.monotonic()) > 0:
            try:
                found = await asyncio.wait_for(reader.read(2**20), left)
            except TimeoutError:
                break
            received += len(found)
            if b'"refresh":true' in found and (page is None or page.done()):
                page = asyncio.create_task(fetch(host, int(port), number))
                pages.append(page)
        writer.close()
        return received

    pages = list[asyncio.Task[bool]]()
    received = sum(await asyncio.gather(*map(one, range(viewers))))
    answered = [each.result() for each in pages if each.done()]
    return Received(received, len(answered), answered.count(False))


async def fetch(host: str, port: int, number: int) -> bool:
    """Fetch the page three seconds later, as ``ui.js`` does. Return whether it was answered."""
    await asyncio.sleep(3)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\n{token(number)}Connection: close\r\n\r\n".encode())
    start = await reader.read(2**20)
    while await reader.read(2**20):
        pass
    writer.close()
    return start.startswith(b"HTTP/1.1 200")


def token(number: int) -> str:
    """Return the header with the token of a viewer; a local server ignores it."""
    return f"Authorization: Bearer user-{number}\r\n"


@contextmanager
def serving(nodes: int, *, rights: bool) -> Iterator[tuple[str, psutil.Process]]:
    """A server process and its address."""
    command = [sys.executable, __file__, "--serve", str(nodes), *(["--rights"] if rights else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2], psutil.Process(process.pid)
        process.terminate()


def cpu(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(nodes: int, viewers: int, seconds: float, *, rights: bool) -> None:
    """Print the figures of a cluster."""
    headers = {"Authorization": "Bearer user-0"}
    with serving(nodes, rights=rights) as (url, process), urllib3.PoolManager(headers=headers) as http:
        page = http.request("GET", url)
        began = time.process_time(), cpu(process)
        again = [_timed(http, f"{url}?q=nothing{number}") for number in range(3)]
        page_cpu = (cpu(process) - began[1]) / len(again)
        time.sleep(3)
        before = cpu(process)
        time.sleep(IDLE_S)
        idle = (cpu(process) - before) / IDLE_S
        before, started = cpu(process), time.monotonic()
        received = asyncio.run(view(url, viewers, seconds))
        busy = (cpu(process) - before) / (time.monotonic() - started)
        print(
            f"{nodes:>6} nodes: page {len(page.data) / 1e6:.2f} MB; {1000 * page_cpu:.0f} ms of CPU for a new page; "
            f"without viewers {100 * idle:.1f} % of a core, with {viewers} viewers {100 * busy:.1f} %; "
            f"{received.bytes / max(1, viewers) / seconds / 1000:.1f} kB/s for each viewer; "
            f"{received.pages:,} pages fetched, {received.refused} refused; "
            f"{process.memory_info().rss / 2**20:.0f} MiB"
        )


def _timed(http: urllib3.PoolManager, url: str) -> float:
    began = time.monotonic()
    http.request("GET", url)
    return time.monotonic() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", type=int, help="serve so many nodes (used by this program itself)")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 5000, 15000])
    parser.add_argument("--viewers", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rights", action="store_true", help="viewers with different rights, on gputopo ui-server")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, rights=options.rights)
    else:
        for each in options.nodes:
            measure(each, options.viewers, options.seconds, rights=options.rights)
