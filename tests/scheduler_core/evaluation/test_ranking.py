"""Rankings kept between requests give the same answers as a new evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.reservations import EntryPhase
from gputopo.model import NodeTopology
from gputopo.timing import ASSUMED_POD_LIFETIME_S
from scheduler_core.allocation.gpu_sets import ExactSets
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.cache.events import PodUpdate, ReservationUpdate
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of, with_records, without_nodes
from scheduler_core.evaluation import evaluate as evaluate_module
from scheduler_core.evaluation.evaluate import Evaluator, evaluate, evaluator_for
from scheduler_core.evaluation.ranking import Rankings
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.extender.extender import DecisionRecord
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, profile, record, request
from tests.scheduler_core.fake_scheduler import FakeScheduler, pod_update, unbound_pod
from tests.scheduler_core.planner.packing.plans import COMMITTED, HELD, PROPOSED, plan

POLICY = Policy(shortlist=3)
OTHER_POLICY = Policy(shortlist=4)  # other evaluators, with the same results
KINDS = ("a100_bridged", "a100_bridged", "a6000_pair_and_one", "rtx4090", "dgx1", "cloud_vm")
WISHES: tuple[dict[str, str], ...] = (
    {},
    {},
    {"island": "required"},
    {"numa": "required"},
    {"min_bandwidth": "100"},
    {"island": "ignore"},
)
PAIRS, H100 = MACHINES["a100_bridged"](), MACHINES["hgx_h100"]()


class Life:
    """A cluster with random events, and the answers between them."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.stage = FakeScheduler.synced_with_reservations(
            {f"n{at}": self._machine() for at in range(6)}, policy=POLICY
        )
        self.serial = 0
        self.plans: dict[str, tuple[ReservationUpdate, EntryPhase]] = {}

    def step(self) -> None:
        self.random.choice(
            (
                *(self.ask, self.ask, self.ask, self.bind, self.bind, self.end, self.speak, self.speak, self.node),
                *(self.wait, self.plan, self.plan, self.enter),
            )
        )()

    def ask(self) -> None:
        self.serial += 1
        names = self.random.sample([*self.stage.machines, "ghost"], self.random.randint(1, 7))
        wishes = self.random.choice(WISHES)
        self.stage.filter(unbound_pod(f"p{self.serial}", self.random.choice((1, 1, 2, 2, 3, 4)), **wishes), *names)

    def plan(self) -> None:
        """A planner proposes, commits or removes a reservation, or holds capacity."""
        if self.plans and self.random.random() < 0.3:
            del self.plans[self.random.choice(list(self.plans))]
        else:
            self.serial += 1
            name, members = f"g{self.serial}", [f"g{self.serial}-{at}" for at in range(self.random.randint(1, 3))]
            seats = {member: (self._name(), self.random.choice((1, 2, 4))) for member in members}
            made = plan(name, seats, held={self._name(): self.random.randint(1, 8)})
            self.plans[name] = made, self.random.choice((HELD, PROPOSED, COMMITTED))
            self.stage.watch_pods(
                *(pod_update(member, gpus) for member, (_, gpus) in seats.items() if self.random.random() < 0.8)
            )
        self.stage.write_ledger(*self.plans.values(), generation=self.serial)

    def enter(self) -> None:
        """Call Filter for a member: with its own node, or with any."""
        if self.plans:
            made, _ = self.random.choice(list(self.plans.values()))
            seat = self.random.choice(made.spec.seats)
            names = [seat.node or ""] if self.random.random() < 0.7 else list(self.stage.machines)
            self.stage.filter(unbound_pod(seat.name, seat.gpus[0][1], **self.random.choice(WISHES)), *names)

    def bind(self) -> None:
        """Bind a pod to its assumed node, or to another."""
        held = list(self.stage.cache.assumed_pods)
        if held:
            one = self.random.choice(held)
            name = self.random.choice([*sorted(one.nodes), self._name()])
            self.stage.watch_pods(PodUpdate(one.pod.uid, one.pod._replace(admitted=self.random.random() < 0.5), name))

    def end(self) -> None:
        if self.stage.cache.pods:
            self.stage.watch_pods(gone=[self.random.choice(list(self.stage.cache.pods))])

    def speak(self) -> None:
        """A kubelet reports GPUs for some of its pods, one after the other, and for an unknown pod."""
        name = self._name()
        gpus = [gpu.index for gpu in self.stage.machines[name].gpus]
        self.random.shuffle(gpus)
        pods = [pod for pod in self.stage.cache.pods.values() if pod.node == name and self.random.random() < 0.7]
        held = {
            pod.occupant.name: [gpus.pop() for _ in range(min(len(gpus), pod.occupant.profile.gpus))] for pod in pods
        }
        if gpus and self.random.random() < 0.1:
            held["stranger"] = [gpus.pop()]
        self.stage.watch_reports({name: held})

    def node(self) -> None:
        name = self._name()
        if self.random.random() < 0.5:
            self.stage.watch_nodes(gone=[name])
        self.stage.machines[name] = self._machine()
        self.stage.watch_nodes(name)

    def wait(self) -> None:
        self.stage.now += self.random.choice((1, ASSUMED_POD_LIFETIME_S / 2, ASSUMED_POD_LIFETIME_S))

    def _name(self) -> str:
        return self.random.choice(list(self.stage.machines))

    def _machine(self) -> NodeTopology:
        return MACHINES[self.random.choice(KINDS)]()


