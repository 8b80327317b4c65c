"""Watching a cluster, from HTTP to updates."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gputopo.crd.nodegpus import DeviceAllocation, NodeGpus, PodRef
from gputopo.crd.reservations import (
    EntryPhase,
    ExtenderAck,
    LedgerEntry,
    LedgerSpec,
    PlannedMember,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
    spec_hash,
)
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import ForbiddenError
from gputopo.kube.rbac import EXTENDER, READER, Resource
from gputopo.kube.reflector import WatchTiming
from gputopo.labels import encode_topology
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import (
    Batch,
    LedgerUpdate,
    NodeGpusUpdate,
    NodeUpdate,
    PodUpdate,
    ReservationUpdate,
    WatchStatus,
)
from scheduler_core.cache.node import NodeFacts, parse_node
from scheduler_core.cache.watch import SOURCES, Watches, list_all, make_watches, restart_reason, silence_reason
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from tests.api_server import Answer, Asked, Stream, api_server
from tests.gputopo.kube.serving import GONE, Script, bookmark, page, wait_for
from tests.machines import dgx1, dgx1_link_down
from tests.scheduler_core import builders

Object = dict[str, Any]


def node(name: str = "gpu-0", *, broken: bool = False, gpus: int = 8, **conditions: Any) -> Object:
    facts = encode_topology(dgx1_link_down() if broken else dgx1())
    metadata = {"name": name, "uid": f"uid-{name}", "labels": facts.labels, "annotations": facts.annotations}
    status = {"allocatable": {WHOLE: str(gpus), "cpu": "96"}, **conditions}
    return {"metadata": {"resourceVersion": "5", **metadata}, "status": status}


def pod(name: str, gpus: int = 0, *, spec: Object | None = None, **status: Any) -> Object:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "5"}
    limits = {WHOLE: str(gpus)} if gpus else {"cpu": "1"}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return {"metadata": metadata, "spec": {"containers": containers, **(spec or {})}, "status": status}


def gpus(name: str = "gpu-0", observed: str = "2026-11-21T12:00:00Z") -> Object:
    allocation = {"gpu": "GPU-1", "pod": {"namespace": "team", "name": "train", "container": "c"}}
    result = {"observedAt": observed, "contentHash": "1a", "agentVersion": "1", "allocations": [allocation]}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "5"}, **result}


def changed(happening: str, version: int, obj: Object) -> Object:
    return {"type": happening, "object": {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(version)}}}


class Cluster:
    """Serves the three kinds, each by a script of its own."""

    def __init__(self, nodes: Script, pods: Script, gpus: Script) -> None:
        self.scripts = {"nodes": nodes, "pods": pods, "nodegpus": gpus}

    def __call__(self, asked: Asked) -> Answer:
        return self.scripts[asked.path.rsplit("/", 1)[1]](asked)


class Running(NamedTuple):
    watches: Watches
    batches: list[Batch[Any]]

    def of(self, kind: type[Any]) -> list[Batch[Any]]:
        return [batch for batch in self.batches if batch.kind is kind]


@contextmanager
def running(cluster: Cluster, folder: Path) -> Iterator[Running]:
    batches: list[Batch[Any]] = []
    timing = WatchTiming(wall=lambda: 0.0, wait=lambda stopped, _: stopped.wait(0.002))
    with api_server(cluster) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(folder / "config"))
        watches = make_watches(kube, batches.append, lambda: 100.0, timing)
        watches.start()
        try:
            yield Running(watches, batches)
        finally:
            watches.stop()
            kube.close()


TOLD = NodeGpus("2026-11-21T12:00:00Z", "1a", "1", (DeviceAllocation("GPU-1", PodRef("team", "train", "c")),))


def machine(*, broken: bool = False) -> NodeUpdate:
    result = parse_node(builders.node(dgx1_link_down() if broken else dgx1()))
    return NodeUpdate("gpu-0", msgspec.structs.replace(result, cpu_milli=96_000))


def test_each_kind_is_listed_and_then_watched(tmp_path: Path) -> None:
    nodes, pods, result = Stream(), Stream(), Stream()
    cluster = Cluster(
        Script([page(7, node())], [nodes]),
        Script([page(8, pod("web"), pod("train", 4, spec={"nodeName": "gpu-0"}, startTime="x"))], [pods]),
        Script([page(9, gpus())], [result]),
    )

    with running(cluster, tmp_path) as run:
        wait_for(lambda: run.watches.synced, "the lists")
        nodes.send(changed("MODIFIED", 10, node(broken=True)))
        pods.send(
            changed("ADDED", 11, pod("new", 2, spec={"schedulerName": "gputopo-scheduler"}, nominatedNodeName="gpu-0")),
            changed("ADDED", 12, pod("web-2")),
            changed("DELETED", 13, pod("web")),
        )
        result.send(changed("DELETED", 14, gpus()))
        wait_for(lambda: len(run.batches) == 6, "the changes")

    train = PodUpdate("uid-train", builders.occupant("train", 4, admitted=True), "gpu-0")
    new = PodUpdate("uid-new", builders.occupant("new", 2), None, "gpu-0", "gputopo-scheduler")
    assert run.of(NodeUpdate) == [
        Batch(NodeUpdate, (machine(),), is_full_list=True),
        Batch(NodeUpdate, (machine(broken=True),)),
    ]
    assert run.of(PodUpdate) == [Batch(PodUpdate, (train,), is_full_list=True), Batch(PodUpdate, (new,), ("uid-web",))]
    assert run.of(NodeGpusUpdate) == [
        Batch(NodeGpusUpdate, (NodeGpusUpdate("gpu-0", TOLD),), is_full_list=True),
        Batch(NodeGpusUpdate, (), ("gpu-0",)),
    ]


def test_a_pod_that_is_bound_and_deleted_at_once_has_used_its_node(tmp_path: Path) -> None:
    pods = Stream()
    cluster = Cluster(
        Script([page(7, node())], [Stream()]), Script([page(8, pod("new", 2))], [pods]), Script([page(9, gpus())])
    )

    with running(cluster, tmp_path) as run:
        wait_for(lambda: run.watches.synced, "the lists")
        bound = pod("new", 2, spec={"nodeName": "gpu-0"})
        pods.send(changed("MODIFIED", 10, bound), changed("DELETED", 11, bound))
        wait_for(lambda: len(run.of(PodUpdate)) == 3, "both changes")
        cache = ClusterCache(Policy())
        for batch in run.batches:
            cache.apply_batch(batch, 100.0)

    (record,) = cache.snapshot.records.values()
    assert [each.uid for each in record.departed] == ["uid-new"]


def test_changes_of_irrelevant_fields_are_not_delivered(tmp_path: Path) -> None:
    nodes, pods, result = Stream(), Stream(), Stream()
    bound = {"nodeName": "gpu-0"}
    cluster = Cluster(
        Script([page(7, node())], [nodes]),
        Script([page(8, pod("train", 4, spec=bound))], [pods]),
        Script([page(9)], [result]),
    )

    with running(cluster, tmp_path) as run:
        wait_for(lambda: run.watches.synced, "the lists")
        nodes.send(changed("MODIFIED", 10, node(conditions=[{"type": "Ready", "lastHeartbeatTime": "now"}])))
        nodes.send(changed("MODIFIED", 11, node(gpus=7)))
        pods.send(changed("MODIFIED", 12, pod("train", 4, spec=bound, podIP="10.0.0.1")))
        pods.send(changed("MODIFIED", 13, pod("train", 4, spec=bound, startTime="now")))
        wait_for(lambda: len(run.batches) == 5, "the changes")

    (_, fewer), (_, admitted) = run.of(NodeUpdate), run.of(PodUpdate)
    assert [dict(each.facts.allocatable) for each in fewer.updates] == [{WHOLE: 7}]
    assert [each.occupant.admitted for each in admitted.updates] == [True]


def test_finished_pods_are_left_out_by_the_server(tmp_path: Path) -> None:
    cluster = Cluster(Script([page(7)]), Script([page(8)]), Script([page(9)]))

    with running(cluster, tmp_path) as run:
        wait_for(lambda: all(each.watched_from for each in cluster.scripts.values()), "the watches")
        assert run.watches.synced

    for asked in cluster.scripts["pods"].asked:
        assert asked.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"
    assert all("fieldSelector" not in each.query for each in cluster.scripts["nodes"].asked)


def test_pods_with_equal_requests_share_one_profile(tmp_path: Path) -> None:
    pods = [pod(f"p{number}", 4, spec={"nodeName": f"gpu-{number % 2}"}) for number in range(4)]
    _, batch, _ = once(Cluster(Script([page(7)]), Script([page(8, *pods)]), Script([page(9)])), tmp_path)

    seen: tuple[PodUpdate, ...] = batch.updates
    assert len({id(each.occupant.profile) for each in seen}) == 1
    assert len({id(each.node) for each in seen}) == 2
    assert len({id(each.occupant.namespace) for each in seen}) == 1


def test_machines_of_one_model_share_their_values(tmp_path: Path) -> None:
    cluster = Cluster(Script([page(7, node("gpu-0"), node("gpu-1"))]), Script([page(8)]), Script([page(9)]))

    first, second = (each.facts.topology for each in once(cluster, tmp_path)[0].updates)

    assert first == second
    assert first.nvlink is second.nvlink
    assert first.pcie is second.pcie
    assert first.gpus is not second.gpus


def test_a_node_with_unknown_gpus_is_delivered(tmp_path: Path) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}  # the labels count MIG devices, not GPUs
    result = {"metadata": {"name": "mig-0", "uid": "u", "labels": labels}, "status": {"allocatable": {WHOLE: "0"}}}

    nodes, _, _ = once(Cluster(Script([page(7, result)]), Script([page(8)]), Script([page(9)])), tmp_path)

    assert nodes.updates == (NodeUpdate("mig-0", NodeFacts(None, described=False, allocatable=((WHOLE, 0),))),)


def test_a_kind_that_is_not_served_counts_as_synced(tmp_path: Path) -> None:
    unknown = Answer("404 page not found", 404)
    cluster = Cluster(Script([page(7, node())]), Script([page(8)]), Script([unknown]))

    with running(cluster, tmp_path) as run:
        wait_for(lambda: run.watches.synced, "the lists")

    assert run.of(NodeGpusUpdate) == [Batch(NodeGpusUpdate, (), is_full_list=True)]


def test_status_of_the_watches(tmp_path: Path) -> None:
    denied = Answer({"message": "pods is forbidden"}, 403)
    born = node("gpu-1")
    born["metadata"]["creationTimestamp"] = "1969-12-31T23:59:57Z"
    nodes = Stream(bookmark(8), changed("ADDED", 9, born))
    cluster = Cluster(Script([page(7, node()), page(10)], [Stream(GONE), nodes]), Script([denied]), Script([page(9)]))

    with running(cluster, tmp_path) as run:
        assert not run.watches.synced
        wait_for(lambda: len(run.of(NodeUpdate)) == 3, "the nodes")
        wait_for(lambda: run.watches.status(0)[2].synced, "the kubelets' word")
        wait_for(lambda: run.watches.status(0)[1].error, "the pods")
        of_nodes, of_pods, of_gpus = run.watches.status(130.0)

    assert of_nodes == WatchStatus("nodes", True, 30.0, 1, 1, None, 3.0, idle_s=30.0)
    assert of_pods[:4] == ("pods", False, None, of_pods.relists)
    assert (of_pods.failures > 0, of_pods.error) == (True, "GET /api/v1/pods: 403: pods is forbidden")
    assert of_gpus == WatchStatus("nodegpus", True, 30.0, 0, 0, None, None, idle_s=30.0)


def test_the_watches_stop_within_a_second(tmp_path: Path) -> None:
    released = threading.Event()

    def stuck(asked: Asked) -> Answer:
        if asked.path.endswith("/pods"):
            released.wait(10)
        return Script([page(7)])(asked)

    with api_server(stuck) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(tmp_path / "config"))
        batches: list[Batch[Any]] = []
        watches = make_watches(kube, batches.append, time.monotonic)
        watches.start()
        wait_for(lambda: len(batches) == 2, "two lists")
        before = time.monotonic()
        watches.stop()
        assert time.monotonic() - before < 1.5
        released.set()
        for thread in watches._threads:
            thread.join(10)
        kube.close()

    assert {batch.kind for batch in batches} == {NodeUpdate, NodeGpusUpdate}


def test_watches_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    with api_server(Script([page(7)])) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(tmp_path / "config"))
        make_watches(kube, lambda _: None, time.monotonic).stop()
        kube.close()
        assert server.asked == []


def once(cluster: Cluster, folder: Path) -> tuple[Batch[Any], ...]:
    with api_server(cluster) as server:
        kube = from_kubeconfig(READER, server.kubeconfig(folder / "config"))
        try:
            return list_all(kube)
        finally:
            kube.close()


def test_list_all_returns_the_same_values(tmp_path: Path) -> None:
    cluster = Cluster(
        Script([page(7, node(), following="more"), Answer({"message": "expired"}, 410), page(8, node())]),
        Script([page(8, pod("train", 4), pod("web"))]),
        Script([Answer("404 page not found", 404)]),
    )

    assert once(cluster, tmp_path) == (
        Batch(NodeUpdate, (machine(),), is_full_list=True),
        Batch(PodUpdate, (PodUpdate("uid-train", builders.occupant("train", 4), None),), is_full_list=True),
        Batch(NodeGpusUpdate, (), is_full_list=True),
    )


def test_list_all_raises_what_the_api_server_answers(tmp_path: Path) -> None:
    cluster = Cluster(Script([page(7)]), Script([Answer({"message": "no"}, 403)]), Script([page(7)]))

    with pytest.raises(ForbiddenError, match="GET /api/v1/pods: 403: no"):
        once(cluster, tmp_path)


@pytest.mark.parametrize(
    ("age_s", "trouble", "result"),
    [
        pytest.param(120.0, None, None, id="as long as may be"),
        pytest.param(121.4, None, "nothing about pods from the API server for 121 s", id="too long"),
        pytest.param(300.0, "timed out", "nothing about pods from the API server for 300 s: timed out", id="why"),
        pytest.param(None, None, "nothing about pods from the API server", id="never"),
    ],
)
def test_a_long_silence_of_a_watch_of_any_kind_is_a_reason(
    age_s: float | None, trouble: str | None, result: str | None
) -> None:
    nodes = WatchStatus("nodes", True, 1.0, 0, 0, None, None)
    pods = WatchStatus("pods", True, age_s, 0, 0, trouble, None)

    assert silence_reason((nodes, pods)) == (result and f"gputopo has received {result}")


def test_kinds_of_the_same_plural_have_different_names(tmp_path: Path) -> None:
    theirs, others = Resource("podgroups", "one.example", "v1"), Resource("podgroups", "other.example", "v2")
    plain = SOURCES[NodeUpdate]
    sources = {NodeUpdate: plain, str: plain._replace(resource=theirs), int: plain._replace(resource=others)}
    with api_server(Script([])) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(tmp_path / "config"))
        kinds = [each.kind for each in make_watches(kube, lambda _: None, time.monotonic, sources=sources).status(0.0)]
        kube.close()

    assert kinds == ["nodes", "podgroups.v1.one.example", "podgroups.v2.other.example"]


def test_reservations_and_ledgers_are_parsed(tmp_path: Path) -> None:
    spec = ReservationSpec("llm", (PlannedMember("uid-m0", "m0", "gpu-0", ((WHOLE, 8),), (0, 1), 3),), timeout_s=60.0)
    written = {"gang": "llm", "seats": [msgspec.to_builtins(spec.seats[0])], "timeoutS": 60, "ofALaterVersion": True}
    status = {"state": "Committed", "deadline": "2026-11-21T12:00:00Z"}
    plan = {
        "metadata": {"name": "llm-1", "namespace": "team", "uid": "R", "resourceVersion": "7"},
        "spec": written,
        "status": status,
    }
    entry = {"uid": "R", "namespace": "team", "name": "llm-1", "hash": spec_hash(spec), "phase": "Proposed"}
    ledger = {
        "metadata": {"name": "gpus", "uid": "L", "resourceVersion": "8", "generation": 4},
        "spec": {"planner": "p", "epoch": 2, "entries": [entry]},
        "status": {
            "extenders": {
                "host_1": {"pod": "ns/extender", "generation": 4, "blocked": ["R"]},
                "forged_1": {"pod": "ns/forged", "generation": 2**62},  # the ledger never had this generation
            }
        },
    }
    scripts = {"placementreservations": Script([page(7, plan)]), "placementledgers": Script([page(8, ledger)])}
    with api_server(lambda asked: scripts[asked.path.rpartition("/")[2]](asked)) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(tmp_path / "config"))
        reservations, ledgers = list_all(kube, ReservationUpdate, LedgerUpdate)
        kube.close()

    (seen,) = reservations.updates
    assert seen == ReservationUpdate(
        "R",
        "team",
        "llm-1",
        spec,
        spec_hash(spec),
        ReservationStatus(ReservationState.COMMITTED, deadline=status["deadline"]),
        "7",
    )
    assert ledgers.updates == (
        LedgerUpdate(
            "gpus",
            "L",
            "8",
            4,
            LedgerSpec("p", 2, (LedgerEntry("R", "team", "llm-1", seen.hash, EntryPhase.PROPOSED),)),
            {"host_1": ExtenderAck("ns/extender", 4, ("R",)), "forged_1": ExtenderAck("ns/forged", 0)},
        ),
    )


def test_an_ended_or_hanging_thread_is_a_reason_to_restart_and_a_failing_api_server_is_not() -> None:
    away = WatchStatus("nodes", False, None, 0, 90, "no answer", None, idle_s=59.0)
    hanging = WatchStatus("pods", True, 700.0, 0, 0, None, None, idle_s=601.0)

    assert restart_reason((away, away._replace(last_event_age_s=86_400.0))) is None
    assert restart_reason((away, hanging)) == "the thread that watches pods has done nothing for 601 s"
    ended = "the thread that watches nodes has ended: no answer"
    assert restart_reason((away._replace(ended=True), hanging)) == ended


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_ended_thread_is_reported_unless_it_was_stopped(tmp_path: Path) -> None:
    def ending(_: Batch[Any]) -> None:
        raise SystemExit

    with api_server(Cluster(Script([page(7)]), Script([page(8)]), Script([page(9)]))) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(tmp_path / "config"))
        watches = make_watches(kube, ending, lambda: 5.0)
        assert restart_reason(watches.status(5.0)) is None
        watches.start()
        wait_for(lambda: all(each.ended for each in watches.status(5.0)), "the end of the threads")
        said = restart_reason(watches.status(5.0))
        watches.stop()
        assert restart_reason(watches.status(5.0)) is None
        kube.close()

    assert said == "the thread that watches nodes has ended: the watch of nodes ended: SystemExit()"
