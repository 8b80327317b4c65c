"""The requests that a real kube-scheduler sends to an extender, and its reactions to the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api_objects import Object, gpu_node, pod
from tests.e2e.cluster import Cluster
from tests.e2e.extender import RecordingExtender, Request, no_preference, without
from tests.e2e.fixtures import StartScheduler
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
# Requests that a kube-scheduler 1.36 sent, with four nodes of 8 GPUs.
TRAFFIC = Path(__file__).parents[3] / "shared" / "extender-traffic"
RECORDED_NODES = [f"gpu-node-{number}" for number in range(4)]
# What differs from cluster to cluster. The recording API server ran without the ServiceAccount admission plugin.
OF_ONE_RUN = [f"Pod.metadata.{name}" for name in ("uid", "resourceVersion", "creationTimestamp", "namespace")] + [
    "Pod.spec.serviceAccount",
    "Pod.spec.serviceAccountName",
]


@pytest.fixture
def extender() -> Iterator[RecordingExtender]:
    with RecordingExtender() as recording:
        yield recording


@pytest.mark.usefixtures("gpu_nodes")
def test_headers_are_those_of_go_without_credentials(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler
) -> None:
    _run(cluster, scheduler, extender.config(), pod("train", gpus=2))

    request = extender.requests[0]
    headers = dict(request.headers)
    assert request.line == "POST /filter HTTP/1.1"
    assert {name: headers[name] for name in headers if name not in {"Host", "Content-Length"}} == {
        "User-Agent": "Go-http-client/1.1",
        "Content-Type": "application/json",
        "Accept-Encoding": "gzip",
    }


@pytest.mark.parametrize("by_name", [True, False], ids=["names", "objects"])
def test_filter_and_prioritize_name_the_feasible_nodes(
    cluster: Cluster, gpu_nodes: Fleet, extender: RecordingExtender, scheduler: StartScheduler, by_name: bool
) -> None:
    cluster.api.create("/api/v1/nodes", gpu_node("too-small", 1))
    _run(cluster, scheduler, extender.config(nodeCacheCapable=by_name), pod("train", gpus=2))

    assert extender.verbs == ["filter", "prioritize"]
    assert [sorted(request.body) for request in extender.requests] == [["NodeNames", "Nodes", "Pod"]] * 2
    assert [_nodes(request) for request in extender.requests] == [gpu_nodes.names] * 2
    assert [request.body["Nodes" if by_name else "NodeNames"] for request in extender.requests] == [None, None]


def test_highest_score_decides(
    cluster: Cluster, gpu_nodes: Fleet, extender: RecordingExtender, scheduler: StartScheduler
) -> None:
    extender.answers["prioritize"] = lambda arguments: [
        score | {"Score": 10 if score["Host"] == "gpu-2" else 0} for score in no_preference(arguments)
    ]

    bound = _run(cluster, scheduler, extender.config(weight=100), pod("train", gpus=2))

    assert bound["spec"]["nodeName"] == "gpu-2"
    assert len(gpu_nodes.gpus_of(bound)) == 2


@pytest.mark.usefixtures("gpu_nodes")
def test_filter_that_leaves_one_node_is_not_followed_by_prioritize(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler
) -> None:
    extender.answers["filter"] = lambda _: {"NodeNames": ["gpu-3"]}

    bound = _run(cluster, scheduler, extender.config(), pod("train", gpus=2))

    assert (bound["spec"]["nodeName"], extender.verbs) == ("gpu-3", ["filter"])


@pytest.mark.usefixtures("gpu_nodes")
def test_pods_without_gpus_do_not_reach_the_extender(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler
) -> None:
    _run(cluster, scheduler, extender.config(), pod("web"))

    assert extender.requests == []


def test_reasons_of_a_rejection_are_in_the_condition_of_the_pod(
    cluster: Cluster, gpu_nodes: Fleet, extender: RecordingExtender, scheduler: StartScheduler
) -> None:
    extender.answers["filter"] = lambda arguments: {
        "NodeNames": [],
        "FailedAndUnresolvableNodes": dict.fromkeys(arguments["NodeNames"], "no island has 2 free GPUs"),
    }
    scheduler(extender.config())
    cluster.create_pod(pod("train", gpus=2))

    rejected = cluster.wait_for_pod("train", lambda each: each["status"].get("conditions"))

    (condition,) = rejected["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"].startswith(
        f"0/{len(gpu_nodes.names)} nodes are available: 4 no island has 2 free GPUs."
    )


@pytest.mark.skipif(not TRAFFIC.exists(), reason="../shared/extender-traffic is not here")
@pytest.mark.parametrize("ncc", ["true", "false"])
def test_requests_are_those_that_were_recorded(
    cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler, ncc: str
) -> None:
    recorded = [_recording(f"ncc-{ncc}-basic-0{step}") for step in ("1-filter", "2-prioritize", "3-bind")]
    cluster.api.create_all([("/api/v1/nodes", gpu_node(name, 8)) for name in RECORDED_NODES])
    extender.answers["bind"] = lambda arguments: _bind(cluster, arguments)
    metadata = {"name": recorded[0].body["Pod"]["metadata"]["name"]}
    same = {"metadata": metadata, "spec": recorded[0].body["Pod"]["spec"]}

    _run(cluster, scheduler, extender.config(bindVerb="bind", nodeCacheCapable=ncc == "true"), same, until="bound")

    assert [request.line for request in extender.requests] == [request.line for request in recorded]
    assert [_headers(request) for request in extender.requests] == [_headers(request) for request in recorded]
    for request, example in zip(extender.requests[:2], recorded[:2], strict=True):
        assert without(request.body, "Nodes", "NodeNames", *OF_ONE_RUN) == without(
            example.body, "Nodes", "NodeNames", *OF_ONE_RUN
        )
        assert _nodes(request) == _nodes(example) == RECORDED_NODES
        assert _node_keys(request) == _node_keys(example)
    assert sorted(extender.requests[2].body) == sorted(recorded[2].body)


@pytest.mark.skipif(not TRAFFIC.exists(), reason="../shared/extender-traffic is not here")
def test_preemption_asks_as_recorded(cluster: Cluster, extender: RecordingExtender, scheduler: StartScheduler) -> None:
    recorded = _recording("ncc-true-preempt-01-preempt")
    cluster.api.create_all([("/api/v1/nodes", gpu_node(name, 8)) for name in RECORDED_NODES])
    high = {"metadata": {"name": "high"}, "value": 1000}
    cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", high)
    victims = [pod(f"low-{number}", gpus=4, nodeName=RECORDED_NODES[number // 2]) for number in range(8)]
    uids = [cluster.create_pod(each)["metadata"]["uid"] for each in victims]
    extender.answers["preempt"] = lambda arguments: {"NodeNameToMetaVictims": arguments["NodeNameToMetaVictims"]}
    metadata = {"name": recorded.body["Pod"]["metadata"]["name"]}
    same = {"metadata": metadata, "spec": recorded.body["Pod"]["spec"]}

    _run(cluster, scheduler, extender.config(preemptVerb="preempt"), same, until="bound")

    asked, again = extender.requests[:2]
    assert (asked.line, _headers(asked)) == (recorded.line, _headers(recorded))
    assert without(asked.body, "NodeNameToMetaVictims", *OF_ONE_RUN) == without(
        recorded.body, "NodeNameToMetaVictims", *OF_ONE_RUN
    )
    assert {node: sorted(each["UID"] for each in victims["Pods"]) for node, victims in _victims(asked).items()} == {
        name: sorted(uids[2 * number : 2 * number + 2]) for number, name in enumerate(RECORDED_NODES)
    }
    assert _victims(asked).keys() == _victims(recorded).keys()
    assert (again.verb, len(again.body["NodeNames"])) == ("filter", 1)  # the nominated node alone


def _run(cluster: Cluster, scheduler: StartScheduler, config: str, wanted: Object, until: str = "Running") -> Object:
    """Start a scheduler and a pod; the pod once it runs, or once it is bound where no kubelet runs it."""
    scheduler(config)
    cluster.create_pod(wanted)
    return cluster.wait_for_pod(
        wanted["metadata"]["name"],
        lambda each: "nodeName" in each["spec"] and (until == "bound" or each["status"]["phase"] == until),
    )


def _bind(cluster: Cluster, arguments: Object) -> Object:
    target = {"apiVersion": "v1", "kind": "Node", "name": arguments["Node"]}
    path = cluster.pods(f"{arguments['PodName']}/binding", arguments["PodNamespace"])
    cluster.api.create(path, {"metadata": {"name": arguments["PodName"]}, "target": target})
    return {"Error": ""}


def _recording(name: str) -> Request:
    document = json.loads((TRAFFIC / f"{name}.json").read_text())
    return Request(
        document["request_line"], tuple((key, value) for key, value in document["headers"]), document["body"]
    )


def _headers(request: Request) -> list[tuple[str, str]]:
    return [(name, "" if name in {"Host", "Content-Length"} else value) for name, value in request.headers]


def _items(request: Request) -> list[Any]:
    nodes: Object = request.body["Nodes"] or {"items": []}
    return list(nodes["items"])


def _nodes(request: Request) -> list[str]:
    return sorted(request.body["NodeNames"] or [item["metadata"]["name"] for item in _items(request)])


def _node_keys(request: Request) -> list[tuple[list[str], bool]]:
    """The keys of each node object, and whether it drags its managedFields along."""
    return [(sorted(item), "managedFields" in item["metadata"]) for item in _items(request)]


def _victims(request: Request) -> dict[str, Any]:
    victims: dict[str, Any] = request.body["NodeNameToMetaVictims"]
    return victims
