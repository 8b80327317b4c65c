"""The example package of docs/extensions.md in a real extender, with a real kube-scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, gpu_pod, placed, prepare, refused, running
from tests.extension_package import EXAMPLE, install_example
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import nvswitch_8

pytestmark = pytest.mark.e2e


@pytest.fixture
def extended(cluster: Cluster, scheduler: StartScheduler, tmp_path: Path) -> Iterator[Extender]:
    """An extender with the example package and its policy file."""
    install_example(tmp_path)
    prepare(cluster)
    options = ("--policy", str(EXAMPLE / "policy.yaml"))
    with running(cluster, *options, environ={"PYTHONPATH": str(tmp_path)}) as extender:
        extender.wait_until_ready()
        scheduler(extender.configuration())
        yield extender


def test_licences_of_racks_and_cooling_decide(
    extended: Extender, cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    licensed = {"example.com/rack-licences": "matlab.nastran"}
    fleet.add(
        NodeSpec(name="hot", shape=nvswitch_8(), labels=licensed | {"example.com/cooling-reserve": "5"}),
        NodeSpec(name="cool", shape=nvswitch_8(), labels=licensed | {"example.com/cooling-reserve": "90"}),
        NodeSpec(name="bare", shape=nvswitch_8(), labels={"example.com/cooling-reserve": "99"}),
    )
    agents_of()

    for name, licence in (("free", None), ("licensed", "nastran"), ("unlicensed", "abaqus")):
        cluster.create_pod(gpu_pod(name, 2, {} if licence is None else {"example.com/licence": licence}))
    nodes = {name: placed(cluster, name)["spec"]["nodeName"] for name in ("free", "licensed")}
    message = refused(cluster, "unlicensed")

    assert nodes == {"free": "bare", "licensed": "cool"}
    assert "3 a filter of the policy file rejects the node (see: gputopo why pod)" in message
    why = json.loads(extended.text(f"/explain/{cluster.namespace}/unlicensed"))
    assert [each["reason"] for each in why["refused"]] == ["EXTENSION"]
    assert any("rejected by the filter rack-licence" in note for note in why["notes"])
    assert extended.count("gputopo_extension_failures_total") == 0
