"""Costs of `gputopo ui`: page weight, time to the first page, and the server's CPU time with many viewers.

A server process shows a synthetic cluster on which pods come and go (10 a second); another process holds the viewers'
streams open and, as browsers do, fetches the page when it is told to. Run: PYTHONPATH=. python bench/ui.py
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import psutil
import urllib3

from gputopo.process.decoding import convert
from scheduler_core.cache.events import Batch
from scheduler_core.planner.gang.pod_source import PlannerPod, planner_pod
from scheduler_core.request.full_pod import FullPod
from scheduler_core.runtime.event_loop import Deliver
from scheduler_core.ui import main
from tests.scheduler_core.ui.cluster_documents import cluster_text, gpu_pod

EVENTS = 10  # pods a second that are bound or end


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
            pod = convert(gpu_pod("bench", f"p-{number}", 1, node, time.time()), FullPod)
            found = planner_pod(pod.metadata.uid, pod)
            assert found is not None
            gone = () if number < 50 else (f"bench-p-{number - 50}",)
            self._deliver(Batch(PlannerPod, (found,), gone))
            await asyncio.sleep(1 / EVENTS)


def serve(nodes: int) -> None:
    """Serve a cluster of so many nodes until a signal."""
    service = main.file_service(cluster_text(nodes), "synthetic")
    main.serve(service, "127.0.0.1:0", lambda line: print(line, flush=True), lambda deliver: _Changes(deliver, nodes))


async def view(url: str, viewers: int, seconds: float) -> int:
    """Hold the streams of viewers open; return the number of bytes that they received."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    end = time.monotonic() + seconds

    async def one() -> int:
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**24)
        writer.write(f"GET /events HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
        received, page = 0, None
        while (left := end - time.monotonic()) > 0:
            try:
                found = await asyncio.wait_for(reader.read(2**20), left)
            except TimeoutError:
                break
            received += len(found)
            if b'"refresh":true' in found and (page is None or page.done()):
                page = asyncio.create_task(fetch(host, int(port)))
        writer.close()
        return received

    return sum(await asyncio.gather(*(one() for _ in range(viewers))))


async def fetch(host: str, port: int) -> None:
    """Fetch the page three seconds later, as ``ui.js`` does."""
    await asyncio.sleep(3)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
    while await reader.read(2**20):
        pass
    writer.close()


@contextmanager
def serving(nodes: int) -> Iterator[tuple[str, psutil.Process]]:
    """A server process and its address."""
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", str(nodes)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[2], psutil.Process(process.pid)
        process.terminate()


def cpu(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(nodes: int, viewers: int, seconds: float) -> None:
    """Print the figures of a cluster."""
    with serving(nodes) as (url, process), urllib3.PoolManager() as http:
        page = http.request("GET", url)
        began = time.process_time(), cpu(process)
        again = [_timed(http, f"{url}?q=nothing{number}") for number in range(3)]
        page_cpu = (cpu(process) - began[1]) / len(again)
        time.sleep(3)
        before = cpu(process)
        asyncio.run(view(url, 0, 0))
        time.sleep(seconds / 2)
        idle = (cpu(process) - before) / (seconds / 2)
        before, started = cpu(process), time.monotonic()
        received = asyncio.run(view(url, viewers, seconds))
        busy = (cpu(process) - before) / (time.monotonic() - started)
        print(
            f"{nodes:>6} nodes: page {len(page.data) / 1e6:.2f} MB; {1000 * page_cpu:.0f} ms of CPU for a new page; "
            f"without viewers {100 * idle:.1f} % of a core, with {viewers} viewers {100 * busy:.1f} %; "
            f"{received / max(1, viewers) / seconds / 1000:.1f} kB/s for each viewer; "
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
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    else:
        for each in options.nodes:
            measure(each, options.viewers, options.seconds)
