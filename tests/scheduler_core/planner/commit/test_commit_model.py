"""Model check of the commit protocol, with the production code: two planners that both believe to lead, two extenders.

In any order of events (watches that lag, writes that arrive late, processes that are killed after any write,
extenders that are cut off, pods that come and go), no node has more GPUs bound and committed than it has; and once
events end, each gang has all its nodes or none. A capacity hold of a gang that does not fit stays until the gang is
committed, whatever is proposed meanwhile. Pods are evicted for holds that the ledger lists; all units of a hold begin
in one write, and are evicted completely while their hold is listed. The same model finds the error in each mutant that
leaves out one part of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import (
    run_state_machine_as_test,
)

from gputopo.crd.reservations import PlannedEviction
from gputopo.labels.keys import POD_GANG
from scheduler_core.cache.events import LedgerUpdate, ReservationUpdate
from scheduler_core.planner.commit.actions import EvictPod, WriteLedger
from tests.scheduler_core.planner.commit.apiserver import NODES, Json
from tests.scheduler_core.planner.commit.commit_model import (
    OFTEN,
    TERMS,
    USUAL,
    Commit,
    Mutant,
    hear_all,
    picked,
    weighed,
)
from tests.scheduler_core.planner.commit.processes import Flags

_TWICE = r"bound \+ . committed of"
_LOST = "what was held by .* is lost"


def test_no_order_of_events_assigns_a_gpu_twice_or_leaves_a_gang_half_placed() -> None:
    run_state_machine_as_test(Commit, settings=USUAL)


class Hostile(Commit):
    """The same without an admission policy: a tenant writes the planner's annotation into its own pods.

    Plans are not deleted by hand here: they are not always recreated then.
    """

    mutant = Mutant(TERMS._replace(guarded=False))
    harmless = mutant
    actions = weighed({name: often for name, often in OFTEN.items() if "deletes" not in name} | {"tenant_forges": 8})

    def __init__(self) -> None:
        super().__init__()
        self.forged: set[str] = set()

    def tenant_forges(self, side: int, pick: int) -> None:
        """The forged pod names a plan or none; in a gang or alone; with or without a gate."""
        self.forged &= self.server.pods.keys()
        if len(self.forged) < 4:
            names = [*(each.name for each in self.server.reservations.values()), "x"]
            node = picked(sorted(NODES), pick)
            gang = "forged" if side else None
            self.forged.add(self.server.forge_pod(picked(names, pick // 3), node, gang=gang, gated=pick % 5 == 0))

    def _may_try(self, pod: Json, side: int) -> bool:
        """Forged pods name a scheduler that does not exist; a pod that fits may be admitted like any pod."""
        return pod["metadata"]["uid"] not in self.forged and super()._may_try(pod, side)

    def no_node_is_promised_twice(self) -> None:
        """Invariant: forged pods count nowhere."""
        super().no_node_is_promised_twice()
        plans = (event.object for event in self.server.events if event.kind is ReservationUpdate and event.object)
        listed = {seat.uid for each in plans for seat in each.spec.seats}
        assert not listed & self.forged, "a forged pod has a plan"
        views = [each.view.cache for each in self.planners if each is not None]
        known = [*views, *(each.cluster_cache for each in self.extenders if each is not None)]
        counted = {pod.uid for each in known for record in each.snapshot.records.values() for pod in record.pods}
        assert not counted & self.forged, "a forged pod counts"


def test_forged_pods_count_nowhere_and_no_gang_stays_half_placed() -> None:
    run_state_machine_as_test(Hostile, settings=USUAL)


class Believing(Hostile):
    """The same with a planner that assumes that nothing can be forged."""

    mutant = Mutant()


def test_the_model_finds_forged_pods_that_count() -> None:
    with pytest.raises(AssertionError, match="a forged pod"):
        run_state_machine_as_test(Believing, settings=USUAL)


MUTANTS = {
    "committed before extenders acknowledge": (Mutant(TERMS._replace(gated=True, settle_s=0.0)), _TWICE),
    "acknowledged without in-flight pods": (Mutant(flags=Flags(remembers=False)), _TWICE),
    "a capacity hold given up for a proposal": (Mutant(falls_back=False), _LOST),
    "pods evicted before the ledger lists the hold": (Mutant(lists_first=False), "is evicted for no hold"),
}


@pytest.mark.parametrize(("mutant", "wrong"), MUTANTS.values(), ids=MUTANTS.keys())
def test_the_model_finds_the_error_of_each_mutant(mutant: Mutant, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        run_state_machine_as_test(_mutated(mutant), settings=settings(USUAL, max_examples=500))


def _mutated(mutant: Mutant) -> type[Commit]:
    return type("Mutated", (Commit,), {"mutant": mutant})


def _overwriting(world: Commit) -> None:
    """A planner stops before its commit; its successor withdraws the plan, and pods take its places."""
    world.server.create_pod("g", 1, "g", 2)
    member = world.server.create_pod("g", 1, "g", 2)
    world.gangs["g"] = 2
    _propose(world)
    _speak(world)
    planner = world.planners[0]
    assert planner is not None
    hear_all(planner)
    world.late += [(planner, each) for each in planner.writes() if isinstance(each, WriteLedger)]
    assert world.late
    world.planners[0] = None
    world.server.delete_pod(member)
    world._start_planner(1)
    successor = world.planners[1]
    assert successor is not None
    for _ in range(2):  # it takes over and removes the entry; the reservation is not deleted yet
        for each in [each for each in successor.writes() if isinstance(each, WriteLedger)]:
            world._write(successor, each)
    assert world.server.ledger is not None
    assert not world.server.ledger.spec.entries
    _speak(world)
    _fill(world, 0)
    world.late_write_lands(0, 0)
    world._replace("g")


def _unregistered(world: Commit) -> None:
    """An extender starts just before a proposal, and answers before the planner can see it."""
    world.extender_ends(0, 0)
    ledger, other = world.server.ledger, world.extenders[1]
    assert ledger is not None
    assert other is not None
    world.server.drop(ledger, {other.me: ledger.extenders[other.me]})
    world.extender_starts(0, 0)
    _gang_of(world, 3)
    _propose(world)
    world.extender_speaks(1, 0)
    _fill(world, 0, bind=False)
    world.planner_works(0, 0)
    _land(world)


def _struck_at_once(world: Commit) -> None:
    """An extender admits pods and ends; the other one acknowledges without knowing of these pods."""
    _fill(world, 0, bind=False)
    world.extender_ends(0, 0)
    _gang_of(world, 3)
    world.planner_works(0, 0)
    for _ in range(8):
        world.extender_speaks(1, 0)
        world.planner_works(0, 0)
        world.pass_time(2)
    _land(world)


def _heard_of_late(world: Commit) -> None:
    """A member is bound and its entry removed; a process receives the removal before the binding."""
    _gang_of(world, 3)
    _propose(world)
    _speak(world)
    world.planner_works(0, 0)
    world.extender_speaks(0, 0)
    for _ in range(3):
        world.pod_is_filtered(0, 0)
    _land(world)
    world.planner_works(0, 0)
    extender = world.extenders[1]
    assert extender is not None
    while LedgerUpdate in extender.watcher.behind():
        extender.hear(extender.watcher.hear(LedgerUpdate))
    for _ in range(2):
        world.pod_comes(1, 0)
        world.pod_is_filtered(1, 0)
    _land(world)


CASES = {
    "the ledger is overwritten": (_overwriting, Mutant(swaps=False)),
    "it answers before it is registered": (_unregistered, Mutant(flags=Flags(registers=False))),
    "an extender that ended is dropped at once": (_struck_at_once, Mutant(TERMS._replace(ended_s=0.0))),
    "a removed entry is forgotten at once": (_heard_of_late, None),
}


@pytest.mark.parametrize(("case", "mutant"), CASES.values(), ids=CASES.keys())
def test_cases_that_are_too_rare_to_occur_at_random(case: Callable[[Commit], None], mutant: Mutant | None) -> None:
    """Each is harmless, and fails once its part of the protocol."""
    whole = Commit()
    whole.begin()
    case(whole)
    whole.no_node_is_promised_twice()
    whole.teardown()
    if mutant is not None:
        world = _mutated(mutant)()
        world.begin()
        case(world)
        with pytest.raises(AssertionError, match=_TWICE):
            world.no_node_is_promised_twice()


def test_a_unit_is_evicted_completely_although_its_planner_is_killed_after_the_first_pod() -> None:
    world = _preempting()
    evicted = _evict_one(world)
    (unit,) = (each for each in _units(world) if evicted.uid in each)
    assert len(unit & world.server.pods.keys()) == 1

    world.teardown()  # with another planner

    assert not unit & world.server.pods.keys()
    assert all(pod["spec"].get("nodeName") for pod in world._members("g0"))


def test_the_rest_of_a_unit_is_spared_if_its_gang_is_deleted_after_the_first_pod() -> None:
    world = _preempting()
    evicted = _evict_one(world)
    left = {uid for each in _units(world) for uid in each} - {evicted.uid}
    world.gangs.clear()  # no replacements
    for pod in [uid for uid, each in world.server.pods.items() if each["metadata"]["annotations"].get(POD_GANG.key)]:
        world.server.delete_pod(pod)

    world.teardown()

    assert left <= world.server.pods.keys()
    assert not world.server.reservations


def test_the_model_finds_a_unit_that_begins_without_the_others() -> None:
    with pytest.raises(AssertionError, match=r"a unit begins without \['team/unit-"):
        _evict_one(_preempting(Mutant(together=False)))


def _preempting(mutant: Mutant = Commit.mutant) -> Commit:
    """Return a gang that does not fit, and four running pods on the nodes that a hold takes: two units."""
    world = _mutated(mutant)()
    world.begin()
    for _ in range(4):
        world.pod_comes(0, 0)
        world.pod_is_filtered(0, 0)
        _land(world)
    _gang_of(world, 4)
    return world


def _units(world: Commit) -> list[set[str]]:
    """Return the pods of each unit that is evicted for the gang, also of those that are gone."""
    holds = (event.object for event in world.server.events if event.kind is ReservationUpdate and event.object)
    (intent,) = {intent for each in holds if (intent := each.spec.preemption) is not None}
    units = {each.unit for each in intent.evictions}
    return [{each.uid for each in intent.evictions if each.unit == unit} for unit in units]


def _evict_one(world: Commit) -> PlannedEviction:
    """Run until the planner evicts a pod, and stop it after this write. Return the pod."""
    planner = world.planners[0]
    assert planner is not None
    for _ in range(40):
        world.quieten()
        for each in planner.writes():
            world._write(planner, each)
            if isinstance(each, EvictPod):
                world.planners[0] = None
                return each.eviction
        world.pass_time(1)
    raise AssertionError("no pod is evicted")


def _gang_of(world: Commit, size: int) -> None:
    world.gang_comes(0, size - 1)


def _propose(world: Commit) -> None:
    """Create the reservation and propose it, nothing more."""
    planner = world.planners[0]
    assert planner is not None
    hear_all(planner)
    for _ in range(2):
        for each in planner.writes():
            world._write(planner, each)


def _speak(world: Commit) -> None:
    for side in (0, 1):
        world.extender_speaks(side, 0)


def _fill(world: Commit, side: int, *, bind: bool = True) -> None:
    """Filter as many pods as are admitted."""
    for _ in range(2):
        world.pod_comes(side, 0)
        world.pod_is_filtered(side, 0)
    if bind:
        _land(world)


def _land(world: Commit) -> None:
    while world.flights:
        world.binding_lands(0, 0)
