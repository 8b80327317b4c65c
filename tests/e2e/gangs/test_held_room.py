"""Room that is held in a pool where pods without a gate land too, at full speed, and take whatever they may."""

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
from tests.e2e.gangs.crowd import Crowd, Kind, crowd
from tests.e2e.gangs.history import Event
from tests.e2e.gangs.invariant import LEDGERS, RESERVATIONS, violations
from tests.e2e.gangs.members import Asked, create, gang, gated, node_of, of, unschedulable, wait_until_whole
from tests.e2e.gangs.test_crashes import watched
from tests.e2e.gangs.test_fairness import LARGE, held, nodes
from tests.e2e.scheduler.conftest import StartAgents
from tests.e2e.scheduler.running import condition
from tests.simulated_node.fleet import Fleet

pytestmark = pytest.mark.e2e
BIG, SMALL = Asked(2, 8), Asked(2, 4)
PLACES = 24  # GPUs of the three nodes on which pods without a gate and the big gang contend
CROWD = Kind(PLACES + 4, ((1, {}),), LARGE)  # some always wait


def bound(cluster: Cluster) -> list[Object]:
    """Of the crowd those that have nodes."""
    return [each for each in crowd(cluster) if node_of(each)]


def is_refused(found: Object) -> bool:
    """Whether it waits because of what is kept for others, and kube-scheduler waits for an event."""
    return unschedulable(found) and Reason.RESERVED.value in condition(found)["message"]


def phases(past: list[Event], gang: str) -> list[set[str]]:
    """What the ledger said of a gang's reservations, one after the other."""
    own = {each.object["metadata"]["uid"] for each in past if each.kind == RESERVATIONS and _names(each.object, gang)}
    ledgers = [msgspec.convert(each.object["spec"], LedgerSpec) for each in past if each.kind == LEDGERS]
    said = ({each.phase.value for each in ledger.entries if each.uid in own} for ledger in ledgers)
    return [each for each, _ in groupby(said)]


def _names(reservation: Object, gang: str) -> bool:
    return bool(reservation["spec"]["gang"] == gang)


@pytest.mark.usefixtures("served", "gputopo_scheduler")
def test_room_is_held_in_a_crowd_until_the_gang_is_committed_and_others_are_not_blocked(
    cluster: Cluster, fleet: Fleet, agents_of: StartAgents, planner: StartPlanner, timed: Timed
) -> None:
    nodes(fleet, gpu_0=LARGE, gpu_1=LARGE, gpu_2=LARGE, gpu_3={})
    agents_of()
    planner("--settle", "1s", "--patience", "1s")
    with watched(cluster) as past:
        with Crowd(cluster, 8, CROWD) as others:
            wait_for(lambda: len(bound(cluster)) == PLACES, "the crowd to fill its nodes")
            create(cluster, *gang("big", BIG, nodeSelector=LARGE))
            hold = wait_for(lambda: held(cluster, "big"), "room to be held")
            room = frozenset(each["node"] for each in hold["spec"]["held"])
            others.spared = room
            create(cluster, *gang("small", SMALL))
            with timed("a small gang, once the extender vouches"):
                small = wait_until_whole(cluster, "small", SMALL.size, 120)
            assert {node_of(each) for each in small} == {"gpu-3"}
            assert [gated(each) for each in of(cluster, "big")] == [True, True]
            late = others.count

            others.spared = frozenset({min(room)})
            with timed("one that finds no room is called unschedulable, once a GPU of it is free"):
                wait_for(lambda: any(map(is_refused, crowd(cluster))), "a pod to be refused for what is held")
            others.spared = frozenset()
            with timed("the big one, once its room is free"):
                big = wait_until_whole(cluster, "big", BIG.size, 120)
        assert {node_of(each) for each in big} == room
        assert others.count - late >= 16  # pods of one GPU have gone from there, and others came in their place
        events = past.events()
        assert violations(events, dict.fromkeys(fleet.names, 8)) == []
        said = [each for each in phases(events, "big") if each]
        assert all("Held" in each for each in said[:-1]), said
        assert (said[0], said[-2], said[-1]) == ({"Held"}, {"Held", "Proposed"}, {"Committed"})
