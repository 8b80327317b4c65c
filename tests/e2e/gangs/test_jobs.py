"""The deletions of unstarted pods that the Job controller counts as failures: rollbacks depend on this."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from tests.api_objects import Object, gpu_node
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.members import TRACKING, Asked, create_job, gated, job, job_status, of_job

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("controller_manager")]
SIZE = 8  # more than the default backoffLimit of 6: one rollback that counted would be the Job's end
KINDS: dict[str, Object] = {
    "plain": {},
    "indexed": {"completionMode": "Indexed"},
    "no-index-may-fail": {"completionMode": "Indexed", "backoffLimitPerIndex": 0},
    "replaced-once-failed": {"podReplacementPolicy": "Failed"},
}


def created(cluster: Cluster, name: str, fields: Object) -> list[Object]:
    """Create a Job; return its pods: every other pod is bound to a node without a kubelet, the rest is gated."""
    create_job(cluster, job(name, Asked(SIZE, 1), **fields))
    pods = wait_for(lambda: pods_but(cluster, name, set()), f"the pods of {name}")
    for each in pods[::2]:
        bind(cluster, each)
    return of_job(cluster, name)


def bind(cluster: Cluster, found: Object) -> None:
    """Ungate and bind a pod."""
    name = found["metadata"]["name"]
    cluster.api.patch(cluster.pods(name), {"spec": {"schedulingGates": None}})
    target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "gpu-0"}}
    cluster.api.create(f"{cluster.pods(name)}/binding", target)


def pods_but(cluster: Cluster, name: str, gone: set[str]) -> list[Object] | None:
    """Return the pods of a Job without these once all exist."""
    pods = [each for each in of_job(cluster, name) if each["metadata"]["uid"] not in gone]
    return pods if len(pods) == SIZE else None


def untrack(cluster: Cluster, found: Object) -> None:
    """Remove the Job controller's finalizer from an unchanged pod."""
    seen = found["metadata"]
    left = [each for each in seen["finalizers"] if each != TRACKING]
    metadata = {"uid": seen["uid"], "resourceVersion": seen["resourceVersion"], "finalizers": left}
    cluster.api.patch(cluster.pods(seen["name"]), {"metadata": metadata})


def delete(cluster: Cluster, found: Object) -> None:
    """Delete a pod at once: no kubelet runs it."""
    metadata = found["metadata"]
    cluster.api.delete(cluster.pods(metadata["name"]), grace_s=0, uid=metadata["uid"])


def failed(cluster: Cluster, name: str) -> bool:
    """Return whether a Job has failed."""
    return any(each["type"] == "Failed" for each in job_status(cluster, name).get("conditions", ()))


@pytest.fixture(autouse=True)
def node(cluster: Cluster) -> None:
    cluster.api.create("/api/v1/nodes", gpu_node("gpu-0", 64))


def test_pods_deleted_without_their_tracking_finalizer_are_replaced_and_never_counted(cluster: Cluster) -> None:
    pods = {name: created(cluster, name, fields) for name, fields in KINDS.items()}

    for _ in range(3):
        gone = {each["metadata"]["uid"] for each in chain(*pods.values())}
        for each in chain(*pods.values()):
            untrack(cluster, each)
            delete(cluster, each)
        for name in KINDS:
            pods[name] = wait_for(whole(cluster, name, gone), f"new pods of {name}", 30)

    assert {name: job_status(cluster, name).get("failed", 0) for name in KINDS} == dict.fromkeys(KINDS, 0)
    assert [name for name in KINDS if failed(cluster, name)] == []
    assert all(gated(each) for each in chain(*pods.values()))


def whole(cluster: Cluster, name: str, gone: set[str]) -> Callable[[], list[Object] | None]:
    """Return a function that returns the replacements of deleted pods."""
    return lambda: pods_but(cluster, name, gone)


def test_deleted_pods_with_their_tracking_finalizer_fail_their_job(cluster: Cluster) -> None:
    for each in created(cluster, "train", {}):
        delete(cluster, each)

    wait_for(lambda: failed(cluster, "train"), "the Job to be given up")
    assert job_status(cluster, "train")["failed"] == SIZE


def test_pod_replacement_policy_failed_delays_the_replacement(cluster: Cluster) -> None:
    pods = created(cluster, "train", {"podReplacementPolicy": "Failed"})
    for each in pods:
        delete(cluster, each)
    wait_for(lambda: job_status(cluster, "train").get("terminating") == SIZE, "the Job controller to look")
    assert job_status(cluster, "train").get("failed", 0) == 0

    for each in pods:  # the pod garbage collector does, every 20 s, to the unbound; kubelets to the others
        cluster.api.patch(f"{cluster.pods(each['metadata']['name'])}/status", {"status": {"phase": "Failed"}})

    wait_for(lambda: failed(cluster, "train"), "the Job to be given up")
    assert job_status(cluster, "train")["failed"] == SIZE


def test_a_running_pod_without_tracking_finalizer_is_not_counted_when_it_succeeds(cluster: Cluster) -> None:
    """So a rollback that was interrupted between the two writes must continue."""
    pods = created(cluster, "train", {})
    for each in pods[1::2]:
        bind(cluster, each)
    forgotten, *others = of_job(cluster, "train")
    untrack(cluster, forgotten)

    for each in (forgotten, *others):
        cluster.api.patch(f"{cluster.pods(each['metadata']['name'])}/status", {"status": {"phase": "Succeeded"}})

    wait_for(lambda: job_status(cluster, "train").get("succeeded") == SIZE - 1, "all but one to be counted")
    gone = {each["metadata"]["uid"] for each in pods}
    wait_for(lambda: {each["metadata"]["uid"] for each in of_job(cluster, "train")} - gone, "one that does it again")
