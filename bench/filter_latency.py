"""Latency of Filter in the real extender process, under the load of a busy cluster, and a table of slow calls by cause.

    python bench/filter_latency.py [--minutes 3] [--nodes 15000] [--events 1000]     events per second

At most 20 calls come per second, one after the other: three minutes have as many as an hour with a pod per second. All
calls name all nodes. One of twenty has a profile never seen before, the others one of 200; a fifth of the pods with
more than two GPUs has two or three containers. The pages /metrics and /decisions are read beside them. The cluster:
``bench/filter_fleet.py``. The extender runs with MALLOC_ARENA_MAX=2, as in the image.

On a shared machine a call also waits for a CPU. The kernel counts this (``/proc/PID/task/PID/schedstat``), for the
extender's event loop and for this program; the second row is without that time. The exit status is 1 if the first row
is not below 50 ms for 99.9 % of calls, or a call takes more than 250 ms.

    events applied after    from the time when the API server made a NodeGpus until the extender had applied it
    memory                  resident memory of the extender at the first call, and after each tenth of the run
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import filter_fleet
import orjson
import psutil

from tests.api_server import kubeconfig

HERE = Path(__file__).parent
SLOW_S, MAX_S, PER_S, PROFILES, NEW_EVERY, UIDS = 0.050, 0.250, 20, 200, 20, 64
SPAN_FIELDS = 4  # kind, start, end, seconds of CPU; the last line may be incomplete
LAG = "lag"  # kind of the spans from the making of an object until it was applied


class Call(NamedTuple):
    """A measured call."""

    start: float
    end: float
    cpu_s: float  # of the extender's event loop
    waited_s: float  # for a CPU: its event loop, and this program
    answered: bool  # False: 503, the ledger lists a reservation that has not arrived

    @property
    def own_s(self) -> float:
        """The duration without waiting for a CPU."""
        return max(0.0, self.end - self.start - self.waited_s)


class Run(NamedTuple):
    """The measurements of a run."""

    calls: list[Call]
    mib: list[float]  # memory of the extender, at the first call, and after each tenth of the time


def main() -> None:
    """Print the latencies, and the causes of the slow calls."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--minutes", type=float, default=3.0)
    options.add_argument("--nodes", type=int, default=15_000)
    options.add_argument("--events", type=int, default=1000)
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config, spans = Path(folder) / "config", Path(folder) / "spans"
        command = [sys.executable, str(HERE / "filter_fleet.py"), str(asked.nodes), str(asked.events)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as fleet:
            assert fleet.stdout is not None
            config.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{int(fleet.stdout.readline())}", "t")))
            try:
                run = measure(asked.minutes * 60, asked.nodes, config, spans)
            finally:
                fleet.kill()
        lines = spans.read_text(encoding="utf-8", errors="replace").splitlines()
        sys.exit(report(run, [fields for line in lines if len(fields := line.split("\t")) == SPAN_FIELDS]))


def measure(seconds: float, nodes: int, config: Path, spans: Path) -> Run:
    """Start an extender, and call it for so many seconds."""
    options = ["--verbs", "127.0.0.1:0", "--listen", "127.0.0.1:0"]
    command = [sys.executable, str(HERE / "filter_probe.py"), str(spans), *options]
    environ = {**os.environ, "KUBECONFIG": str(config), "MALLOC_ARENA_MAX": "2"}
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ports: dict[str, Any] = {}
        for line in process.stderr:
            entry = json.loads(line) if line.startswith("{") else {"event": line}
            ports = entry if entry["event"] == "listening" else ports
            if entry["event"] == "synced":
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()
        done = threading.Event()
        threading.Thread(target=read_pages, args=(ports["pages"], done), daemon=True).start()
        memory = psutil.Process(process.pid).memory_info
        try:
            wait_until_ready(ports["pages"])
            calls: list[Call] = []
            mib = [memory().rss / 2**20]
            begun = time.monotonic()
            for call in call_all(nodes, ports["verbs"], process.pid):
                calls.append(call)
                if call.end - begun >= seconds * len(mib) / 10:
                    mib.append(memory().rss / 2**20)
                if call.end - begun >= seconds:
                    break
        finally:
            done.set()
            process.send_signal(signal.SIGTERM)
            process.wait(30)
    return Run(calls, mib)


def wait_until_ready(port: int) -> None:
    """Wait until the extender answers calls: the ledger shows it."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/readyz")
        if connection.getresponse().status == 200:
            return
        connection.close()
        time.sleep(0.5)


def read_pages(port: int, done: threading.Event) -> None:
    """Read the pages as Prometheus and an operator do."""
    for path in ("/metrics", "/metrics", "/decisions") * 10**6:
        if done.wait(7.5):
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        connection.getresponse().read()
        connection.close()


def call_all(nodes: int, port: int, pid: int) -> Iterator[Call]:
    """Yield the measured calls, without end."""
    random = Random(1)
    names = [filter_fleet.name(at) for at in range(nodes)]
    profiles = [profile(random, 20 * (1 + at % 40)) for at in range(PROFILES)]
    popularity = [1 / (at + 1) for at in range(PROFILES)]
    ours = f"/proc/self/task/{threading.get_native_id()}/schedstat"
    theirs = f"/proc/{pid}/task/{pid}/schedstat"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in itertools.count():
        new = number % NEW_EVERY == NEW_EVERY - 1
        asked = profile(random, 1000 + number // NEW_EVERY) if new else random.choices(profiles, popularity)[0]
        body = orjson.dumps({"Pod": pod(number % UIDS, *asked), "Nodes": None, "NodeNames": names})
        before = Path(theirs).read_text(), Path(ours).read_text()
        start = time.monotonic()
        connection.request("POST", "/filter", body)
        response = connection.getresponse()
        response.read()
        end = time.monotonic()
        assert response.status in (200, 503), response.status
        after = Path(theirs).read_text(), Path(ours).read_text()
        (cpu, waited), (_, own_waited) = (difference(*both) for both in zip(before, after, strict=True))
        yield Call(start, end, cpu, waited + own_waited, response.status == 200)
        time.sleep(max(0.0, 1 / PER_S - (time.monotonic() - start)))


def difference(before: str, after: str) -> tuple[float, float]:
    """Return the seconds that a thread ran, and that it waited for a CPU."""
    ran, waited = (int(b) - int(a) for a, b in list(zip(before.split(), after.split(), strict=True))[:2])
    return ran / 1e9, waited / 1e9


def profile(random: Random, vram_mib: int) -> tuple[tuple[int, ...], dict[str, str]]:
    """Return the GPUs of each container, and annotations that make a profile of its own."""
    wishes = {"min-vram": f"{vram_mib}Mi"}
    if random.random() < 0.3:
        wishes["island"] = "required"
    if random.random() < 0.2:
        wishes["workload"] = random.choice(("training", "inference"))
    if random.random() < 0.1:
        wishes["numa"] = "required"
    gpus = random.choice((1, 1, 1, 2, 2, 4, 8))
    containers = random.choice((2, 3)) if gpus > 2 and random.random() < 0.2 else 1
    first = [gpus // containers] * (containers - 1)
    return (*first, gpus - sum(first)), wishes


def pod(number: int, gpus: tuple[int, ...], wishes: dict[str, str]) -> dict[str, Any]:
    """Return an unbound pod."""
    metadata = {"name": f"p-{number}", "namespace": "team", "uid": f"uid-ask-{number}"}
    metadata["annotations"] = {f"gputopo.io/{key}": value for key, value in wishes.items()}  # type: ignore[assignment]
    return {
        "metadata": metadata,
        "spec": {
            "containers": [
                {"name": f"c{at}", "resources": {"limits": {"nvidia.com/gpu": str(each)}}}
                for at, each in enumerate(gpus)
            ]
        },
    }


def report(run: Run, spans: list[list[str]]) -> int:
    """Print the tables. Return the exit status."""
    calls = run.calls
    per_s = len(calls) / (calls[-1].end - calls[0].start)
    print(f"{per_s:.0f} calls per second")
    print(f"\n{len(calls)} Filter calls, in ms {'p50':>18} {'p99':>8} {'p99.9':>8} {'max':>8} {'>50 ms':>8}")
    row("from request to answer", [each.end - each.start for each in calls])
    row("without waiting for a CPU", [each.own_s for each in calls])
    row("CPU of the event loop", [each.cpu_s for each in calls])
    lags = [float(end) - float(start) for kind, start, end, _ in spans if kind == LAG]
    row("events applied after", lags)
    print(f"{sum(not each.answered for each in calls)} calls were answered with 503")
    print("memory of the extender, MiB: " + ", ".join(f"{each:.0f}" for each in run.mib))
    spans = [each for each in spans if each[0] != LAG]
    ordered = sorted((float(start), float(end), kind) for kind, start, end, _ in spans)
    slow = [each for each in calls if each.end - each.start > SLOW_S]
    causes = Counter(cause(each, ordered) for each in slow)
    titles = f"{'spans':>6} {'median, ms':>12} {'longest, ms':>12} {'CPU, ms':>8}"
    print(f"\n{'work beside the calls and in them':<40} {titles}")
    begun = calls[0].start
    for kind in sorted({kind for _, _, kind in ordered}):
        lengths = sorted(end - start for start, end, each in ordered if each == kind and start > begun)
        if lengths:
            cpu = max(float(each) for named, start, _, each in spans if named == kind and float(start) > begun)
            median, longest = lengths[len(lengths) // 2], lengths[-1]
            print(f"{kind:<40} {len(lengths):>6} {median * 1000:>12.1f} {longest * 1000:>12.0f} {cpu * 1000:>8.0f}")
    print(f"\n{'cause of calls above 50 ms':<40} {'calls':>6} {'longest, ms':>12}")
    for kind, number in causes.most_common():
        longest = max(each.end - each.start for each in slow if cause(each, ordered) == kind)
        print(f"{kind:<40} {number:>6} {longest * 1000:>12.0f}")
    durations = sorted(each.end - each.start for each in calls)
    return int(durations[int(len(durations) * 0.999)] >= SLOW_S or durations[-1] > MAX_S)


def row(title: str, seconds: list[float]) -> None:
    """Print percentiles."""
    found = sorted(seconds)
    shown = [found[min(len(found) - 1, int(len(found) * part))] * 1000 for part in (0.5, 0.99, 0.999, 1.0)]
    print(f"{title:<40}" + "".join(f"{each:8.1f} " for each in shown) + f"{sum(each > SLOW_S for each in found):8}")


def cause(call: Call, spans: list[tuple[float, float, str]]) -> str:
    """Return what took the largest part of a call."""
    parts: dict[str, float] = defaultdict(float)
    parts["waiting for a CPU"] += call.waited_s
    first = bisect_left(spans, (call.start - 5.0, 0.0, ""))
    for start, end, kind in spans[first:]:
        if start > call.end:
            break
        if (both := min(end, call.end) - max(start, call.start)) > 0:
            parts[kind] += both
    longest = max(parts, key=parts.__getitem__)
    return longest if parts[longest] > (call.end - call.start) / 5 else "other"


if __name__ == "__main__":
    main()
