"""Short gangs on capacity that is held for another gang, beside the real API server and kube-scheduler."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.policy.models import API_VERSION, KIND
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.crashing import Run, points, run_on, run_until
from tests.e2e.gangs.holds import held, nodes
from tests.e2e.gangs.invariant import violations, watched
from tests.e2e.gangs.members import Asked, create, gang, node_of, of, wait_until_whole
from tests.e2e.gangs.running import GATED, entries, expire_lease, reserved, running
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import gpu_pod, started
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
BIG = Asked(2, 8)
SHORT = Asked(1, 8, {"gang-timeout": "10s"})
MIXED = ("--settle", "1s")
AT_LEAST = 18  # writes from the start of a backfill to the start of the holder


def options(folder: Path, *pool: str, mode: str = "deadline") -> tuple[str, ...]:
    """Return the options of a planner that allows backfill, and evicts no other pods."""
    path = folder / "policy.yaml"
    written = {"apiVersion": API_VERSION, "kind": KIND, "backfill": {"mode": mode}}
    path.write_text(yaml.safe_dump({**written, "preemption": {"mode": "dry-run"}}))
    return (*pool, "--patience", "1s", "--policy", str(path))


def use_node(cluster: Cluster, node: str, deadline_s: int, name: str = "user") -> None:
    """Run a pod with all GPUs of a node, until its deadline."""
    selector = {"kubernetes.io/hostname": node}
    cluster.create_pod(gpu_pod(name, 8, nodeSelector=selector, activeDeadlineSeconds=deadline_s))
    started(cluster, name)


def backfill(cluster: Cluster, deadline_s: int) -> Object:
    """Start a short gang on the capacity that is held for the other gang."""
    wait_for(lambda: (held(cluster, "big") or {}).get("status", {}).get("estimate"), "a hold with an estimate", 60)
    create(cluster, *gang("short", SHORT, activeDeadlineSeconds=deadline_s, terminationGracePeriodSeconds=1))
    (found,) = wait_until_whole(cluster, "short", 1, 60)
    return found


def ended_at(pod: Object) -> float:
    """Return when the container of a pod ended."""
    at = parse_timestamp(pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"])
    assert at is not None
    return at


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_short_gang_uses_held_capacity_and_is_gone_when_the_holder_can_start(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    use_node(cluster, "gpu-1", 120)
    planner(*options(tmp_path, *MIXED))
    create(cluster, *gang("big", BIG))
    assert node_of(backfill(cluster, 10)) == "gpu-0"
    (places,) = (each["spec"] for each in reserved(cluster) if each["spec"]["gang"] == "short")
    assert places["backfill"]["gang"] == f"{cluster.namespace}/big"

    wait_until_whole(cluster, "big", 2, 180)

    (short,), user = of(cluster, "short"), cluster.api.get(cluster.pods("user"))
    assert (short["status"]["reason"], user["status"]["reason"]) == ("DeadlineExceeded", "DeadlineExceeded")
    assert ended_at(short) < ended_at(user)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_short_gang_yields_at_once_if_the_capacity_comes_free_earlier_also_to_a_new_planner(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    use_node(cluster, "gpu-1", 3600)
    first = planner(*options(tmp_path, *GATED))
    create(cluster, *gang("big", BIG))
    assert node_of(backfill(cluster, 900)) == "gpu-0"
    first.kill()
    fleet.finish(cluster.api.get(cluster.pods("user")))
    planner(*options(tmp_path, *GATED), name="second")

    big = wait_until_whole(cluster, "big", 2, 120)

    assert {node_of(each) for each in big} == {"gpu-0", "gpu-1"}
    assert of(cluster, "short") == []


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_gang_that_only_says_how_long_it_runs_is_evicted_before_the_holder_can_start(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, tmp_path: Path
) -> None:
    """With ``estimate``. Nothing enforces what pods say: the short gang runs on, and so does not end by itself."""
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    ends_at = time.time() + 150
    said = {"estimated-completion": format_timestamp(ends_at)}
    cluster.create_pod(gpu_pod("user", 8, said, nodeSelector={"kubernetes.io/hostname": "gpu-1"}))
    started(cluster, "user")
    planner(*options(tmp_path, *GATED, mode="estimate"))
    create(cluster, *gang("big", BIG))
    wait_for(lambda: held(cluster, "big"), "a hold", 60)
    spec = {"terminationGracePeriodSeconds": 1}
    create(cluster, *gang("long", Asked(1, 8, {**SHORT.wishes, "expected-duration": "10m"}), **spec))
    create(cluster, *gang("mute", SHORT, **spec))
    create(cluster, *gang("short", Asked(1, 8, {**SHORT.wishes, "expected-duration": "20s"}), **spec))
    (short,) = wait_until_whole(cluster, "short", 1, 60)

    wait_for(lambda: of(cluster, "short") == [], "the short gang to be evicted", 180)
    evicted_at = time.time()
    user = cluster.pod("user")
    fleet.finish(user)
    big = wait_until_whole(cluster, "big", 2, 60)

    assert node_of(short) == "gpu-0"
    assert evicted_at < ends_at
    assert {node_of(each) for each in big} == {"gpu-0", "gpu-1"}
    assert [node_of(each) for name in ("long", "mute") for each in of(cluster, name)] == [None, None]


def backfill_with_killed_planner(cluster: Cluster, fleet: Fleet, options_: tuple[str, ...], number: int) -> Run:
    """Backfill, and free the rest of the capacity early; kill the planner after this write, and let the next one go on.

    The pod in use ends once the short gang runs: so the writes are those of its start, of its eviction, and of the
    start of the holder.
    """
    big, short, user = f"big-{number}", f"short-{number}", f"user-{number}"
    use_node(cluster, "gpu-1", 3600, user)
    create(cluster, *gang(big, BIG))
    with running(cluster, *options_):
        wait_for(lambda: (held(cluster, big) or {}).get("status", {}).get("estimate"), "a hold with an estimate", 60)
    expire_lease(cluster)
    create(cluster, *gang(short, SHORT, activeDeadlineSeconds=900, terminationGracePeriodSeconds=1))
    ended: list[str] = []

    def done() -> bool:
        pods = [*of(cluster, short)]
        if not ended and pods and all(each["status"].get("phase") == "Running" for each in pods):
            fleet.finish(cluster.api.get(cluster.pods(user)))
            ended.append(user)
        is_placed = sum(node_of(each) is not None for each in of(cluster, big)) == BIG.size
        return is_placed and not of(cluster, short) and not entries(cluster)

    run = run_until(cluster, options_, number, done, answered=number % 2 == 0)
    run_on(cluster, options_, done, run)
    assert ended == [user], run.writes
    for each in of(cluster, big):
        cluster.api.delete(cluster.pods(each["metadata"]["name"]))
    wait_for(lambda: not of(cluster, big), "the gang to go", 60)
    return run


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_planner_killed_after_any_write_of_a_backfill_starts_the_holder_and_commits_no_gpu_twice(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, tmp_path: Path
) -> None:
    nodes(fleet, gpu_0={}, gpu_1={})
    agents_of()
    with watched(cluster) as past:
        for number in points("1"):
            run = backfill_with_killed_planner(cluster, fleet, options(tmp_path, *GATED), number)
            if not run.killed:
                break
        assert len(run.writes) >= AT_LEAST, run.writes
        assert violations(past.events(), dict.fromkeys(fleet.names, 8)) == []
