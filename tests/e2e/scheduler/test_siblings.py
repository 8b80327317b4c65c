"""The real kube-scheduler: ungated pods of one job go to the node, clique and rack of their siblings."""

from __future__ import annotations

import json

import pytest

from gputopo.labels import keys
from gputopo.labels.domains import RACK_LABELS
from gputopo.labels.workloads import TRAINING_JOB_ID
from tests.e2e.cluster import Cluster
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, gpu_pod, placed
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import nvswitch_8

pytestmark = pytest.mark.e2e
RACK = RACK_LABELS[0]
CLIQUE = keys.NVIDIA_CLIQUE.key


def test_pods_of_a_training_job_fill_the_clique_and_then_the_rack_of_the_first(
    gputopo_scheduler: Extender, cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    fleet.add(
        *(
            NodeSpec(name=f"far-{each}", shape=nvswitch_8(), labels={CLIQUE: f"far.{each}", RACK: f"far-{each}"})
            for each in range(6)
        ),
        NodeSpec(name="first", shape=nvswitch_8(), labels={CLIQUE: "near.1", RACK: "near"}),
        NodeSpec(name="same-clique", shape=nvswitch_8(), labels={CLIQUE: "near.1", RACK: "near"}),
        NodeSpec(name="same-rack", shape=nvswitch_8(), labels={CLIQUE: "near.2", RACK: "near"}),
    )
    agents = agents_of()
    nodes = []

    for each in range(3):
        worker = gpu_pod(f"worker-{each}", 8, nodeSelector={"kubernetes.io/hostname": "first"} if not each else {})
        worker["metadata"]["labels"] = {TRAINING_JOB_ID: "t"}
        cluster.create_pod(worker)
        nodes.append(placed(cluster, f"worker-{each}")["spec"]["nodeName"])
        agents.catch_up()

    assert nodes == ["first", "same-clique", "same-rack"]
    why = json.loads(gputopo_scheduler.text(f"/explain/{cluster.namespace}/worker-2"))
    assert any("other pods of its owner or job are on first, same-clique" in note for note in why["notes"])
