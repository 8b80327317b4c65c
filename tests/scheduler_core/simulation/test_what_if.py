"""The what-if command, and clusters as kubectl prints them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.crd.nodegpus import content_hash
from gputopo.kube.cluster_file import ClusterFileError, FileKube
from gputopo.kube.rbac import READER
from gputopo.labels import encode_topology
from gputopo.labels.keys import TOPOLOGY
from scheduler_core.allocation.gpu_sets import SomeSet
from scheduler_core.cache.list_once import ListedCluster, ListedFor, read_cluster
from scheduler_core.policy.policy import Policy
from scheduler_core.simulation.hosts import UNLIMITED, SimulatedNode, idle_nodes
from scheduler_core.simulation.what_if import PossiblePlacement, Remains, WhatIf, render_text, what_if
from tests.machines import MACHINES
from tests.scheduler_core.builders import OBSERVED, request

POLICY = Policy()


def listed(text: bytes) -> ListedCluster:
    """The cluster of a file, as the commands read it."""
    kube = FileKube(text, READER)
    return read_cluster(kube, kube.now(), ListedFor(POLICY))


def _node(name: str, machine: str, gpus: int, **more: str) -> dict[str, Any]:
    facts = encode_topology(MACHINES[machine]())
    metadata = {"name": name, "labels": facts.labels, "annotations": facts.annotations}
    allocatable = {"nvidia.com/gpu": str(gpus), **more}
    return {"kind": "Node", "metadata": metadata, "status": {"allocatable": allocatable}}


def _pod(name: str, node: str, gpus: int) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": str(gpus)} if gpus else {}}}]
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node, "containers": containers}}


def _word(name: str, machine: str, holder: str, *gpus: int) -> dict[str, Any]:
    uuids = [MACHINES[machine]().get_gpu(index).uuid for index in gpus]
    pod = {"namespace": "team", "name": holder, "container": "c"}
    allocations = [{"gpu": uuid, "pod": pod} for uuid in uuids]
    confirmed = content_hash(encode_topology(MACHINES[machine]()).annotations[TOPOLOGY.key])
    result = {"observedAt": OBSERVED, "contentHash": confirmed, "agentVersion": "1", "allocations": allocations}
    return {"kind": "NodeGpus", "metadata": {"name": name}, **result}


CLUSTER = [
    _node("switch", "hgx_h100", 8, cpu="96", memory="1Ti"),
    _node("pairs", "a100_bridged", 4),
    {"kind": "Node", "metadata": {"name": "cpu-only"}, "status": {}},
    _pod("busy", "pairs", 2),
    _pod("web", "pairs", 0),
    _word("pairs", "a100_bridged", "busy", 0, 1),
    {"kind": "Event"},
]


def _printed(items: list[dict[str, Any]]) -> bytes:
    return msgspec.json.encode({"kind": "List", "items": items})


def _answer(gpus: int, items: list[dict[str, Any]] | None = None, **wishes: str) -> WhatIf:
    table = listed(_printed(items or CLUSTER)).snapshot
    return what_if(request(gpus, **wishes), table, list(table.records), POLICY)


def test_pair_gets_the_free_pair() -> None:
    answer = _answer(2)
    (placement,) = answer.placements

    assert placement.node == "pairs"
    assert placement.gets is not None
    assert [(each.gpus, each.gbps) for each in placement.gets] == [((2, 3), 600.0)]
    assert placement.before is not None
    assert placement.after is not None
    assert (placement.before.islands, placement.after.islands) == ((2, 0), (0, 0))
    assert (answer.equals, answer.suitable) == (1, 2)


def test_text() -> None:
    assert render_text(_answer(2)).splitlines()[1:4] == [
        "  gets GPU2,3: ring 600 GB/s nvlink, one island, NUMA node 1",
        "  free GPUs by island: 2+0 before (0.60 in fragments), 0+0 after (0.00 in fragments)",
        "2 nodes suit the pod; kube-scheduler may choose the node with the highest score.",
    ]


def test_no_node() -> None:
    answer = _answer(4, CLUSTER[1:], island="required")

    assert answer.placements == ()
    assert render_text(answer).startswith("team/new fits no node now.\n")
    assert render_text(answer, "gputopo why -f pod.yaml --from c.json").splitlines()[1:] == [
        "1 node rejected: too few free healthy GPUs",
        "The reasons in detail: gputopo why -f pod.yaml --from c.json",
    ]


def test_without_a_node_that_offers_such_devices_the_command_that_explains_it_is_named() -> None:
    answer = WhatIf("team/new", (), 0, 0, {})

    assert render_text(answer, "gputopo why -f pod.yaml").splitlines() == [
        "team/new fits no node now.",
        "The reasons in detail: gputopo why -f pod.yaml",
    ]


def test_names_of_files_reach_terminals_escaped_and_short() -> None:
    hostile = "\x1b[31m\u202e\n" + "x" * 5000
    placement = PossiblePlacement(hostile, 1.0, None, 0, None, None)

    said = render_text(WhatIf(f"team/{hostile}", (placement,), 1, 1, {}))

    assert said.startswith(r"team/\x1b[31m\u202e\nxxx")
    assert all(line.isprintable() for line in said.splitlines())
    assert len(said) < 1000


def test_one_gpu_of_many_is_any() -> None:
    (placement,) = _answer(1, CLUSTER[:1]).placements

    assert placement.gets is not None
    assert (len(placement.gets), placement.more) == (4, 4)
    assert render_text(_answer(1, CLUSTER[:1])).splitlines()[1:3] == [
        "  gets one of 8 sets of GPUs, for example:",
        "    GPU0: NUMA node 0",
    ]


def test_gpus_of_unreported_pods_are_not_free() -> None:
    """The cluster of the tutorial: a pod holds four of eight GPUs, and no kubelet reports which."""
    (one_island,) = _answer(4, [_node("n", "hgx_h100", 8), _pod("train", "n", 4)]).placements
    two_islands = _answer(1, [_node("n", "a100_bridged", 4), _pod("train", "n", 1)])

    assert (one_island.before, one_island.after) == (Remains((4,), None, 4), Remains((0,), None, 0))
    (placement,) = two_islands.placements
    assert placement.before == Remains(None, None, 3)
    assert "  free GPUs: 3 before, 2 after; in which islands is unknown" in render_text(two_islands).splitlines()


def test_one_suitable_node() -> None:
    text = render_text(_answer(4, [_node("n", "hgx_h100", 8), _pod("train", "n", 4)])).splitlines()

    assert text[1] == "  gets one of 70 sets of GPUs, for example:"
    assert text[-2:] == ["  free GPUs by island: 4 before, 0 after", "1 node suits the pod."]


def test_equal_nodes_are_listed() -> None:
    answer = _answer(8, [_node(f"n{number}", "hgx_h100", 8) for number in range(5)])

    assert (len(answer.placements), answer.equals) == (3, 5)
    assert "or on" in render_text(answer)
    assert "5 nodes suit the pod; kube-scheduler may choose the 5 nodes with the highest score." in render_text(answer)


def test_with_labels_only_the_gpus_are_unknown() -> None:
    labelled = {"nvidia.com/gpu.product": "NVIDIA-A100", "nvidia.com/gpu.count": "4"}
    node = {"kind": "Node", "metadata": {"name": "n", "labels": labelled}}
    answer = _answer(2, [{**node, "status": {"allocatable": {"nvidia.com/gpu": "6"}}}])

    assert answer.placements[0].gets is None
    assert "  which GPUs it gets is unknown" in render_text(answer).splitlines()


def test_idle_nodes_for_a_simulation() -> None:
    found = idle_nodes(listed(_printed(CLUSTER)))

    assert [(spec.name, spec.cpu_milli, spec.memory_mib) for spec in found.nodes] == [
        ("switch", 96_000, 1 << 20),
        ("pairs", UNLIMITED, UNLIMITED),
    ]
    assert all(isinstance(spec, SimulatedNode) for spec in found.nodes)
    assert not found.left_out


def test_single_node_is_a_cluster_too() -> None:
    assert list(listed(msgspec.json.encode(CLUSTER[0])).snapshot.records) == ["switch"]


@pytest.mark.parametrize(
    ("text_", "said"),
    [
        pytest.param(b"nodes:", "invalid JSON", id="invalid JSON"),
        pytest.param(_printed([CLUSTER[3]]), "no Node", id="pods alone"),
    ],
)
def test_invalid_cluster(text_: bytes, said: str) -> None:
    with pytest.raises(ClusterFileError, match=said):
        listed(text_)


def test_a_broken_node_is_left_out() -> None:
    kube = FileKube(_printed([*CLUSTER, {"kind": "Node", "metadata": {"name": 5}}]), READER)

    found = read_cluster(kube, kube.now(), ListedFor(POLICY))

    assert set(found.snapshot.records) == {"switch", "pairs", "cpu-only"}
    assert [each.plural for each in kube.unreadable] == ["nodes"]


def test_cluster_is_evaluated_at_the_time_of_its_newest_report() -> None:
    states = listed(_printed(CLUSTER)).snapshot.states

    assert {name: state.stale for name, state in states.items()} == {"switch": True, "pairs": False, "cpu-only": False}


def test_cluster_without_node_gpus_has_unknown_allocations() -> None:
    states = listed(_printed([each for each in CLUSTER if each["kind"] != "NodeGpus"])).snapshot.states

    assert not any(state.stale for state in states.values())
    assert states["pairs"].open_admissions is None
    assert states["pairs"].free == SomeSet(0b1111, 2)
