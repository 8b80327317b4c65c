"""Capacity holds in a pool with a fast stream of ungated pods."""

from __future__ import annotations

from itertools import groupby

import msgspec
import pytest

from gputopo.crd.reservations import LedgerSpec
from gputopo.labels.reasons import Reason
from tests.api_objects import Object
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.conftest import Timed
from tests.e2e.gangs.conftest import StartPlanner
from tests.e2e.gangs.history import Event
from tests.e2e.gangs.holds import LARGE, held, nodes
from tests.e2e.gangs.invariant import LEDGERS, RESERVATIONS, violations, watched
from tests.e2e.gangs.members import Asked, create, gang, gated, node_of, of, unschedulable, wait_until_whole
from tests.e2e.gangs.ungated_pods import Kind, UngatedPodLoad, ungated_pods
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
BIG, SMALL = Asked(2, 8), Asked(2, 4)
PLACES = 24  # GPUs of the three nodes on which pods without a gate and the big gang contend
LOAD = Kind(PLACES + 4, ((1, {}),), LARGE)  # some always wait


def bound(cluster: Cluster) -> list[Object]:
    """Return the bound pods of the ungated pods."""
    return [each for each in ungated_pods(cluster) if node_of(each)]


def is_refused(found: Object) -> bool:
    """Return whether a pod is rejected because of reserved GPUs, and kube-scheduler waits for an event."""
    return unschedulable(found) and Reason.RESERVED.value in condition(found)["message"]


def phases(past: list[Event], gang: str) -> list[set[str]]:
    """Return the phases of a gang's reservations in the ledger, in order."""
    own = {each.object["metadata"]["uid"] for each in past if each.kind == RESERVATIONS and _names(each.object, gang)}
    ledgers = [msgspec.convert(each.object["spec"], LedgerSpec) for each in past if each.kind == LEDGERS]
    said = ({each.phase.value for each in ledger.entries if each.uid in own} for ledger in ledgers)
    return [each for each, _ in groupby(said)]


def _names(reservation: Object, gang: str) -> bool:
    return bool(reservation["spec"]["gang"] == gang)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_a_hold_lasts_in_a_crowd_until_the_gang_is_committed_and_blocks_no_other_pods(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, timed: Timed
) -> None:
    nodes(fleet, gpu_0=LARGE, gpu_1=LARGE, gpu_2=LARGE, gpu_3={})
    agents_of()
    planner("--settle", "1s", "--patience", "1s")
    with watched(cluster) as past:
        with UngatedPodLoad(cluster, 8, LOAD) as others:
            wait_for(lambda: len(bound(cluster)) == PLACES, "the ungated pods to fill its nodes")
            create(cluster, *gang("big", BIG, nodeSelector=LARGE))
            hold = wait_for(lambda: held(cluster, "big"), "a capacity hold")
            held_nodes = frozenset(each["node"] for each in hold["spec"]["held"])
            others.spared = held_nodes
            create(cluster, *gang("small", SMALL))
            with timed("a small gang, once the extender acknowledges"):
                small = wait_until_whole(cluster, "small", SMALL.size, 120)
            assert {node_of(each) for each in small} == {"gpu-3"}
            assert [gated(each) for each in of(cluster, "big")] == [True, True]
            late = others.count

            others.spared = frozenset({min(held_nodes)})
            with timed("a pod that does not fit is unschedulable, once a GPU of it is free"):
                wait_for(lambda: any(map(is_refused, ungated_pods(cluster))), "a pod to be refused for what is held")
            others.spared = frozenset()
            with timed("the big gang, once its held GPUs are free"):
                big = wait_until_whole(cluster, "big", BIG.size, 120)
        assert {node_of(each) for each in big} == held_nodes
        assert others.count - late >= 16  # pods of one GPU have gone from there, and others came in their place
        events = past.events()
        assert violations(events, dict.fromkeys(fleet.names, 8)) == []
        said = [each for each in phases(events, "big") if each]
        assert all("Held" in each for each in said[:-1]), said
        assert (said[0], said[-2], said[-1]) == ({"Held"}, {"Held", "Proposed"}, {"Committed"})