def assert_as_evaluated(made: DecisionRecord) -> None:
    asked, names, answer = made.request, made.names, made.answer
    decision = evaluate(asked, made.table, names, made.policy, made.in_flight)

    assert answer.nodes == decision.nodes
    assert answer.single is (bool(decision.nodes) and decision.single)
    assert made.scores == tuple(decision.scores[name] for name in decision.nodes)
    assert answer.rejected == ({} if decision.nodes else {name: why.value for name, why in decision.rejected.items()})


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_answers_equal_those_of_evaluate_after_any_history(seed: int) -> None:
    life = Life(Random(seed))
    for _ in range(40):
        life.step()

    for each in life.stage.records:
        assert_as_evaluated(each)
        assert list(replay_differences(parse_decision(encode_decision(each)))) == []
    life.stage.cache.advance_time(life.stage.now)
    table = life.stage.cache.snapshot
    anew = snapshot_of(table.records.values(), life.stage.now, POLICY)
    assert all(table.states[name] is anew.states[name] for name in anew.states)


def test_the_histories_produce_all_kinds_of_answers() -> None:
    """The property above would also hold if all answers were equal."""
    kinds = set()
    for seed in range(70):
        life = Life(Random(seed))
        for _ in range(40):
            life.step()
        kinds |= {
            (len(each.answer.nodes), each.answer.single, bool(each.in_flight), "reserved" in str(each.answer.rejected))
            for each in life.stage.records
        }

    assert {(3, False, True, False), (1, True, True, False), (0, False, True, True), (0, False, False, False)} <= kinds


class Feed:
    """A sequence of snapshots."""

    def __init__(self, table: ClusterSnapshot, changes: ChangeLog) -> None:
        self.snapshot = table
        self.change_log = changes


def fleet(count: int) -> ClusterSnapshot:
    return snapshot_of([record(f"n{at:03}", PAIRS, held={}) for at in range(count)], NOW, POLICY)


def busy(name: str, gpus: int) -> NodeRecord:
    return record(name, PAIRS, held={"x": range(gpus)}, pods=[occupant("x", gpus)])


