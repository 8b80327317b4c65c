"""Gangs and pods that need whole nodes, in a stream of small pods that always fit before them."""

from __future__ import annotations

from time import sleep

import pytest

from gputopo.labels import keys
from tests.api_objects import GPU, Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.holds import LARGE, held, nodes
from tests.e2e.gangs.members import GATES, Asked, create, gang, gated, member, node_of, of, wait_until_whole
from tests.e2e.gangs.running import GATED, entries, expire_lease, reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, condition, gpu_pod, placed, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
BIG = Asked(2, 8)
SMALL = Asked(2, 4)
KUEUE = {"name": "kueue.x-k8s.io/admission"}


def ungated_pod(number: int) -> Object:
    """Return an ungated pod of half a node, for the nodes that the big gang needs."""
    return gpu_pod(f"pod-{number}", 4, nodeSelector=LARGE)


def end(cluster: Cluster, fleet: Fleet, name: str) -> None:
    """Finish this pod."""
    fleet.finish(started(cluster, name))


def whole_node(node: str) -> Object:
    """Return a holding of a whole node."""
    return {"node": node, "gpus": 8, "resource": GPU}


def test_a_starving_big_gang_starts_with_a_capacity_hold(
    cluster: Cluster,
    fleet: Fleet,
    served: None,
    gputopo_scheduler: Extender,
    agents_of: StartAgents,
    planner: StartPlanner,
) -> None:
    assert served is None
    assert gputopo_scheduler.ready
    nodes(fleet, gpu_0=LARGE, gpu_1=LARGE, gpu_2={})
    agents_of()
    for number in range(4):
        cluster.create_pod(ungated_pod(number))
    for number in range(4):
        placed(cluster, f"pod-{number}")

    patient = planner(*GATED, "--patience", "1h")
    create(cluster, *gang("big", BIG, nodeSelector=LARGE))
    end(cluster, fleet, "pod-0")
    cluster.create_pod(ungated_pod(4))
    placed(cluster, "pod-4")  # whatever becomes free others take
    patient.kill()
    expire_lease(cluster)
    planner(*GATED, "--patience", "1s", name="second-planner")

    hold = wait_for(lambda: held(cluster, "big"), "a capacity hold")
    assert hold["spec"]["held"] == [whole_node("gpu-0"), whole_node("gpu-1")]
    assert hold["status"]["reason"] == (
        "does not fit yet; capacity that becomes free on gpu-0 and 1 more is reserved: the end of their pods is unknown"
    )
    assert [each["phase"] for each in entries(cluster)] == ["Held"]

    end(cluster, fleet, "pod-1")
    cluster.create_pod(ungated_pod(5))
    wait_for(lambda: condition(cluster.pod("pod-5")), "pod-5 to be refused")
    create(cluster, *gang("small", SMALL))
    assert {node_of(each) for each in wait_until_whole(cluster, "small", SMALL.size)} == {"gpu-2"}
    create(cluster, *gang("late", SMALL))
    assert [gated(each) for each in (*of(cluster, "big"), *of(cluster, "late"))] == [True] * 4

    for number in (2, 3, 4):
        end(cluster, fleet, f"pod-{number}")
    assert {node_of(each) for each in wait_until_whole(cluster, "big", BIG.size)} == {"gpu-0", "gpu-1"}
    wait_for(lambda: held(cluster, "late"), "the next to have its turn")
    assert node_of(cluster.pod("pod-5")) is None


def single(name: str, gpus: int, **spec: object) -> Object:
    """Return a single pod that is planned."""
    return pod(name, gpus, schedulingGates=GATES, **spec)


