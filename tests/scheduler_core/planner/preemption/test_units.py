"""The running pods that may be evicted, and the cost of their eviction."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler_core.cache.events import Batch
from scheduler_core.evaluation.job_times import NearEndSince
from scheduler_core.evaluation.protection import Protection
from scheduler_core.planner.gang.disruption import OwnerDisruption, PodDisruption
from scheduler_core.planner.gang.gang import GangPhase
from scheduler_core.planner.gang.member import GangName
from scheduler_core.planner.preemption.inputs import EvictedDevices, UnitInputs
from scheduler_core.planner.preemption.model import VictimPod
from scheduler_core.planner.preemption.units import find_units
from scheduler_core.request.disruption import DisruptionFacts
from tests.scheduler_core.builders import NOW, occupant
from tests.scheduler_core.planner.packing.member_groups import member
from tests.scheduler_core.planner.preemption.running import HOUR, RunningJob, deadlines, inputs, owners

SAVED = DisruptionFacts(last_checkpoint=NOW - 600, checkpoints=True)
TRAINING = RunningJob("train", "a", "training", facts=SAVED)


def protection(job: RunningJob, **changed: Any) -> Protection | None:
    """Why the job stays; None: it may be evicted."""
    return find_units(inputs([job], **changed)).protected.get(f"team/{job.name}")


@pytest.mark.parametrize(
    ("job", "priority", "why"),
    [
        pytest.param(RunningJob("s", "a", "scavenger", -1_000), 0, None, id="a scavenger yields to all"),
        pytest.param(RunningJob("s", "a", "scavenger", -1_000), -1_000, Protection.PRIORITY, id="but not to equals"),
        pytest.param(RunningJob("s", "a", "scavenger", -1_000, hours=0.0), 0, None, id="at any time"),
        pytest.param(RunningJob("b", "a", "batch", 1_000), 100_000, None, id="normal yields to critical"),
        pytest.param(RunningJob("b", "a", "inference", 1_000), 100_000, None, id="inference too"),
        pytest.param(RunningJob("b", "a", "batch", 0), 1_000, Protection.NO_RULE, id="batch does not yield to normal"),
        pytest.param(RunningJob("b", "a", hours=0.1), 100_000, Protection.YOUNG, id="minimum runtime"),
        pytest.param(TRAINING, 1_000, None, id="training that was just saved yields to higher priority"),
        pytest.param(TRAINING._replace(priority=1_000), 100_000, Protection.NO_RULE, id="training of 1000 never"),
        pytest.param(
            TRAINING._replace(facts=SAVED._replace(last_checkpoint=NOW - 1_801)),
            1_000,
            Protection.OLD_CHECKPOINT,
            id="training with an old checkpoint",
        ),
        pytest.param(
            TRAINING._replace(facts=DisruptionFacts()), 1_000, Protection.NO_CHECKPOINT_TIME, id="without facts"
        ),
        pytest.param(
            TRAINING._replace(facts=DisruptionFacts(checkpoints=True), hours=0.25),
            1_000,
            Protection.NO_CHECKPOINT_TIME,
            id="young training that has not saved yet",
        ),
        pytest.param(
            TRAINING._replace(facts=DisruptionFacts(checkpoints=False)),
            1_000,
            Protection.NO_CHECKPOINTS,
            id="training without checkpoints",
        ),
        pytest.param(
            TRAINING._replace(facts=SAVED._replace(completion=NOW + 2 * HOUR)),
            1_000,
            Protection.NEAR_END,
            id="training two hours before its end",
        ),
        pytest.param(
            TRAINING._replace(facts=SAVED._replace(duration_s=12 * HOUR)), 1_000, Protection.NEAR_END, id="by duration"
        ),
        pytest.param(
            TRAINING._replace(facts=SAVED._replace(progress=0.9)), 1_000, Protection.NEAR_END, id="by progress"
        ),
        pytest.param(TRAINING._replace(facts=SAVED._replace(progress=0.5)), 1_000, None, id="half way"),
        pytest.param(RunningJob("b", "a", changed={"grace_s": 7_200.0}), 100_000, None, id="a long grace period"),
        pytest.param(
            RunningJob("b", "a", changed={"is_recreated": True}), 100_000, Protection.RECREATED, id="a DaemonSet"
        ),
        pytest.param(
            RunningJob("b", "a", facts=DisruptionFacts(never="karpenter.sh/do-not-disrupt")),
            100_000,
            Protection.NEVER,
            id="never",
        ),
        pytest.param(
            RunningJob("b", "a", facts=DisruptionFacts(never="karpenter.sh/do-not-disrupt", never_s=HOUR)),
            100_000,
            None,
            id="never for the first hour",
        ),
        pytest.param(
            RunningJob("s", "a", "scavenger", -1_000, facts=DisruptionFacts(never="x")), 0, None, id="scavenger"
        ),
    ],
)
def test_the_built_in_policy(job: RunningJob, priority: int, why: Protection | None) -> None:
    assert protection(job, priority=priority) is why


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        pytest.param(SAVED._replace(completion=NOW + 8_000 * 365 * 24 * HOUR), None, id="an end in the year 9999"),
        pytest.param(SAVED._replace(completion=NOW - 1), None, id="an end in the past"),
        pytest.param(SAVED._replace(duration_s=HOUR), None, id="a duration that is over"),
        pytest.param(SAVED._replace(progress=0.0), None, id="no progress"),
        pytest.param(
            DisruptionFacts(last_checkpoint=NOW + 10 * HOUR), Protection.NO_CHECKPOINT_TIME, id="a future checkpoint"
        ),
        pytest.param(SAVED._replace(restart_s=10_000 * HOUR), None, id="an endless restart"),
    ],
)
def test_hostile_values_neither_protect_nor_expose(facts: DisruptionFacts, why: Protection | None) -> None:
    job = TRAINING._replace(facts=facts)

    assert protection(job, priority=1_000) is why
    for unit in find_units(inputs([job], 1_000)).units:
        assert unit.gpu_hours <= 8 * (24 + 1 + 1)


def test_never_protects_for_a_limited_time() -> None:
    never = DisruptionFacts(never="gputopo.io/preemptible")

    assert protection(RunningJob("b", "a", hours=23.9, facts=never)) is Protection.NEVER
    assert protection(RunningJob("b", "a", hours=24.1, facts=never)) is None
    ignored = inputs([]).policy._replace(never_limit_s=0.0)
    assert protection(RunningJob("b", "a", hours=1.0, facts=never), policy=ignored) is None


def test_a_job_that_always_says_that_it_ends_soon_is_protected_for_a_limited_time() -> None:
    job = TRAINING._replace(facts=SAVED._replace(completion=NOW + 60))
    first = find_units(inputs([job], 1_000))

    assert first.near_end_since == {"uid-train": NearEndSince(claim=NOW)}
    since = {"uid-train": NearEndSince(claim=NOW - 4 * HOUR - 1)}
    later = find_units(inputs([job], 1_000, near_end_since=since | {"gone": NearEndSince(NOW)}))
    assert [each.name for each in later.units] == ["team/train"]
    assert later.near_end_since == since


def test_an_enforced_deadline_protects_until_it_is_over_whatever_the_job_said_before() -> None:
    near = deadlines(train=NOW + HOUR)
    lied = {"uid-train": NearEndSince(claim=0.0)}

    assert protection(TRAINING, priority=1_000, deadlines=near, near_end_since=lied) is Protection.NEAR_END


def test_a_deadline_that_is_put_off_again_and_again_protects_no_longer() -> None:
    """A tenant can make a running pod one of another Job, with a later deadline."""
    near = deadlines(train=NOW + HOUR)
    since = {"uid-train": NearEndSince(deadline=NOW - 2 * HOUR - 1)}

    assert protection(TRAINING, priority=1_000, deadlines=near, near_end_since=since) is None


def test_another_gang_or_owner_of_running_pods_does_not_prolong_the_protection() -> None:
    facts = SAVED._replace(completion=NOW + 60)
    before = find_units(inputs([RunningJob("train", "ab", "training", facts=facts)], 1_000))
    late = {uid: each._replace(claim=NOW - 4 * HOUR - 1) for uid, each in before.near_end_since.items()}
    found = inputs([RunningJob("train", "ab", "training", facts=facts)], 1_000, near_end_since=late)
    (gang,) = found.gangs

    renamed = find_units(found._replace(gangs=(gang._replace(name=GangName("team", "other")),)))

    assert [each.name for each in renamed.units] == ["team/other"]


def test_a_workload_is_not_evicted_twice_in_a_short_time() -> None:
    job = RunningJob("b", "a", "scavenger", hours=0.5)

    assert protection(job, evicted=evicted_pods("team/uid-b", 3_599)) is Protection.COOLDOWN
    assert protection(job, evicted=evicted_pods("team/uid-b", 3_600)) is None


def test_pods_that_ran_before_an_eviction_of_their_workload_can_be_evicted() -> None:
    """One evicted pod of a Deployment does not protect the others."""
    job = RunningJob("b", "a", "scavenger", hours=0.5)

    assert protection(job, evicted=evicted_pods("team/uid-b", 0.5 * HOUR - 60)) is Protection.COOLDOWN
    assert protection(job, evicted=evicted_pods("team/uid-b", 0.5 * HOUR - 61)) is None


def test_replacements_with_more_devices_than_were_evicted_are_not_protected() -> None:
    """A Deployment that is scaled up after an eviction, or a gang that comes back larger, is not protected."""
    jobs = [RunningJob(name, node, "scavenger", hours=0.5, owner="web") for name, node in ("xa", "yb", "zc")]
    found = find_units(inputs(jobs, evicted=evicted_pods("team/web", HOUR - 9, devices=16)))

    assert [each.name for each in found.units] == ["team/z"]
    assert found.protected == dict.fromkeys(("team/x", "team/y"), Protection.COOLDOWN)

    gang = RunningJob("g", "abc", "scavenger", hours=0.5)
    assert protection(gang, evicted=evicted_pods("team/g", HOUR - 9, devices=24)) is Protection.COOLDOWN
    assert protection(gang, evicted=evicted_pods("team/g", HOUR - 9, devices=16)) is None


def test_replacements_of_an_elastic_gang_are_not_evicted_alone() -> None:
    gang = RunningJob("g", "abc", "scavenger", hours=0.5, minimum=1)
    (unit,) = find_units(inputs([gang], evicted=evicted_pods("team/g", HOUR - 9, devices=8))).units

    assert [each.is_spare for each in unit.pods].count(False) == 1


def test_evictions_for_several_holds_protect_as_many_pods() -> None:
    jobs = [RunningJob(name, node, "scavenger", hours=hours, owner="web") for name, node, hours in OF_TWO_EVICTIONS]
    evicted = {"team/web": (EvictedDevices(NOW - 0.9 * HOUR, 8), EvictedDevices(NOW - 0.3 * HOUR, 8))}
    found = find_units(inputs(jobs, evicted=evicted))

    assert set(found.protected) == {"team/early", "team/late"}
    assert [each.name for each in found.units] == ["team/old"]


OF_TWO_EVICTIONS = (("old", "a", 2.0), ("early", "b", 0.8), ("late", "c", 0.2))


def test_the_cool_down_protects_from_gangs_of_at_most_the_priority_for_which_it_was_evicted() -> None:
    """Else a tenant could protect its pods from all others, by evictions for gangs of its own."""
    job = RunningJob("b", "a", "scavenger", hours=0.5)

    def found(priority: int | None) -> Protection | None:
        evicted = {"team/uid-b": (EvictedDevices(NOW - HOUR / 2, 8, priority),)}
        return protection(job, evicted=evicted)

    assert found(99_999) is None
    assert found(100_000) is Protection.COOLDOWN
    assert found(None) is Protection.COOLDOWN


def evicted_pods(key: str, seconds: float, devices: int = 8) -> dict[str, tuple[EvictedDevices, ...]]:
    """Evictions so many seconds ago."""
    return {key: (EvictedDevices(NOW - seconds, devices),)}


def test_the_cost_is_the_work_since_the_last_checkpoint_the_restart_and_the_grace_period() -> None:
    facts = DisruptionFacts(last_checkpoint=NOW - 1_800, restart_s=600)
    (unit,) = find_units(inputs([RunningJob("b", "a", facts=facts)], cost_per_hour="80")).units

    # 8 GPUs x (1800 s + 600 s + 30 s), at 10 per GPU-hour.
    hours = 8 * (1_800 + 600 + 30) / 3_600
    gpus = (("nvidia.com/gpu", 8),)
    assert [each._replace(gpu_hours=0.0, cost=None) for each in unit.pods] == [
        VictimPod("uid-b", "team", "b", "a", gpus)
    ]
    assert unit.gpu_hours == pytest.approx(hours)
    assert unit.cost == pytest.approx(10 * hours)
    assert (unit.rule, unit.reason) == ("normal-preemptible-by-critical", "batch, last checkpoint 30 min ago")


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        pytest.param(RunningJob("j", "a", "inference"), 300 + 30, id="inference: restart and grace"),
        pytest.param(RunningJob("j", "a", hours=0.5), 1_800 + 330, id="younger than the default age"),
        pytest.param(RunningJob("j", "a"), 3_600 + 330, id="tells nothing: the default age"),
        pytest.param(
            RunningJob("j", "a", facts=DisruptionFacts(checkpoints=False)),
            36_000 + 330,
            id="without checkpoints",
        ),
        pytest.param(
            RunningJob("j", "a", hours=1_000, facts=DisruptionFacts(checkpoints=False)), 86_400 + 330, id="one day"
        ),
        pytest.param(
            RunningJob("j", "a", hours=0.5, facts=DisruptionFacts(last_checkpoint=0.0)),
            1_800 + 330,
            id="a checkpoint before its start",
        ),
    ],
)
def test_lost_time_per_gpu(job: RunningJob, seconds: float) -> None:
    (unit,) = find_units(inputs([job])).units

    assert unit.gpu_hours == pytest.approx(8 * seconds / 3_600)
    assert unit.cost is None


def _moved_to(namespace: str, found: UnitInputs, node: str) -> UnitInputs:
    """The inputs with the pod of this node in another namespace."""
    record = found.table.records[node]
    (pod,) = record.pods
    moved = record.__class__(record.name, record.machine, record.gpus, (pod._replace(namespace=namespace),))
    table = found.table.__class__(1, found.table.records.set(node, moved), found.table.states)
    return found._replace(table=table)


def test_without_a_checkpoint_age_the_median_over_namespaces_counts() -> None:
    def aged(name: str, node: str, age: float) -> RunningJob:
        return RunningJob(name, node, facts=DisruptionFacts(last_checkpoint=NOW - age))

    jobs = [aged("p", "a", 60), aged("q", "b", 1_200), aged("r", "c", 7_200), RunningJob("silent", "d")]
    one_tenant = inputs(jobs)
    three = one_tenant
    for node, namespace in (("a", "x"), ("b", "y"), ("c", "z")):
        three = _moved_to(namespace, three, node)

    def lost(found: UnitInputs) -> float:
        (unit,) = (each for each in find_units(found).units if each.name == "team/silent")
        return unit.gpu_hours * 3_600 / 8 - 330

    assert lost(one_tenant) == pytest.approx(3_600)
    assert lost(three) == pytest.approx(1_200)


def test_fresh_checkpoints_of_other_namespaces_do_not_unprotect_training_that_reports_none() -> None:
    jobs = [RunningJob(name, node, "training", facts=SAVED) for name, node in (("p", "a"), ("q", "b"), ("r", "c"))]
    found = inputs([*jobs, RunningJob("silent", "d", "training", hours=200.0)], priority=1_000)
    for node, namespace in (("a", "x"), ("b", "y"), ("c", "z")):
        found = _moved_to(namespace, found, node)

    units = find_units(found)

    assert {each.name for each in units.units} == {"x/p", "y/q", "z/r"}
    assert units.protected == {"team/silent": Protection.NO_CHECKPOINT_TIME}


def test_a_gang_is_one_unit_with_its_members_without_gpus() -> None:
    found = inputs([RunningJob("g", "abc", minimum=2)])
    (gang,) = found.gangs
    launcher = member("launcher", 0)._replace(node="cpu-1", phase="Running")
    found.disruptions._pods["uid-launcher"] = found.disruptions._pods["uid-g-0"]._replace(key="uid-launcher")
    (unit,) = find_units(found._replace(gangs=(gang._replace(placed=(*gang.placed, launcher)),))).units

    assert [each.name for each in unit.pods] == ["g-0", "g-1", "g-2", "launcher"]
    assert (unit.key, unit.spare) == ("team/g", 2)


def test_a_gang_that_starts_is_left_alone() -> None:
    found = inputs([RunningJob("g", "ab", hours=0.5)])
    (gang,) = found.gangs
    waiting = gang.placed[1]._replace(node=None, reservation="g-1")

    starting = find_units(
        found._replace(gangs=(gang._replace(placed=(gang.placed[0], waiting)),), starting={waiting.uid})
    )

    assert starting.protected["team/g"] is Protection.STARTING


def test_a_further_member_that_never_binds_does_not_protect_a_gang_that_has_its_minimum() -> None:
    found = inputs([RunningJob("g", "ab", hours=0.5, minimum=1)])
    (gang,) = found.gangs
    waiting = gang.placed[1]._replace(node=None, reservation="g-1")
    grown = gang._replace(placed=(gang.placed[0], waiting))

    units = find_units(found._replace(gangs=(grown,), starting={waiting.uid})).units

    assert [each.name for each in units] == ["team/g"]


@pytest.mark.parametrize(
    ("reservation", "starting", "hours"),
    [
        pytest.param(None, set(), 0.5, id="a pod that no planner placed"),
        pytest.param("g-1", set(), 0.5, id="a gang that failed"),
        pytest.param("g-1", {"uid-g-1"}, 1.1, id="a gang that has run for an hour"),
    ],
)
def test_a_member_that_never_starts_does_not_protect_its_gang(
    reservation: str | None, starting: set[str], hours: float
) -> None:
    found = inputs([RunningJob("g", "ab", hours=hours)])
    (gang,) = found.gangs
    waiting = gang.placed[1]._replace(node=None, reservation=reservation)
    stuck = gang._replace(placed=(gang.placed[0], waiting), phase=GangPhase.UNGATED)

    assert [each.name for each in find_units(found._replace(gangs=(stuck,), starting=starting)).units] == ["team/g"]


def test_a_member_of_a_high_priority_without_gpus_does_not_protect_its_gang() -> None:
    found = inputs([RunningJob("g", "ab")])
    (gang,) = found.gangs
    launcher = member("launcher", 0)._replace(node="cpu-1", phase="Running")
    state = found.disruptions._pods["uid-g-0"]._replace(key="uid-launcher", priority=2_000_000_000)
    found.disruptions._pods["uid-launcher"] = state

    (unit,) = find_units(found._replace(gangs=(gang._replace(placed=(*gang.placed, launcher)),))).units

    assert (unit.priority, len(unit.pods)) == (0, 3)


def test_one_member_of_a_higher_priority_or_another_class_does_not_protect_its_gang() -> None:
    """Its priority is that of a gang in the queue: the lowest of its members with GPUs."""
    found = inputs([RunningJob("g", "ab", "scavenger", -1_000)], 0)
    record = found.table.records["b"]
    (pod,) = record.pods
    other = pod._replace(profile=occupant("g-1", 8, workload="training").profile)
    changed = record.__class__(record.name, record.machine, record.gpus, (other,))
    table = found.table.__class__(1, found.table.records.set("b", changed), found.table.states)
    state = found.disruptions._pods["uid-g-1"]
    found.disruptions._pods["uid-g-1"] = state._replace(priority=100_000)

    units = find_units(found._replace(table=table)).units

    assert [(each.name, each.rule, each.priority) for each in units] == [("team/g", "scavengers-preemptible", -1_000)]


def test_a_gang_of_more_pods_than_an_hour_allows_is_no_victim() -> None:
    """Else it would be the cheapest again and again, and no pod would be evicted at all."""
    found = inputs([RunningJob("g", "ab"), RunningJob("b", "c")])

    units = find_units(found._replace(policy=found.policy._replace(max_evictions_per_hour=1)))

    assert ([each.name for each in units.units], units.protected) == (
        ["team/b"],
        {"team/g": Protection.TOO_MANY_PODS},
    )


@pytest.mark.parametrize(("most_own", "victims"), [(1, ["team/b"]), (2, ["team/g", "team/b"])])
def test_pods_of_the_namespace_of_the_gang_have_a_limit_of_their_own(most_own: int, victims: list[str]) -> None:
    found = inputs([RunningJob("g", "ab"), RunningJob("b", "c")])
    policy = found.policy._replace(max_evictions_per_hour=1)

    units = find_units(found._replace(policy=policy, most_own_pods=most_own))

    assert sorted(each.name for each in units.units) == sorted(victims)


def test_the_spare_pods_of_a_large_elastic_gang_may_be_evicted() -> None:
    found = inputs([RunningJob("g", "abcd", minimum=1)])

    (gang,) = find_units(found._replace(policy=found.policy._replace(max_evictions_per_hour=2))).units
    (small,) = find_units(found._replace(policy=found.policy._replace(max_evictions_per_hour=4))).units

    assert (gang.only_spare, gang.spare, len(gang.pods)) == (True, 2, 4)
    assert (small.only_spare, small.spare) == (False, 3)


def test_a_gang_that_only_starts_with_its_minimum_gives_no_pod_alone() -> None:
    """A JobSet whose workers start after the driver, or an MPIJob whose launcher starts last."""
    found = inputs([RunningJob("g", "abcd", minimum=1)])
    (gang,) = found.gangs

    (unit,) = find_units(found._replace(gangs=(gang._replace(is_elastic=False),))).units

    assert (unit.spare, len(unit.pods)) == (0, 4)


def test_the_first_rank_and_pods_of_roles_without_ranks_are_not_evicted_alone() -> None:
    """A PyTorchJob with a master, a TFJob with a parameter server, torchrun whose workers meet at the first pod."""
    found = inputs([RunningJob("g", "abcd", minimum=1)])
    (gang,) = found.gangs
    ranks = (None, 2, 0, 1)
    placed = tuple(
        each._replace(gang_request=each.gang_request._replace(rank=rank))
        for each, rank in zip(gang.placed, ranks, strict=True)
    )

    (unit,) = find_units(found._replace(gangs=(gang._replace(placed=placed),))).units
    (independent,) = find_units(found._replace(gangs=(gang._replace(placed=placed, size=None),))).units

    assert ([each.name for each in unit.pods if each.is_spare], unit.spare) == (["g-1", "g-3"], 3)
    assert all(each.is_spare for each in independent.pods)


def test_annotations_of_owners_count_for_their_pods() -> None:
    gang, single = RunningJob("g", "ab", "training"), RunningJob("t", "c", "training")
    found = inputs([gang, single], 1_000)
    facts = owners({"u": OwnerDisruption(SAVED, (GangName("team", "g"),))}, found.disruptions)

    units = find_units(found._replace(disruptions=facts))

    assert [each.name for each in units.units] == ["team/g"]
    assert units.protected == {"team/t": Protection.NO_CHECKPOINT_TIME}


def test_annotations_of_a_jobset_count_for_its_pods_in_gangs_of_other_names_and_for_single_pods() -> None:
    jobset = GangName("team", "jobset.a")
    made = {"jobset": jobset}
    jobs = [RunningJob("g", "ab", "training", changed=made), RunningJob("t", "c", "training", changed=made)]
    found = inputs(jobs, 1_000)
    facts = owners({"u": OwnerDisruption(SAVED, (jobset,))}, found.disruptions)

    units = find_units(found._replace(disruptions=facts))

    assert [each.name for each in units.units] == ["team/g", "team/t"]


def test_terminating_pods_are_no_victims() -> None:
    ending = RunningJob("e", "a", changed={"gone_by": NOW + 5})
    stuck = RunningJob("s", "b", changed={"gone_by": NOW - 61})
    found = find_units(inputs([ending, stuck]))

    assert ([each.name for each in found.ending], found.units, found.protected) == (["e"], (), {})


@pytest.mark.parametrize("gone_by", [None, NOW + 1e9])
def test_an_eviction_limits_the_grace_period(gone_by: float | None) -> None:
    """Also that of a pod which its owner deleted with another one: it goes on, and keeps its GPUs."""
    endless = RunningJob("e", "a", changed={"gone_by": gone_by, "grace_s": 1e9})
    (unit,) = find_units(inputs([endless])).units

    assert [each.grace_s for each in unit.pods] == [3_600.0]


def test_a_pod_that_was_deleted_with_a_longer_grace_period_than_its_own_is_evicted() -> None:
    deleted = RunningJob("e", "a", changed={"gone_by": NOW + 600, "grace_s": 30.0})
    (unit,) = find_units(inputs([deleted])).units

    assert [each.grace_s for each in unit.pods] == [30.0]


def test_a_pod_that_terminates_slowly_neither_counts_as_gone_nor_is_evicted() -> None:
    """A gang must not wait for its GPUs instead of those of other pods."""
    slow = RunningJob("e", "a", changed={"gone_by": NOW + 600, "grace_s": 3_000.0})
    found = find_units(inputs([slow]))

    assert (found.ending, found.units, found.protected) == ((), (), {"team/e": Protection.ENDING})
    assert [each.name for each in find_units(inputs([slow], ending_s=3_600.0)).ending] == ["e"]


def test_pods_that_are_not_observed_completely_stay() -> None:
    found = inputs([RunningJob("b", "a")])
    found.disruptions._pods.clear()

    assert find_units(found).protected == {"team/b": Protection.UNKNOWN}


def test_when_the_time_is_over_no_more_units_are_found_and_the_next_search_begins_with_others() -> None:
    """The time for units was not limited: on many nodes none was left for the search."""
    jobs = [RunningJob(f"b{at}", f"{chr(ord('A') + at)}") for at in range(26)]
    one = inputs(jobs)

    def found_at(seconds: float) -> list[str]:
        calls = iter((False, True))
        with_limit = one._replace(now=NOW + seconds, is_out_of_time=lambda: next(calls))
        found = find_units(with_limit)
        assert not found.is_complete
        return [each.name for each in found.units]

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("scheduler_core.planner.preemption.candidates._AT_ONCE", 4)
        parts = [found_at(seconds) for seconds in range(26)]

    assert find_units(one).is_complete
    assert {len(each) for each in parts} == {4}
    assert {name for each in parts for name in each} == {f"team/b{at}" for at in range(26)}


def test_a_pod_of_a_daemonset_does_not_protect_the_gang_that_it_names() -> None:
    gang = inputs([RunningJob("g", "abc", "scavenger")])
    state = gang.disruptions.pod("uid-g-0")
    assert state is not None
    gang.disruptions.apply_pods(Batch(PodDisruption, (state._replace(is_recreated=True),), is_full_list=False))
    found = find_units(gang)

    assert [[pod.name for pod in unit.pods] for unit in found.units] == [["g-1", "g-2"]]
    assert found.protected == {"team/g-0": Protection.RECREATED}
