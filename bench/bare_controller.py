"""A controller that ungates and pins pods and does nothing else: the least that a planned pod can cost.

It lists the pods once, and sends the patch that the planner sends, by the planner's client and as many threads. It
fills the nodes one after the other. With ``watch`` as argument it also watches the pods, as every planner must: it
decodes type and metadata of each event, and drops it. For ``bench/planner_cluster.py --only patches``:
``python bench/bare_controller.py`` with KUBECONFIG.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event, Thread
from typing import Any

from gputopo.crd.reservations import PlannedMember
from gputopo.kube.client import Kube, ListOptions
from gputopo.kube.connect import connect
from gputopo.kube.rbac import NODES, PLANNER, PODS
from scheduler_core.cache.kube_scheduler_filters import FullNode
from scheduler_core.cache.watch import list_kind
from scheduler_core.planner.commit.pod_patches import ungate_and_pin_patch
from scheduler_core.planner.gang.pod_source import PlannerPod, WatchedPod, planner_sources
from scheduler_core.planner.service import WRITERS
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.profiles import BUILT_IN

GPUS = 8  # of each node
WATCH_S = 600.0


def main() -> None:
    """Patch all pods."""
    kube = connect(PLANNER)
    nodes = [each.metadata.name for each in kube.list_objects(NODES, FullNode)]
    source = planner_sources(MemoizedParser(lambda: BUILT_IN))[PlannerPod]
    patches = list(patches_of(list_kind(kube, PlannerPod, source).updates, nodes))
    if "watch" in sys.argv:
        Thread(target=drop_events, args=(kube,), daemon=True).start()
    with ThreadPoolExecutor(WRITERS) as pool:
        for _ in pool.map(partial(kube.patch, PODS), patches):
            pass
    Event().wait()  # until it is killed: its CPU time is read at the end


def drop_events(kube: Kube) -> None:
    """Watch all pods; decode only type and metadata of each event."""
    for _ in kube.watch(PODS, ListOptions(), "", WATCH_S):
        pass


def patches_of(pods: Iterable[WatchedPod], nodes: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the patch of each gated pod."""
    left, free = iter(nodes), 0
    node = ""
    for pod in pods:
        if not isinstance(pod, PlannerPod) or pod.member is None or pod.update is None:
            continue
        gpus = pod.update.occupant.profile.gpus
        if gpus > free:
            node, free = next(left), GPUS
        free -= gpus
        seat = PlannedMember(pod.key, pod.member.name, node, (("nvidia.com/gpu", gpus),))
        yield ungate_and_pin_patch(pod.member, seat, "bench-00000")


if __name__ == "__main__":
    main()
