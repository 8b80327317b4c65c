"""The estimate of a hold by deadlines, and the gangs that may use its capacity until then."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.reservations import HeldCapacity
from gputopo.timestamps import format_timestamp, parse_timestamp
from scheduler_core.cache.node_record import hold_uid
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.cache.placeholder_pods import unknown_pod
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.packing.backfill import RELEASE_S, START_S, backfill_of, hold_start
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy
from scheduler_core.policy.policy import Policy
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, record
from tests.scheduler_core.planner.packing.member_groups import GANG, member

H100 = MACHINES["hgx_h100"]()
HOLDER = GangName("team", "big")
POLICY = BackfillPolicy(BackfillMode.DEADLINE)
TIMEOUT_S = 30.0

ends = st.none() | st.integers(1, 6).map(float)
users = st.lists(st.tuples(st.integers(1, 4), ends), max_size=4).filter(lambda all_: sum(n for n, _ in all_) <= 8)


@given(st.lists(st.tuples(users, st.integers(1, 8)), min_size=1, max_size=3))
def test_the_estimate_is_the_first_time_at_which_all_held_devices_are_free_by_deadlines(
    nodes: list[tuple[list[tuple[int, float | None]], int]],
) -> None:
    records, deadlines, held = [], dict[str, float | None](), []
    for at, (there, number) in enumerate(nodes):
        pods = [occupant(f"p{at}-{place}", gpus) for place, (gpus, _) in enumerate(there)]
        deadlines |= {pod.uid: end for pod, (_, end) in zip(pods, there, strict=True)}
        free = 8 - sum(gpus for gpus, _ in there)
        hold = [unknown_pod(hold_uid(f"n{at}"), "", "", [("nvidia.com/gpu", min(free, number))])] if free else []
        records.append(record(f"n{at}", H100, pods=[*pods, *hold]))
        held.append(HeldCapacity(f"n{at}", number))

    found = hold_start(held, snapshot_of(records, NOW, Policy()), lambda pod: deadlines[pod.uid])

    def is_free(at: float) -> bool:
        left = [sum(gpus for gpus, end in there if end is None or end > at) for there, _ in nodes]
        return all(8 - gone >= number for gone, (_, number) in zip(left, nodes, strict=True))

    assert found == next((at for at in (-inf, *map(float, range(1, 7))) if is_free(at)), None)


def test_pods_that_yield_count_as_gone() -> None:
    table = snapshot_of([record("n", H100, pods=[occupant("a", 4), occupant("b", 4)])], NOW, Policy())
    deadlines = {"uid-a": 5.0, "uid-b": 9.0}
    held = [HeldCapacity("n", 8)]

    assert hold_start(held, table, lambda pod: deadlines[pod.uid]) == 9.0
    assert hold_start(held, table, lambda pod: deadlines[pod.uid], {"uid-b"}) == 5.0
    assert hold_start([HeldCapacity("gone", 8)], table, lambda _: 1.0) is None


@given(
    st.lists(st.none() | st.tuples(st.integers(1, 1000), st.integers(0, 90)), min_size=1, max_size=3),
    st.integers(0, 1500),
)
def test_a_gang_that_starts_in_time_has_ended_by_the_estimate(
    bounds: list[tuple[int, int] | None], ahead_s: int
) -> None:
    members = [
        member(f"w{at}")._replace(bounded_s=None if each is None else (float(each[0]), float(each[1])))
        for at, each in enumerate(bounds)
    ]
    gang = Gang(GANG, GangPhase.QUEUED, "", ready=tuple(members), size=len(members))

    found = backfill_of(gang, HOLDER, NOW + ahead_s, TIMEOUT_S, POLICY, NOW)

    known = [each for each in bounds if each is not None]
    longest = max((run + grace for run, grace in known), default=0)
    in_time = START_S + TIMEOUT_S + longest + RELEASE_S <= ahead_s
    allowed = len(known) == len(bounds) and max((grace for _, grace in known), default=0) <= POLICY.max_grace_s
    assert (found is not None) == (allowed and in_time)
    if found is not None:
        start_by = parse_timestamp(found.start_by)
        assert start_by is not None
        assert start_by + TIMEOUT_S + longest + RELEASE_S <= NOW + ahead_s
        assert found.until == format_timestamp(NOW + ahead_s)


@pytest.mark.parametrize("estimate", [None, -inf])
def test_a_hold_without_an_estimate_is_not_used(estimate: float | None) -> None:
    gang = Gang(GANG, GangPhase.QUEUED, "", ready=(member("w")._replace(bounded_s=(1.0, 0.0)),), size=1)
    assert backfill_of(gang, HOLDER, estimate, TIMEOUT_S, POLICY, NOW) is None
