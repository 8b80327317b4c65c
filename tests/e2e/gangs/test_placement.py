"""Placement of whole gangs: planner and stock kube-scheduler, no extender, all GPU pods gated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gputopo.labels import keys
from gputopo.labels.workloads import TRAINING_JOB_ID
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import GATES, Asked, create, gang, gated, member, node_of, of, wait_until_whole
from tests.e2e.gangs.running import entries, reserved
from tests.e2e.scheduler import real_state
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import placed, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import cube_mesh_8, islands_4_4, nvswitch_8

pytestmark = pytest.mark.e2e
STOCK = "default-scheduler"
CLIQUE = keys.NVIDIA_CLIQUE.key
KUEUE = {"name": "kueue.x-k8s.io/admission"}
Ready = Callable[..., None]


@pytest.fixture
def ready(fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner) -> Ready:
    """Start nodes of two islands of 4 in these cliques ("": none), agents, kube-scheduler and planner."""

    def start(*cliques: str) -> None:
        fleet.add(
            *(
                NodeSpec(name=f"gpu-{at}", shape=islands_4_4(), labels={CLIQUE: name} if name else {})
                for at, name in enumerate(cliques)
            )
        )
        agents_of()
        scheduler()
        planner()

    return start


def asked(size: int, gpus: int, **wishes: str) -> Asked:
    """Return the request of a gang for the stock scheduler."""
    return Asked(size, gpus, {name.replace("_", "-"): value for name, value in wishes.items()}, STOCK)


def occupy(cluster: Cluster, node: str, gpus: int) -> None:
    """Run a pod on this node."""
    cluster.create_pod(pod(f"holder-{node}", gpus, nodeName=node))
    started(cluster, f"holder-{node}")


def places(pods: list[Object]) -> Counter[str]:
    """Return the number of members by node."""
    return Counter(each["spec"]["nodeName"] for each in pods)


def ranks(pods: list[Object]) -> dict[int, str]:
    """Return the node of each rank."""
    return {int(each["metadata"]["annotations"][keys.POD_GANG_RANK.key]): each["spec"]["nodeName"] for each in pods}


def settled(cluster: Cluster, name: str) -> Object:
    """Wait until a gang's reservation is Bound and removed from the ledger; return it."""

    def bound() -> Object | None:
        found = [each for each in reserved(cluster) if each["spec"]["gang"] == name]
        return found[0] if [each.get("status", {}).get("state") for each in found] == ["Bound"] else None

    reservation = wait_for(bound, f"the reservation of {name}")
    wait_for(lambda: entries(cluster) == [], "the ledger to forget it")
    return reservation


def test_eight_of_one_gpu_share_two_nodes_and_neighbours_in_rank_share_a_node(
    cluster: Cluster, fleet: Fleet, ready: Ready
) -> None:
    ready("", "")
    for node in fleet.names:
        occupy(cluster, node, 4)

    create(cluster, *gang("train", asked(8, 1)))

    pods = wait_until_whole(cluster, "train", 8)
    assert places(pods) == {"gpu-0": 4, "gpu-1": 4}
    by_rank = ranks(pods)
    assert sorted(by_rank) == list(range(8))
    assert len({by_rank[rank] for rank in range(4)}) == len({by_rank[rank] for rank in range(4, 8)}) == 1
    status = settled(cluster, "train")["status"]
    assert (status["bound"], status["members"], status["nodes"], status["gpus"]) == (8, 8, 2, 8)


def test_if_only_fifteen_of_sixteen_fit_nothing_is_bound_or_reserved(cluster: Cluster, ready: Ready) -> None:
    ready("", "")
    occupy(cluster, "gpu-1", 1)

    create(cluster, *gang("train", asked(16, 1)))
    create(cluster, *gang("small", asked(15, 1)))

    assert places(wait_until_whole(cluster, "small", 15)) == {"gpu-0": 8, "gpu-1": 7}
    assert [each["metadata"]["name"] for each in of(cluster, "train") if node_of(each) or not gated(each)] == []
    assert [each["spec"]["gang"] for each in reserved(cluster)] == ["small"]

    for each in [*of(cluster, "small"), cluster.pod("holder-gpu-1")]:
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    assert places(wait_until_whole(cluster, "train", 16)) == {"gpu-0": 8, "gpu-1": 8}