def test_a_single_pod_of_a_whole_node_starts_among_small_pods(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    nodes(fleet, gpu_0={})
    agents_of()
    scheduler()
    planner(*GATED, "--patience", "1s")
    create(cluster, *(single(f"small-{number}", 2) for number in range(4)))
    for number in range(4):
        placed(cluster, f"small-{number}")
    create(cluster, single("whole", 8))
    uid = cluster.pod("whole")["metadata"]["uid"]
    hold = wait_for(lambda: held(cluster, f"pod.{uid}"), "a capacity hold")
    assert hold["spec"]["held"] == [whole_node("gpu-0")]

    create(cluster, *(single(f"late-{number}", 2) for number in range(4)))
    for number in range(4):
        end(cluster, fleet, f"small-{number}")

    assert node_of(placed(cluster, "whole")) == "gpu-0"
    assert [gated(cluster.pod(f"late-{number}")) for number in range(4)] == [True] * 4


def test_a_high_priority_member_without_gpus_does_not_move_a_gang_forward(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    """Nor by an old member: the member without GPUs is also the oldest waiting pod."""
    nodes(fleet, gpu_0={})
    agents_of()
    scheduler()
    cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "high"}, "value": 1000})
    create(cluster, single("there", 8))
    planner(*GATED)
    placed(cluster, "there")
    create(cluster, member("passing", 0, Asked(2, 0), priorityClassName="high"))
    create(cluster, *gang("waiting", Asked(1, 8, scheduler="default-scheduler")))
    sleep(1.1)  # creation times have no fractions of seconds
    create(cluster, member("passing", 1, Asked(2, 8, scheduler="default-scheduler")))

    end(cluster, fleet, "there")

    wait_until_whole(cluster, "waiting", 1)
    assert [gated(each) for each in of(cluster, "passing")] == [True] * 2


def test_a_pod_group_is_planned_once_kueue_has_admitted_it_and_on_the_nodes_that_kueue_chose(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    nodes(fleet, gpu_0={}, gpu_1=LARGE)
    agents_of()
    scheduler()
    planner()
    pods = [pod(f"train-{number}", 4, schedulingGates=[KUEUE, *GATES]) for number in range(2)]
    for each in pods:
        each["metadata"]["labels"] = {"kueue.x-k8s.io/pod-group-name": "train"}
        each["metadata"]["annotations"] = {"kueue.x-k8s.io/pod-group-total-count": "2"}
    create(cluster, *pods)
    create(cluster, *gang("other", Asked(1, 1, scheduler="default-scheduler")))
    wait_until_whole(cluster, "other", 1)
    assert [each["spec"]["schedulingGates"] for each in grouped(cluster)] == [[KUEUE, *GATES]] * 2
    assert [each["spec"]["gang"] for each in reserved(cluster)] == ["other"]

    for each in pods:  # as Kueue admits: the labels of the flavor, and its gate
        admitted = {"spec": {"nodeSelector": LARGE, "schedulingGates": GATES}}
        cluster.api.patch(cluster.pods(each["metadata"]["name"]), admitted)

    found = [started(cluster, each["metadata"]["name"]) for each in pods]
    assert [node_of(each) for each in found] == ["gpu-1", "gpu-1"]
    assert [each["metadata"]["annotations"][keys.POD_GANG_RANK.key] for each in found] == ["0", "1"]


def grouped(cluster: Cluster) -> list[Object]:
    """Return the pods of the Kueue group."""
    return cluster.api.items(cluster.pods(), labelSelector="kueue.x-k8s.io/pod-group-name=train")


def test_gangs_that_do_not_fit_delay_no_other_gang_and_start_when_capacity_appears(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, scheduler: StartScheduler, planner: StartPlanner
) -> None:
    """40 gangs, of two kinds, begin the queue. Capacity appears by the end of a pod and by a label."""
    nodes(fleet, gpu_0={}, gpu_1=LARGE, gpu_2={})
    agents_of()
    scheduler()
    create(cluster, single("there", 8, nodeSelector=LARGE))
    planner(*GATED, "--patience", "1h")
    assert node_of(placed(cluster, "there")) == "gpu-1"
    stock = "default-scheduler"
    for at in range(40):
        create(cluster, *gang(f"unfit-{at:02}", Asked(2, 7 + at % 2, scheduler=stock), nodeSelector=LARGE))

    for number in range(3):
        create(cluster, *gang(f"fits-{number}", Asked(2, 1, scheduler=stock)))
        wait_until_whole(cluster, f"fits-{number}", 2)
        assert gated(cluster.pod("unfit-00-0"))
        end(cluster, fleet, f"fits-{number}-0")
    for number in range(3):
        end(cluster, fleet, f"fits-{number}-1")
    end(cluster, fleet, "there")
    cluster.api.patch("/api/v1/nodes/gpu-2", {"metadata": {"labels": LARGE}})

    assert {node_of(each) for each in wait_until_whole(cluster, "unfit-00", 2)} == {"gpu-1", "gpu-2"}
    assert gated(cluster.pod("unfit-01-0"))