class TestOf:
    """Which rankings are kept."""

    def test_a_known_ranking_catches_up(self) -> None:
        feed = Feed(fleet(5), ChangeLog())
        ranks = Rankings(feed)
        first = ranks.ranking_for(profile(2), POLICY)

        feed.snapshot = with_records(feed.snapshot, [record("n001", H100, held={})], NOW, POLICY)
        feed.change_log.add_names(["n001"])

        assert ranks.ranking_for(profile(2), POLICY) is first
        assert first.score_of("n001") != first.score_of("n000")
        assert set(first.best_nodes({"n000", "n001"}, "uid")) == {"n000", "n001"}

    def test_a_ranking_too_far_behind_is_made_again(self) -> None:
        feed = Feed(fleet(5), ChangeLog(most=1))
        ranks = Rankings(feed)
        first = ranks.ranking_for(profile(2), POLICY)

        feed.snapshot = without_nodes(feed.snapshot, ["n000", "n001", "n002"])
        for name in ("n000", "n001", "n002"):
            feed.change_log.add_names([name])
        second = ranks.ranking_for(profile(2), POLICY)

        assert second is not first
        assert set(second.best_nodes(set(fleet(5).records), "uid")) == {"n003", "n004"}

    def test_the_least_recently_used_ranking_is_dropped(self) -> None:
        ranks = Rankings(Feed(fleet(1), ChangeLog()), most=2)
        one, two = ranks.ranking_for(profile(1), POLICY), ranks.ranking_for(profile(2), POLICY)
        assert ranks.ranking_for(profile(1), POLICY) is one

        ranks.ranking_for(profile(3), POLICY)

        assert ranks.ranking_for(profile(1), POLICY) is one
        assert ranks.ranking_for(profile(2), POLICY) is not two

    def test_each_policy_has_its_own_ranking(self) -> None:
        ranks = Rankings(Feed(fleet(1), ChangeLog()))

        assert ranks.ranking_for(profile(1), POLICY) is not ranks.ranking_for(profile(1), Policy())

    def test_nodes_are_added_and_removed(self) -> None:
        feed = Feed(fleet(3), ChangeLog())
        ranks = Rankings(feed)
        names = {*feed.snapshot.records, "new"}
        first = ranks.ranking_for(profile(1), POLICY)

        feed.snapshot = without_nodes(
            with_records(feed.snapshot, [record("new", PAIRS, held={})], NOW, POLICY), ["n000"]
        )
        feed.change_log.add_names(["new", "n000", "never there"])

        for asked in (profile(1), profile(2)):  # one ranking that catches up, one that is new
            assert set(ranks.ranking_for(asked, POLICY).best_nodes(names, "uid")) == {"new", "n001", "n002"}
        assert first.rejections_of({"n000", "n001"})["n000"] == "node not yet known to gputopo (see: gputopo why pod)"


def test_points_equal_those_of_evaluate() -> None:
    feed = Feed(fleet(20), ChangeLog())
    feed.snapshot = with_records(feed.snapshot, [busy(f"n{at:03}", 1 + at % 4) for at in range(0, 20, 2)], NOW, POLICY)
    asked, names = request(2), {*feed.snapshot.records, "ghost"}
    scores = evaluate(asked, feed.snapshot, names, POLICY).scores

    found = Rankings(feed).ranking_for(asked.profile, POLICY).points_of(names)

    assert 0 < len(scores) < 20
    assert dict(found) == {name: scores[name].rounded if name in scores else 0 for name in names}
    assert len(found) == 21


@pytest.mark.parametrize("count", [1, 20, 40, 600], ids=str)
def test_few_and_many_names_are_ranked_alike(count: int) -> None:
    """Few names are looked up, many are found in hash order."""
    feed = Feed(fleet(600), ChangeLog())
    feed.snapshot = with_records(feed.snapshot, [busy(f"n{at:03}", 1 + at % 4) for at in range(0, 600, 2)], NOW, POLICY)
    standing = Rankings(feed).ranking_for(profile(2), POLICY)
    names = set(Random(count).sample(sorted(feed.snapshot.records), count))

    for name in ("p", "q"):
        found = list(standing.best_nodes(names, f"uid-{name}"))
        everyone = [each for each in standing.best_nodes(set(feed.snapshot.records), f"uid-{name}") if each in names]
        assert found == everyone
        assert set(found) == {each for each in names if standing.score_of(each)}


