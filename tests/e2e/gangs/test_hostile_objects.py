"""Objects of tenants that nest deeply or take long to parse do not stop extender, planner or command line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.kube.rbac import GANG_READER, JOBSETS, READER, Role
from gputopo.labels import keys
from tests.api_objects import Object, pod
from tests.e2e.agent.access import define, definition_of, grant
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.members import BATCH, Asked, create, gang, node_of, wait_until_whole
from tests.e2e.gangs.running import reserved
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import Extender, Served, gpu_pod, started
from tests.simulated_node.fleet import Fleet
from tests.simulated_node.node import NodeSpec
from tests.simulated_node.shapes import islands_4_4

pytestmark = pytest.mark.e2e
LEVELS = 3_000
DEEP = msgspec.Raw(b'{"f:a":' * 1_000 + b"{}" + b"}" * 1_000)
CONTAINERS = [{"name": "c", "image": "x"}]
JOBSETS_CREATED, GROUPS = 300, 999  # of 37 kB each
MEBI = 1 << 20


@contextmanager
def created(cluster: Cluster, collection: str, body: Object, version: str) -> Iterator[None]:
    """Create an object with deeply nested managed fields within the context."""
    name = body["metadata"]["name"]
    fields = {"manager": "m", "operation": "Update", "apiVersion": version, "fieldsType": "FieldsV1", "fieldsV1": DEEP}
    body["metadata"]["managedFields"] = [fields]
    cluster.api.create(collection, body)
    try:
        # It is stored as it was sent; what the client of the tests shows of it ends at 100 levels.
        assert str(cluster.api.get(f"{collection}/{name}")).count("f:a") > 90
        yield
    finally:
        cluster.api.delete(f"{collection}/{name}")


def at_work(cluster: Cluster, programs: tuple[Served, ...], name: str) -> None:
    """Check that the extender places a pod, the planner a gang, and that all watches are healthy."""
    cluster.create_pod(gpu_pod(f"single-{name}", 1))
    started(cluster, f"single-{name}")
    create(cluster, *gang(f"gang-{name}", Asked(2, 1)))
    wait_until_whole(cluster, f"gang-{name}", 2)
    for each in programs:
        assert each.text("/healthz") == "ok\n"
        assert each.ready
        assert each.count("gputopo_watch_unreadable") == 0


def test_deeply_nested_objects_stop_nothing(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    planner: StartPlanner,
    tmp_path: Path,
) -> None:
    assert served is None
    fleet.add(*(NodeSpec(name=f"gpu-{at}", shape=islands_4_4()) for at in range(3)))
    agents_of()
    running = (gputopo_scheduler, planner())
    at_work(cluster, running, "before")
    text = json.dumps({keys.TOPOLOGY.key: '{"a":' * LEVELS + "{}" + "}" * LEVELS})
    bare = {"metadata": {"name": "annotated", "annotations": json.loads(text)}}
    cluster.api.create("/api/v1/nodes", bare)
    cluster.create_namespace("tenant")  # of its own: what lists pods in this test cannot read deep ones
    jobs = "/apis/batch/v1/namespaces/tenant/jobs"
    template = {"spec": {"restartPolicy": "Never", "schedulingGates": [{"name": "x/y"}], "containers": CONTAINERS}}
    job: Object = {"metadata": {"name": "deep"}, "spec": {"parallelism": 0, "template": template}}
    deep = pod("deep", 0, nodeName="gpu-0")
    pods = cluster.pods(namespace="tenant")
    with created(cluster, pods, deep, "v1"), created(cluster, jobs, job, "batch/v1"):
        at_work(cluster, running, "watched")
        for each in running:
            each.restart()
            each.wait_until_ready()
        at_work(cluster, running, "listed")
        grant(cluster, "reader", Role("reader", {**READER.verbs, **GANG_READER.verbs}))
        config = str(cluster.kubeconfig(tmp_path / "config", cluster.token("reader")))
        for command in (["nodes"], ["pods"], ["gangs"], ["why", "pod", "single-listed", "-n", cluster.namespace]):
            shown = CliRunner().invoke(main.main, [*command, "--kubeconfig", config])
            assert shown.exit_code == 0, shown.output
    cluster.api.delete("/api/v1/nodes/annotated")


def with_gpu(name: str, container: Object) -> Object:
    """A pod that asks for a GPU and never starts."""
    made = pod(name, 1, schedulingGates=[{"name": "x/y"}])
    made["spec"]["containers"][0] |= container
    return made


def apart_from_thousands() -> list[Object]:
    """A gang whose members refuse thousands of other pods.

    They fit on no node: the planner releases them, and kube-scheduler could bind them where the next gang is planned.
    """
    terms = [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {f"key-{number}": "v"}}}
        for number in range(6_000)
    ]
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return gang("apart", Asked(4, 1), affinity=affinity, nodeSelector={"kubernetes.io/hostname": "elsewhere"})


def selecting_by_thousands() -> list[Object]:
    """A gang whose members name thousands of labels, each member others."""
    found = gang("picky", Asked(8, 1))
    for at, each in enumerate(found):
        expressions = [{"key": f"key-{at}-{number}", "operator": "DoesNotExist"} for number in range(9_000)]
        required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        each["spec"]["affinity"] = affinity
    return found


COSTLY: dict[str, Callable[[], list[Object]]] = {
    "a script of empty lines": lambda: [with_gpu("lines", {"args": ["\n" * 400_000]})],
    "a long variable that is named often": lambda: [
        with_gpu("variable", {"env": [{"name": "A", "value": "x " * 100_000}], "args": ["$A" * 100_000]})
    ],
    "terms of anti-affinity": apart_from_thousands,
    "expressions of node affinity": selecting_by_thousands,
}


@pytest.mark.parametrize("costly", COSTLY.values(), ids=COSTLY.keys())
def test_pods_that_take_long_to_read_delay_no_other_pod(  # noqa: PLR0917  fixtures
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    served: None,
    gputopo_scheduler: Extender,
    planner: StartPlanner,
    costly: Callable[[], list[Object]],
) -> None:
    assert gpu_nodes
    assert served is None
    agents_of()
    running = (gputopo_scheduler, planner())
    at_work(cluster, running, "before")
    cluster.create_namespace("tenant")

    for each in costly():
        cluster.api.create(cluster.pods(namespace="tenant"), each)
    before = time.monotonic()
    time.sleep(0.5)  # the watches have shown it
    at_work(cluster, running, "after")

    assert time.monotonic() - before < 10.0


@pytest.mark.usefixtures("controller_manager", "gputopo_scheduler")
def test_a_job_that_may_run_for_ten_thousand_years_does_not_end_the_planner(
    cluster: Cluster, gpu_nodes: Fleet, agents_of: StartAgents, served: None, planner: StartPlanner
) -> None:
    """Kubernetes' own arithmetic overflows, to 158 years: the Job runs. When its GPUs are free is in no calendar."""
    assert gpu_nodes
    assert served is None
    agents_of()
    running = planner("--pool", "gated", "--settle", "1s", "--patience", "1s")
    template = gpu_pod("worker", 8, restartPolicy="Never")
    del template["metadata"]["name"]
    spec = {"parallelism": 4, "completions": 4, "activeDeadlineSeconds": 373_934_881_480, "template": template}
    cluster.api.create(f"{BATCH}/{cluster.namespace}/jobs", {"metadata": {"name": "long"}, "spec": spec})
    wait_for(lambda: sum(map(bool, map(node_of, cluster.api.items(cluster.pods())))) == 4, "the Job to take all GPUs")

    create(cluster, *gang("big", Asked(2, 8)))

    hold = wait_for(lambda: [each for each in reserved(cluster) if each.get("status", {}).get("estimate")], "a hold")
    assert hold[0]["status"]["estimate"] == "9999-12-31T23:59:59Z"
    assert running.text("/healthz") == "ok\n"


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_jobsets_of_many_groups_neither_take_the_memory_of_the_planner_nor_delay_gangs(
    cluster: Cluster,
    fleet: Fleet,
    agents_of: StartAgents,
    planner: StartPlanner,
    record_property: Callable[[str, object], None],
) -> None:
    """No quota of pods limits their number."""
    define(cluster, definition_of(JOBSETS, "JobSet"))
    fleet.add(*(NodeSpec(name=f"gpu-{at}", shape=islands_4_4()) for at in range(2)))
    agents_of()
    leader = planner()
    create(cluster, *gang("before", Asked(2, 1)))
    wait_until_whole(cluster, "before", 2)
    memory = psutil.Process(leader.server.pid).memory_info
    before, spec = memory().rss, {"replicatedJobs": [{"name": f"{at}", "groupName": f"{at}"} for at in range(GROUPS)]}
    kind = {"apiVersion": JOBSETS.api_version, "kind": "JobSet"}
    made = ({**kind, "metadata": {"name": f"j{at}"}, "spec": spec} for at in range(JOBSETS_CREATED))
    cluster.api.create_all(((JOBSETS.path(namespace=cluster.namespace), each) for each in made), 4)

    began = time.monotonic()
    create(cluster, *gang("after", Asked(2, 1)))
    wait_until_whole(cluster, "after", 2)

    waited, grown = time.monotonic() - began, (memory().rss - before) / MEBI
    assert grown < 48
    record_property(FIGURE, f"{JOBSETS_CREATED}: planner +{grown:.0f} MiB, the next gang after {waited:.1f} s")
