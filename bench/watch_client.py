"""A measurement of ``bench/watch.py``, in its own process: ``python bench/watch_client.py WAY PORT``."""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import msgspec
import psutil
import watch_server

from gputopo.kube.client import Kube
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import OBSERVER
from scheduler_core.cache.events import Batch
from scheduler_core.cache.watch import SOURCES, make_watches
from tests.api_server import kubeconfig

EVENTS = 5_000
MIB = 1 << 20


def main() -> None:
    """Print the costs of a way, as JSON."""
    way, port = sys.argv[1], int(sys.argv[2])
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.write_text(json.dumps(kubeconfig(url, "t")))
        kube = from_kubeconfig(OBSERVER, str(config))
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "read": lambda: measured(lambda: read(kube)),
            "sync": lambda: measured(lambda: sync(kube)),
            "models": lambda: models(str(config)),
            "events": lambda: events(kube, url),
        }
        print(json.dumps(ways[way]()))


def measured(work: Callable[[], object]) -> dict[str, float]:
    """Return wall and CPU seconds, and memory in MiB: the increase, and the maximum."""
    process = psutil.Process()
    before, wall, cpu = process.memory_info().rss, time.perf_counter(), time.process_time()
    kept = work()
    found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    found["held"] = (process.memory_info().rss - before) / MIB
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before / MIB
    assert kept is not None
    return found


def read(kube: Kube) -> int:
    """Read and decode the same data as the watch, and keep nothing."""
    number = 0
    for source in SOURCES.values():
        for page in kube.list_pages(source.resource, source.kind, source.query):
            number += len(page.items)
    return number


def sync(kube: Kube) -> dict[type[Any], Batch[Any]]:
    """Run until all three kinds are delivered; return them."""
    delivered: dict[type[Any], Batch[Any]] = {}
    done = threading.Event()

    def take(batch: Batch[Any]) -> None:
        delivered[batch.kind] = batch
        if len(delivered) == len(SOURCES):
            done.set()

    make_watches(kube, take, time.monotonic).start()
    done.wait()
    return delivered


def models(config: str) -> dict[str, float]:
    """Read the same lists with the official package, into its models."""
    from kubernetes import client  # noqa: PLC0415
    from kubernetes import config as loading  # noqa: PLC0415

    made: Any = client.Configuration()
    loading.load_kube_config(config_file=config, client_configuration=made)
    api = client.CoreV1Api(client.ApiClient(made))

    def every(call: Callable[..., Any]) -> int:
        following, number = None, 0
        while following != "":
            page = call(limit=500, _continue=following)
            following, number = page.metadata._continue or "", number + len(page.items)  # noqa: SLF001  its name
        return number

    return measured(lambda: every(api.list_node) + every(api.list_pod_for_all_namespaces))


def events(kube: Kube, url: str) -> dict[str, float]:
    """Return CPU microseconds per event, by story: decoded only, and through the watch."""
    done = threading.Event()
    delivered: set[type[Any]] = set()

    def take(batch: Batch[Any]) -> None:
        delivered.add(batch.kind)
        if len(delivered) == len(SOURCES) and (batch.is_full_list or any("last" in each.key for each in batch.updates)):
            done.set()

    make_watches(kube, take, time.monotonic).start()
    done.wait()
    time.sleep(0.5)  # the watches are being opened
    found: dict[str, float] = {}
    for story, (kind, make, _) in watch_server.STORIES.items():
        source = next(source for source in SOURCES.values() if source.resource.plural == kind)
        lines = [make(number) for number in range(EVENTS)]
        decode = msgspec.json.Decoder(source.kind).decode
        start = time.process_time()
        for each in lines:
            decode(each)
        found[f"decode {story}"] = (time.process_time() - start) / EVENTS * 1e6
        del lines
        done.clear()
        start = time.process_time()
        with urlopen(f"{url}/go/{quote(story)}/{EVENTS}") as answer:
            answer.read()
        done.wait()
        found[f"watch {story}"] = (time.process_time() - start) / EVENTS * 1e6
    return found


if __name__ == "__main__":
    main()