class TestWaiting:
    """A profile never seen before: evaluation stops in between."""

    def test_the_answer_is_that_of_the_evaluated_nodes(self) -> None:
        table = mixed_fleet()
        asked = request(2, "p")
        for count in range(len(set(table.states.values())) + 1):
            allowed = iter(range(count))
            rankings = Rankings(Feed(table, ChangeLog()))
            evaluator_for.cache_clear()
            ranking = rankings.ranking_for(asked.profile, POLICY, partial(_is_left, allowed))
            names = frozenset(table.states)
            expected = evaluate(asked, table, names - ranking.waiting.among(names, table), POLICY)

            assert list(ranking.best_nodes(names, asked.uid))[: len(expected.nodes)] == list(expected.nodes)
            assert set(ranking.best_nodes(names, asked.uid)) == set(expected.scores)
            assert ranking.rejections_of(names - expected.scores.keys()).as_dict() == {
                name: reason.value for name, reason in expected.rejected.items()
            }
            assert ranking.waits == ranking.waiting.includes_some(names, table)

    def test_nodes_that_change_while_they_wait(self) -> None:
        feed = Feed(mixed_fleet(), ChangeLog())
        rankings = Rankings(feed)
        evaluator_for.cache_clear()
        asked = request(2, "p")
        ranking = rankings.ranking_for(asked.profile, POLICY, lambda _: False)
        assert ranking.waiting.number == len(feed.snapshot.states)

        feed.snapshot = with_records(feed.snapshot, [busy("n000", 1), busy("new", 3)], NOW, POLICY)
        feed.snapshot = without_nodes(feed.snapshot, ["n001"])
        feed.change_log.add_names(["n000", "new", "n001"])
        rankings.ranking_for(asked.profile, POLICY, lambda _: False)
        names = frozenset(feed.snapshot.states)
        assert ranking.waiting.among(names, feed.snapshot) == names
        rankings.evaluate_ahead(1, lambda: True)

        expected = evaluate(asked, feed.snapshot, feed.snapshot.states, POLICY)
        assert not ranking.waits
        assert set(ranking.best_nodes(names, asked.uid)) == set(expected.scores)
        assert ranking.rejections_of(names - expected.scores.keys()).as_dict() == {
            name: reason.value for name, reason in expected.rejected.items()
        }

    @pytest.mark.parametrize("seed", range(30))
    def test_any_changes_between_partial_evaluations(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Others evaluate states that wait here, and evaluations of states in use are forgotten."""
        monkeypatch.setattr(Evaluator, "may_take_long", lambda _, state: state.free_devices(WHOLE) % 2)
        random, feed = Random(seed), Feed(fleet(8), ChangeLog())
        rankings, steps_with_waiting = Rankings(feed), 0
        evaluator_for.cache_clear()
        for _ in range(60):
            change_some_nodes(feed, random)
            asked, names = request(random.randint(1, 3), "p"), frozenset(feed.snapshot.states)
            evaluator = evaluator_for(asked.profile, POLICY)
            if names and random.random() < 0.3:
                evaluator(feed.snapshot.states[random.choice(sorted(names))])
            for _ in range(2 if random.random() < 0.1 else 0):
                evaluator.end_period(())
            allowed = random.choice((0, 1, 2, 1000))

            may_continue, with_long = partial(_is_left, iter(range(allowed))), random.random() < 0.5
            ranking = rankings.ranking_for(asked.profile, POLICY, may_continue, with_long=with_long)

            expected = evaluate(asked, feed.snapshot, names, OTHER_POLICY)
            found, waiting = list(ranking.best_nodes(names, asked.uid)), ranking.waiting.among(names, feed.snapshot)
            steps_with_waiting += bool(waiting)
            assert len(found) == len(set(found))
            assert set(found) <= expected.scores.keys() <= waiting.union(found)
            if not waiting:
                assert ranking.rejections_of(names.difference(found)).as_dict() == {
                    name: reason.value for name, reason in expected.rejected.items()
                }
        assert steps_with_waiting

    def test_a_long_evaluation_ends_however_short_the_pieces_are(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evaluate_module, "_MANY_SETS", 1)
        large = record("large", MACHINES["dgx2"](), held={}, pods=[occupant("late", 1)])
        feed, pieces = Feed(snapshot_of([large], NOW, POLICY), ChangeLog()), 1
        rankings, free = Rankings(feed), feed.snapshot.states["large"].free
        evaluator_for.cache_clear()
        assert isinstance(free, ExactSets)

        while (ranking := rankings.ranking_for(profile(2), POLICY, partial(_is_left, iter(range(1))))).waits:
            pieces += 1
            assert pieces <= len(free.masks) + 1

        assert pieces > 2
        assert set(ranking.best_nodes(frozenset({"large"}), "p")) == {"large"}

    def test_a_long_evaluation_waits_while_another_node_fits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(evaluate_module, "_MANY_SETS", 1)
        large = record("large", MACHINES["dgx2"](), held={}, pods=[occupant("late", 1)])
        feed = Feed(snapshot_of([large, record("small", PAIRS, held={})], NOW, POLICY), ChangeLog())
        names = frozenset(feed.snapshot.states)
        evaluator_for.cache_clear()
        rankings = Rankings(feed)

        ranking = rankings.ranking_for(profile(2), POLICY, with_long=False)
        assert (set(ranking.best_nodes(names, "p")), ranking.waiting.number) == ({"small"}, 1)
        ranking = rankings.ranking_for(profile(8), POLICY, with_long=False)
        assert (set(ranking.best_nodes(names, "p")), ranking.waiting.number) == ({"large"}, 0)
        ranking = rankings.ranking_for(profile(2), POLICY)
        assert (set(ranking.best_nodes(names, "p")), ranking.waiting.number) == ({"large", "small"}, 0)

    def test_a_change_costs_no_evaluation_of_the_former_state(self) -> None:
        """Where the evaluation of a former state is no longer known, the ranking is made again of the known states."""
        feed = Feed(mixed_fleet(), ChangeLog())
        rankings = Rankings(feed)
        evaluator_for.cache_clear()
        asked = request(2, "p")
        ranking = rankings.ranking_for(asked.profile, POLICY)
        former = feed.snapshot.states["n007"]
        for _ in range(2):
            ranking.evaluator.end_period(set(feed.snapshot.states.values()) - {former})
        feed.snapshot = with_records(feed.snapshot, [busy("n007", 1)], NOW, POLICY)
        feed.change_log.add_names(["n007"])

        ranking = rankings.ranking_for(asked.profile, POLICY)

        expected = evaluate(asked, feed.snapshot, feed.snapshot.states, POLICY)
        assert set(ranking.best_nodes(frozenset(feed.snapshot.states), asked.uid)) == set(expected.scores)
        assert ranking.evaluator.known(former) is None

    def test_the_most_promising_nodes_come_first(self) -> None:
        evaluator_for.cache_clear()
        feed = Feed(mixed_fleet(), ChangeLog())
        allowed = iter(range(1))
        ranking = Rankings(feed).ranking_for(profile(2), POLICY, partial(_is_left, allowed))

        assert set(ranking.best_nodes(frozenset(feed.snapshot.states), "p")) == {"n002", "n005"}  # two are free


def change_some_nodes(feed: Feed, random: Random) -> None:
    """Up to four nodes come, change or go."""
    names = [f"n{random.randrange(10):03}" for _ in range(random.randint(1, 4))]
    for name in names:
        if random.random() < 0.2:
            feed.snapshot = without_nodes(feed.snapshot, [name])
        else:
            feed.snapshot = with_records(feed.snapshot, [busy(name, random.randint(1, 4))], NOW, POLICY)
    feed.change_log.add_names(names)


def mixed_fleet() -> ClusterSnapshot:
    """Nodes with four, three, two, one GPU free, and with none."""
    free = [record(f"n{at:03}", PAIRS, held={}) for at in (0, 3)]
    return snapshot_of(
        [*free, *(busy(f"n{at:03}", at % 3 or 4) for at in (1, 2, 4, 5, 6)), busy("n007", 3)], NOW, POLICY
    )


def _is_left(numbers: Iterator[int], _: object) -> bool:
    return next(numbers, None) is not None
