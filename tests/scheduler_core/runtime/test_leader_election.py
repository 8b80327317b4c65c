"""Leader election: which instance leads, and that two never lead at the same time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.leases import LeaseSpec
from gputopo.kube.rbac import ELECTION
from scheduler_core.runtime.leader_election import (
    LeaderElector,
    LeaseObservation,
    LeaseTiming,
    held_lease_spec,
    may_acquire,
    observe_lease,
    parse_lease_name,
)
from tests.api_server import api_server
from tests.scheduler_core.runtime.leases import HERE, Leases

TIMING = LeaseTiming()
AT = datetime(2026, 11, 21, 12, 0, 0, 5, UTC)
STAMP = "2026-11-21T12:00:00.000005Z"
OTHERS = LeaseSpec("b", 20, "t0", "t1", 3)


@pytest.mark.parametrize(
    ("spec", "after", "may"),
    [
        pytest.param(LeaseSpec("a", 15), 0, True, id="mine"),
        pytest.param(LeaseSpec("", 1), 4.9, False, id="released just now"),
        pytest.param(LeaseSpec("", 1), 5, True, id="released, and what came of its last answers has shown"),
        pytest.param(LeaseSpec(), 5, True, id="never held"),
        pytest.param(OTHERS, 19.9, False, id="another's, within the duration that it names"),
        pytest.param(OTHERS, 20, True, id="another's, not renewed for the duration that it names"),
        pytest.param(LeaseSpec("b"), 14.9, False, id="another's that names no duration: ours, not yet"),
        pytest.param(LeaseSpec("b"), 15, True, id="another's that names no duration: ours"),
        pytest.param(None, 14.9, False, id="deleted, and its holder may not have noticed"),
        pytest.param(None, 15, True, id="not there for long enough"),
    ],
)
def test_a_lease_may_be_taken(spec: LeaseSpec | None, after: float, may: bool) -> None:
    assert may_acquire(LeaseObservation(spec, 100.0), "a", 100.0 + after, TIMING) == may


def test_only_a_change_of_the_lease_counts_as_a_renewal() -> None:
    first = observe_lease(None, OTHERS, 1.0)

    assert first == LeaseObservation(OTHERS, 1.0)
    assert observe_lease(first, OTHERS, 9.0) == first
    assert observe_lease(first, LeaseSpec("b", 20, "t0", "t2", 3), 9.0) == LeaseObservation(
        LeaseSpec("b", 20, "t0", "t2", 3), 9.0
    )
    assert observe_lease(first, None, 9.0) == LeaseObservation(None, 9.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(None, LeaseSpec("a", 15, STAMP, STAMP, 0), id="the first of all"),
        pytest.param(OTHERS, LeaseSpec("a", 15, STAMP, STAMP, 4), id="another's"),
        pytest.param(LeaseSpec("", 1, "t0", "t1", 4), LeaseSpec("a", 15, STAMP, STAMP, 5), id="released"),
        pytest.param(LeaseSpec("a", 15, "t0", "t1", 4), LeaseSpec("a", 15, "t0", STAMP, 4), id="a renewal"),
        pytest.param(LeaseSpec("a"), LeaseSpec("a", 15, None, STAMP, 0), id="a renewal of one that says little"),
    ],
)
def test_the_lease_as_its_holder_writes_it(before: LeaseSpec | None, after: LeaseSpec) -> None:
    assert held_lease_spec(before, "a", AT, TIMING) == after


def test_the_name_of_a_lease_is_read_or_refused() -> None:
    assert parse_lease_name("gputopo/gputopo-extender") == HERE
    for wrong in ("gputopo", "/x", "x/", "a/b/c", "", "Bad/name", "good/Bad Name", "a.b/c", "a/" + "b" * 300):
        with pytest.raises(ValueError, match="expected NAMESPACE/NAME of a Lease"):
            parse_lease_name(wrong)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def election(
    folder: Path, *names: str, timing: LeaseTiming = TIMING
) -> Iterator[tuple[Leases, Clock, list[LeaderElector]]]:
    """Candidates on one Lease, and their one clock."""
    leases, clock = Leases(), Clock()
    with api_server(leases.answer) as server:
        kube = from_kubeconfig(ELECTION, server.kubeconfig(folder / "config"))
        yield leases, clock, [LeaderElector(kube, HERE, name, timing, clock) for name in names]
        kube.close()


def elect(leases: Leases, clock: Clock, leader: LeaderElector) -> None:
    """The candidate holds a Lease that was released."""
    leases.put({"holderIdentity": ""})
    leader.run_once()
    clock.now += 5
    leader.run_once()
    assert leader.is_leader


def test_the_first_takes_it_after_a_duration_without_one_and_the_others_wait(tmp_path: Path) -> None:
    with election(tmp_path, "a", "b") as (leases, clock, (a, b)):
        a.run_once()
        clock.now += 1
        b.run_once()
        assert (a.is_leader, b.is_leader, leases.stored) == (False, False, None)

        clock.now += 14
        a.run_once()
        b.run_once()

        assert (a.is_leader, b.is_leader, a.holder, b.holder) == (True, False, "a", "a")
        assert leases.stored is not None
        assert leases.stored["spec"]["holderIdentity"] == "a"
        assert leases.stored["spec"]["leaseTransitions"] == 0


def test_a_holder_that_cannot_renew_stops_before_the_next_may_start(tmp_path: Path) -> None:
    with election(tmp_path, "a", "b") as (leases, clock, (a, b)):
        elect(leases, clock, a)
        b.run_once()
        assert (a.is_leader, b.is_leader) == (True, False)
        leases.down = True
        clock.now += 9.9
        a.run_once()
        assert a.is_leader
        assert a.error is not None
        assert "etcd is away" in a.error
        clock.now += 0.1
        assert not a.is_leader

        leases.down = False
        clock.now += 4.9
        b.run_once()
        assert not b.is_leader
        clock.now += 0.1
        b.run_once()
        a.run_once()
        assert (a.is_leader, b.is_leader, a.holder, a.error) == (False, True, "b", None)


def test_an_error_is_logged_once_until_it_changes_or_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "scheduler_core.runtime.leader_election")
    with election(tmp_path, "a") as (leases, clock, (a,)):
        elect(leases, clock, a)
        caplog.clear()
        for leases.down in (True, True, True, False, False, True):
            a.run_once()

    away = "GET /apis/coordination.k8s.io/v1/namespaces/gputopo/leases/gputopo-extender: 503: etcd is away"
    assert [(each.levelname, vars(each)["fields"]) for each in caplog.records] == [
        ("WARNING", {"error": away}),
        ("INFO", {"answers": True}),
        ("WARNING", {"error": away}),
    ]


def test_a_holder_that_was_away_and_not_replaced_takes_it_again(tmp_path: Path) -> None:
    with election(tmp_path, "a") as (leases, clock, (a,)):
        elect(leases, clock, a)
        clock.now += 3600
        assert not a.is_leader
        a.run_once()
        assert a.is_leader


def test_a_deleted_lease_is_written_again_by_its_holder_only(tmp_path: Path) -> None:
    with election(tmp_path, "a", "b") as (leases, clock, (a, b)):
        elect(leases, clock, a)
        b.run_once()
        leases.stored = None
        clock.now += 2
        b.run_once()
        a.run_once()

        assert (a.is_leader, b.is_leader) == (True, False)
        assert leases.stored is not None


def test_a_candidate_that_cannot_lead_neither_acquires_nor_renews(tmp_path: Path) -> None:
    leases, clock, fit = Leases(), Clock(), [False]
    with api_server(leases.answer) as server:
        kube = from_kubeconfig(ELECTION, server.kubeconfig(tmp_path / "config"))
        a = LeaderElector(kube, HERE, "a", TIMING, clock, lambda: fit[0])
        leases.put({"holderIdentity": ""})
        a.run_once()
        clock.now += 5
        a.run_once()
        assert (a.is_leader, leases.version, a.renewed_at) == (False, 1, float("-inf"))
        fit[0] = True
        a.run_once()
        assert (a.is_leader, leases.version, a.renewed_at) == (True, 2, clock.now)
        fit[0] = False
        clock.now += 9.9
        a.run_once()
        assert (a.is_leader, leases.version) == (True, 2)
        clock.now += 0.1
        assert not a.is_leader
        kube.close()


def test_a_candidate_may_end_before_it_began(tmp_path: Path) -> None:
    with election(tmp_path, "a") as (leases, _, (a,)):
        a.stop()

        assert (a.is_leader, leases.version) == (False, 0)


def test_of_two_that_write_at_once_one_holds(tmp_path: Path) -> None:
    with election(tmp_path, "a", "b") as (leases, clock, (a, b)):
        leases.put({"holderIdentity": "gone", "leaseDurationSeconds": 15})
        a.run_once()
        b.run_once()
        clock.now += 15
        leases.before_write = [b.run_once]
        a.run_once()

        assert (a.is_leader, b.is_leader, a.error) == (False, True, None)


def test_the_holder_keeps_the_lease_after_a_conflicting_write(tmp_path: Path) -> None:
    with election(tmp_path, "a") as (leases, clock, (a,)):
        elect(leases, clock, a)
        assert leases.stored is not None
        clock.now += 2
        spec = leases.stored["spec"]
        leases.before_write = [lambda: leases.put(spec)]
        a.run_once()
        assert a.is_leader
        clock.now += 2
        a.run_once()
        clock.now += 9
        assert a.is_leader


def test_a_stopped_leader_releases_the_lease_for_the_next_candidate(tmp_path: Path) -> None:
    timing = TIMING._replace(retry_s=0.01)
    with election(tmp_path, "a", "b", timing=timing) as (leases, clock, (a, b)):
        elect(leases, clock, a)
        a.start()
        b.run_once()
        assert not b.is_leader
        a.stop()
        assert not a.is_leader
        assert leases.stored is not None
        assert leases.stored["spec"]["holderIdentity"] == ""
        b.run_once()
        clock.now += 4.9
        b.run_once()
        assert not b.is_leader
        clock.now += 0.1
        b.run_once()
        assert b.is_leader
        assert leases.stored["spec"]["leaseTransitions"] == 2


def test_a_stopped_candidate_does_not_release_the_lease_of_another(tmp_path: Path) -> None:
    with election(tmp_path, "a") as (leases, clock, (a,)):
        elect(leases, clock, a)
        leases.put({"holderIdentity": "b", "leaseDurationSeconds": 15})
        a._ended.set()  # its thread ends before another look
        a.start()
        a.stop()

        assert leases.stored is not None
        assert leases.stored["spec"] == {"holderIdentity": "b", "leaseDurationSeconds": 15}


def test_a_candidate_that_never_led_writes_nothing_at_its_end(tmp_path: Path) -> None:
    with election(tmp_path, "a") as (leases, _, (a,)):
        leases.put({"holderIdentity": "b", "leaseDurationSeconds": 15})
        a.start()
        a.stop()

        assert (leases.version, a.is_leader, a.holder) == (1, False, "b")


@settings(max_examples=200, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.floats(0, 12),
            st.booleans(),
        ),
        min_size=1,
        max_size=40,
    ),
    skews=st.tuples(*[st.floats(-1e6, 1e6)] * 3),
    paces=st.tuples(*[st.floats(0.85, 1.15)] * 3),
)
def test_whatever_the_clocks_and_the_network_two_never_answer_at_once(
    moves: list[tuple[str, float, bool]], skews: tuple[float, ...], paces: tuple[float, ...]
) -> None:
    """Moves: who looks next, after how long, and whether its write arrives while its answer is lost.

    The pure rules with a clock each, of its own origin and pace (15 % off: 10 s of the slowest are 11.8 s, 15 s of the
    fastest are 13.0 s).
    """
    clock_of = {
        name: (lambda true, skew=skew, pace=pace: skew + pace * true)
        for name, skew, pace in zip("abc", skews, paces, strict=True)
    }
    known: dict[str, LeaseObservation | None] = dict.fromkeys("abc")
    until = dict.fromkeys("abc", float("-inf"))
    stored: LeaseSpec | None = None
    true = 0.0
    for number, (name, wait, lost) in enumerate(moves):
        true += wait
        now = clock_of[name](true)
        holds = now < until[name]
        found = known[name] = observe_lease(known[name], stored, now)
        if may_acquire(found, name, now, TIMING) or (holds and stored is None):
            stored = held_lease_spec(stored, name, datetime.fromtimestamp(number, UTC), TIMING)
            if not lost:
                known[name] = observe_lease(found, stored, now)
                until[name] = now + TIMING.deadline_s
        elif found.spec is not None:
            until[name] = float("-inf")
        assert sum(clock_of[each](true) < until[each] for each in "abc") <= 1
