"""A gang waits once, not twice, after the container of an extender crashed: both waits run in parallel."""

from __future__ import annotations

import pytest

from gputopo.timing import ASSUMED_POD_LIFETIME_S, EXTENDER_ENDED_S
from tests.api_objects import Object, pod
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.fixtures import StartScheduler
from tests.e2e.gangs.members import Asked, create, gang, wait_until_whole
from tests.e2e.gangs.running import entries, ledger, running
from tests.e2e.scheduler import running as scheduling
from tests.e2e.scheduler.conftest import StartAgents
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
MIXED = ("--settle", "1s")
TWO_WHOLE_NODES = Asked(2, 8, {"island": "ignore"})
EXTENDER_POD = "extender-0"
# From the registration of the new process to the commit, if one wait followed the other. In parallel: the longer one.
ONE_AFTER_THE_OTHER_S = ASSUMED_POD_LIFETIME_S + EXTENDER_ENDED_S


def registered(cluster: Cluster) -> Object:
    """Return the registered extender processes by identity."""
    return dict(ledger(cluster, "status").get("extenders") or {})


def committed(cluster: Cluster) -> bool:
    """Return whether the ledger lists a committed reservation."""
    return any(each["phase"] == "Committed" for each in entries(cluster))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("gang_first", [True, False], ids=["gang-before-crash", "gang-after-restart"])
def test_a_gang_waits_once_after_the_container_of_an_extender_crashed(
    cluster: Cluster,
    gpu_nodes: Fleet,
    agents_of: StartAgents,
    scheduler: StartScheduler,
    timed: Timed,
    *,
    gang_first: bool,
) -> None:
    """The planner finds the extender's pod running throughout, as after the restart of a container."""
    agents_of()
    scheduling.prepare(cluster)
    create(cluster, pod(EXTENDER_POD, 0, nodeName=gpu_nodes.names[0]))
    of_pod = {"POD_NAMESPACE": cluster.namespace, "POD_NAME": EXTENDER_POD}
    with scheduling.running(cluster, environ=of_pod) as extender, running(cluster, *MIXED):
        extender.wait_until_ready()
        scheduler(extender.configuration())
        create(cluster, *gang("first", TWO_WHOLE_NODES))
        wait_until_whole(cluster, "first", 2, 120)
        wait_for(lambda: not entries(cluster), "the end of the first plan")
        (previous,) = registered(cluster)

        second = gang("second", TWO_WHOLE_NODES)
        if gang_first:
            extender.server.stop()
            create(cluster, *second)
            wait_for(lambda: entries(cluster), "the proposal")
        extender.restart()
        wait_for(lambda: len(registered(cluster)) == 2, "the registration of the new process")
        if not gang_first:
            create(cluster, *second)
        with timed("from the registration of a restarted extender to the commit of a gang"):
            wait_for(lambda: committed(cluster), "the commit of the second gang", ONE_AFTER_THE_OTHER_S)

        wait_until_whole(cluster, "second", 2)
        assert previous not in registered(cluster)
