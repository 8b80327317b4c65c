"""A policy file on the real kube-scheduler: its two names are two policies, and what a pod is says where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from gputopo.cli.config import scheduler_config
from gputopo.labels import keys
from gputopo.model import NodeTopology
from tests.api_objects import GPU, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, prepare, running, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import DISTRIBUTED, NodeSpec
from tests.simulated_node.shapes import bridged_pairs_8, nvswitch_8

pytestmark = pytest.mark.e2e
CHEAP, FAST = "cost-optimized-scheduler", "gpu-aware-scheduler"
TRITON = "nvcr.io/nvidia/tritonserver:26.10-py3"
TORCHRUN = ["torchrun", "--nproc-per-node=2", "train.py"]


def printed(*options: str) -> str:
    """The output of `gputopo scheduler-config`."""
    return CliRunner().invoke(scheduler_config, options, catch_exceptions=False).output


@pytest.fixture
def two_policies(cluster: Cluster, scheduler: StartScheduler, tmp_path: Path) -> Iterator[Extender]:
    """One extender with a policy file, and one kube-scheduler with a profile for each of its policies."""
    (tmp_path / "policy.yaml").write_text(printed("--policy"))
    prepare(cluster)
    with running(cluster, "--policy", str(tmp_path / "policy.yaml")) as extender:
        extender.wait_until_ready()
        shipped = yaml.safe_load(printed("--quality-and-cost", "--resource", GPU))
        scheduler(extender.configuration(profiles=shipped["profiles"]))
        yield extender


def lands(cluster: Cluster, name: str, gpus: int = 1, *, by: str = FAST, vram: str = "", **container: object) -> str:
    """The node on which a pod runs; ``container``: fields of its container."""
    wanted = pod(name, gpus, schedulerName=by)
    wanted["spec"]["containers"][0] |= container
    wanted["metadata"]["annotations"] = {keys.POD_VRAM.key: vram} if vram else {}
    cluster.create_pod(wanted)
    return str(started(cluster, name)["spec"]["nodeName"])


def suited(extender: Extender, page: str) -> int:
    """The number of nodes that suit a pod, by the extender's explanation; 0: the extender does not know the pod."""
    text = extender.text(page)
    return len(msgspec.json.decode(text)["suited"]) if text.startswith("{") else 0


def one_card() -> NodeTopology:
    """A machine with one A100 of 80 GiB."""
    whole = bridged_pairs_8()
    return msgspec.structs.replace(whole, gpus=whole.gpus[:1], nvlink=None, pcie=((None,),))


def test_the_same_pod_lands_on_the_cheap_spot_node_or_on_the_nvswitch_node(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, two_policies: Extender
) -> None:
    spot = {keys.COST_PER_HOUR.key: "4", "karpenter.sh/capacity-type": "spot"}
    fleet.add(
        NodeSpec(name="cheap-spot", shape=bridged_pairs_8(), labels=spot),
        NodeSpec(name="plain", shape=bridged_pairs_8(), labels={keys.COST_PER_HOUR.key: "12"}),
        NodeSpec(name="nvswitch", shape=nvswitch_8(), labels={keys.COST_PER_HOUR.key: "32"}),
    )
    earlier = pod("earlier", 2, nodeName="plain")  # without money, the one in use comes before the idle one
    earlier["metadata"]["annotations"] = {keys.POD_ISLAND.key: "required"}
    cluster.create_pod(earlier)
    started(cluster, "earlier")
    agents_of()
    wait_for(lambda: suited(two_policies, f"/explain/{cluster.namespace}/earlier") == 3, "three known topologies")

    placed = {by: lands(cluster, by, 2, by=by) for by in (CHEAP, FAST)}

    assert placed == {CHEAP: "cheap-spot", FAST: "nvswitch"}


@pytest.mark.usefixtures("two_policies")
def test_models_fill_the_warm_card_to_80_percent_and_then_open_the_next(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    shared = {keys.NVIDIA_REPLICAS: "10"}
    fleet.add(
        *(
            NodeSpec(name=f"card-{each}", shape=one_card(), policy=DISTRIBUTED, labels=shared, replicas=10)
            for each in range(2)
        )
    )
    agents = agents_of()
    placed = []

    for each in range(8):  # 15 of 80 GiB each: four are 75 %, five were 94 %
        placed.append(lands(cluster, f"model-{each}", vram="15Gi", image=TRITON))
        agents.catch_up()

    warm, cold = placed[0], placed[4]
    assert placed == [warm] * 4 + [cold] * 4
    assert {warm, cold} == {"card-0", "card-1"}


@pytest.mark.usefixtures("two_policies")
def test_training_avoids_the_node_that_serves_and_other_pods_do_not(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents
) -> None:
    fleet.add(*(NodeSpec(name=f"gpu-{each}", shape=nvswitch_8()) for each in range(2)))
    agents_of()
    serving = lands(cluster, "serving", image=TRITON)

    assert lands(cluster, "anything") == serving
    assert lands(cluster, "training", 2, command=TORCHRUN) != serving
