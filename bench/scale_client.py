"""One measurement of ``bench/scale.py``, in its own process: ``python bench/scale_client.py WAY PORT``.

It uses only functions that older commits have too, so that ``bench/scale.py --before`` can run it on their code.
"""

from __future__ import annotations

import gc
import json
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from gputopo.kube.client import Kube
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import PLANNER
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, PodUpdate
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.cache.watch import RESERVATION_SOURCES, SOURCES, Sources, make_watches, sources_with_parser
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.request.pod import Pod

ROUNDS = 15
MIB = 1 << 20
GANG = ("team", "gang-0001")
Figures = dict[str, float]


def main() -> None:
    """Print the figures of a way as JSON."""
    way, port = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{port}")))
        kube = from_kubeconfig(PLANNER, str(config))
        print(json.dumps(WAYS[way](kube)))


def kubeconfig(url: str) -> dict[str, Any]:
    """Return a kubeconfig for a server without authentication."""
    return {
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def read_lists(kube: Kube) -> Figures:
    """Read and decode the objects of the extender's watches, and keep nothing: the minimum."""

    def read() -> int:
        pages = (kube.list_pages(source.resource, source.kind, source.query) for source in SOURCES.values())
        return sum(len(page.items) for each in pages for page in each)

    return measured(read)


def extender(kube: Kube) -> Figures:
    """Sync the extender's cache, then ask Filter and apply events."""
    from scheduler_core.extender.extender import Extender  # noqa: PLC0415  only this way needs it

    cache = ClusterCache(BUILT_IN.node_policy)
    parser = sources_with_parser(MemoizedParser(lambda: BUILT_IN))
    found = measured(lambda: synced(kube, {**parser, **RESERVATION_SOURCES}, cache.apply_batch, lambda: cache.snapshot))
    gc.freeze()
    asked = Extender(cache, BUILT_IN.node_policy, time.time, lambda _: None)
    names = msgspec.json.encode(list(cache.snapshot.records))
    decode = msgspec.json.Decoder(set[str]).decode
    serial = iter(range(10**9))

    def answer(annotations: dict[str, str]) -> None:
        pod = waiting_pod(f"p{next(serial)}", annotations)
        asked.filter(pod, decode(names))
        cache.forget_assumed_pod(pod.metadata.uid)

    def event() -> None:
        name = next(serial)
        occupant = parse_occupant(waiting_pod(f"p{name}", {}))
        assert occupant is not None
        update = PodUpdate(occupant.uid, occupant, f"gpu-node-{name % 1000:05}")
        cache.apply_batch(Batch(PodUpdate, (update,)), time.time())
        cache.snapshot  # noqa: B018  computes the state of the changed node

    island = {"gputopo.io/island": "required"}
    answer(island)
    cold = times_ms(lambda: answer({**island, "gputopo.io/min-vram": f"{next(serial) + 1}Mi"}))
    warm, events = times_ms(lambda: answer(island)), times_ms(event)
    return found | {
        "names_ms": statistics.median(times_ms(lambda: decode(names))),
        "cold_ms": statistics.median(cold),
        "warm_ms": statistics.median(warm),
        "event_ms": statistics.median(events),
    }


def planner(kube: Kube) -> Figures:
    """Sync the planner's view, then plan a gang."""
    from scheduler_core.planner.gang.member import GangName  # noqa: PLC0415  only this way needs the planner
    from scheduler_core.planner.gang.pod_source import planner_sources  # noqa: PLC0415
    from scheduler_core.planner.leader.view import PlannerView  # noqa: PLC0415
    from scheduler_core.planner.packing.model import LEVELS  # noqa: PLC0415
    from scheduler_core.planner.report.prospects import PlanRules, find_prospects  # noqa: PLC0415

    view = PlannerView(BUILT_IN.node_policy, "", "")
    listed = {
        kind: source
        for kind, source in planner_sources(MemoizedParser(lambda: BUILT_IN)).items()
        if source.resource.plural in ("nodes", "pods", "nodegpus")
    }
    found = measured(lambda: synced(kube, listed, view.apply_batch, lambda: view.cache.snapshot))
    gc.freeze()
    gang = view.gang_members.get_gang(GangName(*GANG))
    assert gang is not None
    rules = PlanRules(BUILT_IN, LEVELS, lambda: False)

    def plan() -> None:
        assert find_prospects(view, gang, rules, time.time()).fits is not None

    plans = times_ms(plan)
    return found | {"first_plan_ms": plans[0], "plan_ms": statistics.median(plans[1:])}


def waiting_pod(name: str, annotations: dict[str, str]) -> Pod:
    """Return a pod with 2 GPUs."""
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": annotations}
    containers = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    return msgspec.convert({"metadata": metadata, "spec": {"containers": containers}}, Pod)


def synced(
    kube: Kube, sources: Sources, apply: Callable[[Batch[Any], float], object], finish: Callable[[], object]
) -> None:
    """Run the watches until all kinds are delivered, and apply the batches on one thread."""
    batches: queue.SimpleQueue[Batch[Any]] = queue.SimpleQueue()
    watches = make_watches(kube, batches.put, time.monotonic, sources=sources)
    watches.start()
    missing = set(sources)
    while missing:
        batch = batches.get()
        apply(batch, time.time())
        missing.discard(batch.kind)
    finish()


def measured(work: Callable[[], object]) -> Figures:
    """Return wall and CPU seconds, and the increase of memory in MiB."""
    process = psutil.Process()
    before, wall, cpu = process.memory_info().rss, time.perf_counter(), time.process_time()
    work()
    found = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
    return found | {"mib": (process.memory_info().rss - before) / MIB}


def times_ms(step: Callable[[], object]) -> list[float]:
    """Return milliseconds of CPU time of this thread, of several calls."""
    found = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        step()
        found.append((time.thread_time() - start) * 1000)
    return found


WAYS: dict[str, Callable[[Kube], Figures]] = {"read": read_lists, "extender": extender, "planner": planner}

if __name__ == "__main__":
    main()
