"""The cost of the agent: ``python bench/agent_costs.py``.

A complete agent (NVML bindings on a fake driver with 8 H100s, the official client's transport to a local server, a
kubelet socket with 110 pods, metrics, health server) is compared with a bare interpreter that imports the same
libraries, in the same run. The times of a real driver and of a real API server are not included.

Not measured here: the resident memory of the real libnvidia-ml.so (allow 10 MiB).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agent_process import LIBRARIES

from agent.recording.bundled import bundled_directory, find_recording
from tests.agent.allocation.kubelet import kubelet, listing, pod

ROUNDS = 5


class _Taker(BaseHTTPRequestHandler):
    """A server that accepts every PATCH and POST, and counts their bytes; a GET returns a Node without labels."""

    protocol_version = "HTTP/1.1"
    taken: list[tuple[str, int]] = []  # noqa: RUF012  for the whole process

    def do_GET(self) -> None:
        found = "nodegpus" not in self.path
        self._answer({"metadata": {"name": "gpu-7", "uid": "1", "resourceVersion": "1"}}, 200 if found else 404)

    def do_PATCH(self) -> None:
        size = int(self.headers["Content-Length"])
        self.rfile.read(size)
        self.taken.append((self.path.split("?")[0], size))
        self._answer({"metadata": {"name": "gpu-7", "uid": "1", "resourceVersion": "2"}})

    def do_POST(self) -> None:
        self.do_PATCH()

    def _answer(self, body: object, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def _cluster(folder: Path) -> Iterator[Path]:
    """Write a kubeconfig for such a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    parts = {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    config = folder / "kubeconfig"
    config.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}))
    try:
        yield config
    finally:
        server.shutdown()
        server.server_close()


def _child(*arguments: str) -> dict[str, float]:
    process = Path(__file__).with_name("agent_process.py")
    done = subprocess.run([sys.executable, str(process), *arguments], stdout=subprocess.PIPE, check=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _wall(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    """Run both in turns and print their costs."""
    pods = [pod(f"pod-{n}", {"nvidia.com/gpu": [f"GPU-{n}"] if n < 8 else []}) for n in range(110)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        socket = folder / "kubelet.sock"
        with _cluster(folder) as config, kubelet(socket, lambda _: listing(*pods)):
            runs = [(_child("bare"), _child("full", str(config), str(socket))) for _ in range(ROUNDS)]
            once = ["-c", "from agent.daemon.command import agent; agent()", "--once", "--node", "gpu-7"]
            once += ["--node-source", _machine()]
            os.environ["KUBECONFIG"] = str(config)
            ready = [(_wall("-c", f"import {LIBRARIES}"), _wall(*once, "--socket", str(socket))) for _ in range(ROUNDS)]
    best = {key: statistics.median(full[key] for _, full in runs) for key in runs[0][1]}
    libraries = statistics.median(bare["memory"] for bare, _ in runs)
    print(f"resident memory, MiB: the libraries alone {libraries:.1f}, the agent {best['memory']:.1f} (aim 64)")
    ratio = statistics.median(full / bare for bare, full in ready)
    print(f"published after start, as a multiple of importing the libraries: {ratio:.2f}")
    print(f"CPU seconds per 100 passes of 8 GPUs, without the driver's own: {best['cpu']:.2f}")
    print(f"CPU seconds per 100 polls of a kubelet with 110 pods: {best['polls']:.2f}")
    print(f"NVML calls per pass of 8 GPUs with 18 NVLinks each: {best['calls']:.0f}")
    sizes: dict[str, list[int]] = {}
    for path, size in _Taker.taken:
        sizes.setdefault(path.rsplit("/", 2)[-2], []).append(size)
    for what, found in sorted(sizes.items()):
        print(f"bytes written per change of {what}: {max(found)} at most")


def _machine() -> str:
    found = find_recording("8h100-2n-nvswitch18", bundled_directory())
    assert found is not None
    return found


if __name__ == "__main__":
    main()