def test_a_gang_goes_into_the_one_clique_that_fits_all_members(cluster: Cluster, ready: Ready) -> None:
    ready("a", "b", "a", "b")
    occupy(cluster, "gpu-0", 1)

    create(cluster, *gang("train", asked(2, 8, gang_preferred_topology="clique")))

    assert places(wait_until_whole(cluster, "train", 2)) == {"gpu-1": 1, "gpu-3": 1}
    assert settled(cluster, "train")["spec"]["domain"] == "clique=b"


def test_a_gang_that_prefers_a_clique_and_fits_in_none_takes_two(cluster: Cluster, ready: Ready) -> None:
    ready("a", "b")

    create(cluster, *gang("train", asked(2, 8, gang_preferred_topology="clique")))

    assert places(wait_until_whole(cluster, "train", 2)) == {"gpu-0": 1, "gpu-1": 1}


def test_a_gang_that_requires_a_clique_and_fits_in_none_waits(cluster: Cluster, ready: Ready) -> None:
    ready("a", "b")

    create(cluster, *gang("train", asked(2, 8, gang_required_topology="clique")))
    create(cluster, *gang("later", asked(2, 8)))

    wait_until_whole(cluster, "later", 2)
    assert [gated(each) for each in of(cluster, "train")] == [True, True]


def test_a_replaced_member_is_placed_next_to_its_siblings(cluster: Cluster, ready: Ready) -> None:
    ready("a", "b", "a", "b")
    occupy(cluster, "gpu-0", 1)
    wants = asked(2, 8, gang_preferred_topology="clique")
    create(cluster, *gang("train", wants))
    first, second = wait_until_whole(cluster, "train", 2)
    cluster.api.delete(cluster.pods("holder-gpu-0"))

    cluster.api.delete(cluster.pods(second["metadata"]["name"]))
    cluster.create_pod(member("train", 7, wants))

    assert node_of(placed(cluster, "train-7")) == node_of(second)
    assert started(cluster, "train-0")["metadata"]["uid"] == first["metadata"]["uid"]


def test_a_launcher_without_gpus_starts_with_its_workers(cluster: Cluster, ready: Ready) -> None:
    ready("", "")
    wants = asked(3, 8)
    launcher, *workers = gang("train", wants)
    launcher["spec"]["containers"][0]["resources"] = {}

    create(cluster, launcher, workers[0])
    occupy(cluster, "gpu-1", 0)  # something is bound meanwhile
    assert [gated(each) for each in of(cluster, "train")] == [True, True]
    create(cluster, workers[1])

    pods = wait_until_whole(cluster, "train", 3)
    assert places(pods[1:]) == {"gpu-0": 1, "gpu-1": 1}
    assert "affinity" not in pods[0]["spec"]


def test_an_elastic_gang_starts_with_what_fits_and_grows(cluster: Cluster, ready: Ready) -> None:
    ready("", "")
    occupy(cluster, "gpu-1", 4)

    create(cluster, *gang("train", asked(4, 4, gang_minimum="2")))

    assert places(wait_until_whole(cluster, "train", 3)) == {"gpu-0": 2, "gpu-1": 1}
    cluster.api.delete(cluster.pods("holder-gpu-1"))
    assert places(wait_until_whole(cluster, "train", 4)) == {"gpu-0": 2, "gpu-1": 2}


def test_a_gang_waits_for_another_gate(cluster: Cluster, ready: Ready) -> None:
    ready("", "")
    create(cluster, *gang("train", asked(2, 4), schedulingGates=[KUEUE, *GATES]))
    create(cluster, *gang("other", asked(2, 1)))
    wait_until_whole(cluster, "other", 2)
    assert [each["spec"]["schedulingGates"] for each in of(cluster, "train")] == [[KUEUE, *GATES]] * 2

    for each in of(cluster, "train"):
        patch = {"spec": {"schedulingGates": GATES}}
        cluster.api.patch(cluster.pods(each["metadata"]["name"]), patch)

    wait_until_whole(cluster, "train", 2)


def test_members_on_one_node_get_an_island_each(cluster: Cluster, fleet: Fleet, ready: Ready) -> None:
    ready("", "")
    create(cluster, *gang("train", asked(4, 4, island="required")))

    names = [each["metadata"]["name"] for each in wait_until_whole(cluster, "train", 4)]
    pods = [started(cluster, name) for name in names]
    by_node = real_state.held(fleet, pods)
    assert real_state.all_in_one_island(fleet, by_node)


def test_single_pods_that_request_planning_are_placed_and_leave_nothing_behind(
    cluster: Cluster, fleet: Fleet, ready: Ready
) -> None:
    ready("", "")
    planned = {keys.POD_PLANNED.key: "true", keys.POD_ISLAND.key: "required"}
    pods = [pod(f"single-{at}", 3, schedulingGates=GATES) for at in range(5)]  # of four there is whole_node for
    for each in pods:
        each["metadata"]["annotations"] = planned
    create(cluster, *pods)

    found = wait_for(lambda: four_run(cluster), "four of five to run")
    by_node = real_state.held(fleet, found)
    assert real_state.all_in_one_island(fleet, by_node)
    (waiting,) = [each for each in cluster.api.items(cluster.pods()) if not node_of(each)]
    assert gated(waiting)
    wait_for(lambda: entries(cluster) == [] and reserved(cluster) == [], "the ledger to forget them")

    cluster.api.delete(cluster.pods(found[0]["metadata"]["name"]))
    assert started(cluster, waiting["metadata"]["name"])


def test_gated_single_pods_of_a_job_go_to_the_clique_of_the_first(cluster: Cluster, ready: Ready) -> None:
    ready(*(f"far.{at}" for at in range(6)), "near.1", "near.1")
    nodes = []

    for at in range(2):
        worker = pod(f"worker-{at}", 8, schedulingGates=GATES)
        if at == 0:
            worker["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "gpu-6"}
        worker["metadata"] |= {"annotations": {keys.POD_PLANNED.key: "true"}, "labels": {TRAINING_JOB_ID: "t"}}
        create(cluster, worker)
        nodes.append(started(cluster, f"worker-{at}")["spec"]["nodeName"])

    assert nodes == ["gpu-6", "gpu-7"]


def four_run(cluster: Cluster) -> list[Object] | None:
    """Return the running pods once they are four."""
    found = [each for each in cluster.api.items(cluster.pods()) if each["status"]["phase"] == "Running"]
    return found if len(found) == 4 else None


def test_members_that_may_not_share_a_node_have_one_each(cluster: Cluster, ready: Ready) -> None:
    """Two members at once on empty nodes that fit both; then a member of another gang beside placed members."""
    ready("", "", "")
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "train"}}}
    apart = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    first, later = (gang(name, asked(size, 1), affinity=apart) for name, size in (("train", 2), ("later", 1)))
    for each in (*first, *later):
        each["metadata"]["labels"] = {"app": "train"}

    create(cluster, *first)
    there = places(wait_until_whole(cluster, "train", 2))
    create(cluster, *later)

    assert there + places(wait_until_whole(cluster, "later", 1)) == {"gpu-0": 1, "gpu-1": 1, "gpu-2": 1}


def test_a_gang_gets_gpus_of_one_product(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    """One node is of another product, and in the clique of a node of the first."""
    cliques = {CLIQUE: "fabric.1"}
    fleet.add(
        NodeSpec(name="v100-0", shape=cube_mesh_8(), labels=cliques),
        NodeSpec(name="v100-1", shape=cube_mesh_8()),
        NodeSpec(name="h100-0", shape=nvswitch_8(), labels=cliques),
    )
    agents_of()
    scheduler()
    planner()

    create(cluster, *gang("train", asked(2, 8)))

    assert places(wait_until_whole(cluster, "train", 2)) == {"v100-0": 1, "v100-1": 1}
