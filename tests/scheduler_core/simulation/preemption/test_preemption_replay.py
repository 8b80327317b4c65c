"""Preemption rules side by side: what each evicts, what is lost, who waits, and what was in vain."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from gputopo.cli.main import main
from scheduler_core.policy.preemption import CRITICAL_PRIORITY, NORMAL_PRIORITY
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.simulation.assumed_machines import islands
from scheduler_core.simulation.hosts import SimulatedNode
from scheduler_core.simulation.preemption.jobs import (
    TieredJob,
    TieredWorkloadError,
    draw_tiered_jobs,
    has_tiers,
    read_tiered_jobs,
)
from scheduler_core.simulation.preemption.replay import HOLD_RULES, RULES, TIERS, PreemptionFigures, replay_tiers
from scheduler_core.simulation.preemption.report import means_over_seeds, tiers_markdown, tiers_svg, tiers_text, titles
from scheduler_core.simulation.preemption.vain import count_vain_evictions

HOUR = 3_600.0
NODES = [SimulatedNode(f"n{at}", islands("A100", (4, 4))) for at in range(2)]
EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "preemption" / "workload.csv"
BACKFILL_EXAMPLE = EXAMPLE.with_name("backfill.csv")


def job(name: str, arrival: float, gpus: int = 8, hours: float = 20.0, **more: Any) -> TieredJob:
    """A job of one pod, which saves every half hour."""
    values: dict[str, Any] = {"pods": 1, "workload": WorkloadClass.TRAINING, "checkpoint_s": 1_800.0} | more
    return TieredJob(name=name, gpus=gpus, arrival=arrival, duration=hours * HOUR, **values)


def urgent(arrival: float, **more: Any) -> TieredJob:
    """A critical job."""
    return job("urgent", arrival, hours=1.0, priority=CRITICAL_PRIORITY, **more)


def last(at: float) -> TieredJob:
    """A job that ends the replay."""
    return job("last", at, 1, hours=0.1, priority=-10)


def test_no_cluster_of_a_hundred_has_evictions_in_vain_but_those_of_rules_that_count_gpus() -> None:
    found = {name: count_vain_evictions(name, range(100)) for name in RULES}

    assert found["ours"].in_vain == 0
    assert found["default"].in_vain > 0
    assert found["kai"].in_vain > 0
    assert found["ours"].started > max(found["default"].started, found["kai"].started)
    assert found["none"].evicted == 0


def test_the_job_that_has_just_saved_is_evicted_and_only_what_it_had_not_saved_is_lost() -> None:
    """At 5:05, one job saved 5 minutes ago, and the other 20 minutes ago. It begins again where it had saved."""
    jobs = [job("fresh", 0.0), job("stale", 2_700.0), urgent(18_300.0), last(23_000.0)]

    found = replay_tiers("ours", NODES, jobs, 1)

    assert (found.evicted_jobs, found.in_vain) == (1, 0)
    assert found.waiting_gpu_hours > 0  # the victim still waits
    # 8 GPUs x (wait before the eviction until the next try + restart + grace)
    assert found.gpu_hours_lost == pytest.approx(8 * (18_600 - 18_000 + 300 + 30) / HOUR)
    assert found.waits["critical"].p95_s == 300.0
    assert found.money_lost == 2 * found.gpu_hours_lost


def test_training_near_its_end_is_spared_although_it_is_cheapest() -> None:
    nearly_done = job("nearly-done", 0.0, hours=6.0)  # saved at 5:00, ends at 6:00
    jobs = [nearly_done, job("long", 300.0 * 4), urgent(18_300.0), last(19_500.0)]
    found = {name: replay_tiers(name, NODES, jobs, 1) for name in ("ours", "none")}

    assert found["ours"].evicted_jobs == 1
    assert found["ours"].gpu_hours_lost == pytest.approx(
        8 * (18_600 - 1_200) % 1_800 * 8 / HOUR + 8 * 330 / HOUR, abs=8
    )
    assert found["none"].waits["critical"].never == 1


@pytest.mark.parametrize(
    "sacred",
    [
        pytest.param({"priority": NORMAL_PRIORITY}, id="important training"),
        pytest.param({"checkpoint_s": None}, id="training without checkpoints"),
        pytest.param({"hours": 6.0}, id="training near its end"),
    ],
)
def test_protected_training_is_never_evicted(sacred: dict[str, Any]) -> None:
    jobs = [job("a", 0.0, **sacred), job("b", 0.0, **sacred), urgent(18_300.0), last(19_500.0)]

    assert replay_tiers("ours", NODES, jobs, 1).evicted_jobs == 0
    assert replay_tiers("default", NODES, jobs, 1).evicted_jobs == 1


def test_kai_evicts_no_job_of_priority_100_and_the_lowest_first() -> None:
    build = [job("a", 0.0, priority=100), job("b", 0.0, priority=100), urgent(18_300.0), last(19_500.0)]
    mixed = [job("a", 0.0, priority=50), job("b", 0.0, priority=-5), urgent(18_300.0), last(19_500.0)]

    assert replay_tiers("kai", NODES, build, 1).evicted_jobs == 0
    assert replay_tiers("kai", NODES, mixed, 1).evicted_jobs == 1


def test_the_same_seed_gives_the_same_figures() -> None:
    jobs = draw_tiered_jobs(16, 3.0, 1.2, Random(3))
    figures = {name: replay_tiers(name, NODES, jobs, 3) for name in RULES}

    assert {name: replay_tiers(name, NODES, jobs, 3) for name in RULES} == figures
    assert figures["none"].gpu_hours_lost == 0.0
    assert all(0.0 < each.useful <= each.utilisation <= 1.0 for each in figures.values())


def test_the_report_has_a_row_and_a_bar_for_each_rule() -> None:
    jobs = draw_tiered_jobs(16, 1.0, 1.0, Random(3))
    found: list[PreemptionFigures] = [replay_tiers(name, NODES, jobs, 3) for name in RULES]

    assert [line.split(" | ")[0] for line in tiers_markdown(found).splitlines()[2:]] == [f"| {name}" for name in RULES]
    assert tiers_svg(found).count("<rect") == 1 + (1 + len(TIERS)) * len(RULES)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"pods": 0}, "pods 0 is not between 1 and 4096"),
        ({"num_gpu": "many"}, "num_gpu 'many' is not a number"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"arrival_s": None}, "job 1 has no arrival_s; expected name, pods"),
        ({"workload": "fun"}, "workload 'fun' is not training, inference"),
        ({"deadline_s": 30}, "deadline_s 30 is not between 60 and"),
        ({"priority": 1e12}, "priority 1000000000000.0 is not between"),
        ({"pods": True}, "pods True is not a number"),
        ({"num_gpu": "1_0"}, "num_gpu '1_0' is not a number in decimal digits"),
        ({"name": {"a": 1}}, "name {'a': 1} is not a text"),
    ],
)
def test_a_faulty_job_is_quoted(changed: dict[str, Any], says: str) -> None:
    row = {"name": "a", "pods": 1, "num_gpu": 8, "arrival_s": 1.5, "duration_s": 60} | changed
    text = json.dumps([row]).replace("NaN", '"nan"')

    with pytest.raises(TieredWorkloadError, match=says.replace("'", ".")):
        read_tiered_jobs(text)


def test_files_of_both_formats_are_read_and_recognized() -> None:
    columns = "name,pods,num_gpu,arrival_s,duration_s,priority,workload,island,checkpoint_s"
    csv = f"{columns}\na,2,8,0,60,1000,training,required,900\n"
    as_json = '[{"name": "a", "pods": 2, "num_gpu": 8, "arrival_s": 0, "duration_s": 60}]'

    assert read_tiered_jobs(csv) == [
        TieredJob("a", 2, 8, 0.0, 60.0, 1_000, WorkloadClass.TRAINING, island=True, checkpoint_s=900.0)
    ]
    assert read_tiered_jobs(as_json) == [TieredJob("a", 2, 8, 0.0, 60.0)]
    assert (has_tiers(csv), has_tiers(as_json)) == (True, True)
    assert not has_tiers("name,cpu_milli,memory_mib,num_gpu,gpu_milli\n")
    with pytest.raises(TieredWorkloadError, match="0 jobs"):
        read_tiered_jobs("name,pods\n")


@pytest.mark.parametrize(
    "text",
    [
        "Name, Pods ,NUM_GPU,arrival_s,duration_s\na,2,8,0,60\n",
        '"name","pods","num_gpu","arrival_s","duration_s"\r\n"a","2","8","0","60"\r\n',
        "name;pods;num_gpu;arrival_s;duration_s\na;2;8;0;60\n",
        "\nname\tpods\tnum_gpu\tarrival_s\tduration_s\na\t2\t8\t0\t60\n",
    ],
    ids=["upper case", "quoted", "semicolons", "tabs"],
)
def test_spellings_of_csv(text: str) -> None:
    assert has_tiers(text)
    assert read_tiered_jobs(text) == [TieredJob("a", 2, 8, 0.0, 60.0)]


def test_a_column_that_occurs_twice_is_an_error() -> None:
    with pytest.raises(TieredWorkloadError, match="the column 'pods' occurs twice; remove one; expected the columns"):
        read_tiered_jobs("name,pods,num_gpu,arrival_s,duration_s,Pods\na,2,8,0,60,4\n")


def test_two_jobs_of_one_name_are_an_error() -> None:
    with pytest.raises(TieredWorkloadError, match="two jobs have the name 'a'"):
        read_tiered_jobs("name,pods,num_gpu,arrival_s,duration_s\na,2,8,0,60\na,1,8,0,60\n")


def test_simulate_runs_the_rules_of_a_policy_file(tmp_path: Path) -> None:
    """Rules without any victim lose nothing, as ``none``."""
    policy = tmp_path / "protect.yaml"
    policy.write_text(
        "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
        "preemption:\n  rules: [{name: nobody, victims: {}, allow: false}]\n"
    )
    command = ["simulate", "--cluster", "dgx-a100*4", "--workload", str(EXAMPLE), "--policies", "ours,none"]

    found = CliRunner().invoke(main, [*command, "--policy", str(policy), "-o", "json"])
    text = CliRunner().invoke(main, [*command, "--policy", str(policy), "--seeds", "2"])

    ours, none, protected = json.loads(found.output)["replays"]
    assert ours["evicted_jobs"] > 0
    assert protected | {"policy": "none"} == none
    assert protected["policy"] == "ours:protect"
    rows = [line.split()[0] for line in text.output.split("\n\n")[1].splitlines()[1:]]
    assert rows == ["ours", "none", "ours:protect"]
    assert "gputopo: the rules of the policy file" in text.output


def test_a_policy_that_is_named_twice_is_an_error() -> None:
    command = ["simulate", "--cluster", "dgx-a100*4", "--workload", str(EXAMPLE), "--policies", "ours,none,ours"]

    found = CliRunner().invoke(main, command)

    assert found.exit_code == 2
    assert "--policies 'ours,none,ours': 'ours' occurs twice" in found.output


def test_the_table_shows_means_over_the_seeds() -> None:
    first = replay_tiers("none", NODES, [urgent(100.0)], 1)
    second = first._replace(seed=2, utilisation=first.utilisation + 0.2, evicted_jobs=first.evicted_jobs + 4)

    (mean,) = means_over_seeds([first, second])

    assert mean.utilisation == pytest.approx(first.utilisation + 0.1)
    assert mean.evicted_jobs == first.evicted_jobs + 2
    assert mean.waits == first.waits


def test_the_shipped_example_is_simulated_by_the_command() -> None:
    command = ["simulate", "--cluster", "dgx-a100*4", "--workload", str(EXAMPLE)]

    found = CliRunner().invoke(main, [*command, "--policies", "ours,none", "-o", "json"])
    text = CliRunner().invoke(main, [*command, "--policies", "none"])

    assert found.exit_code == 0, found.output
    assert [each["policy"] for each in json.loads(found.output)["replays"]] == ["ours", "none"]
    assert json.loads(found.output)["replays"][0]["in_vain"] == 0
    assert "no preemption" in text.output
    for wrong in (["--policies", "best"], ["-o", "html"]):
        assert CliRunner().invoke(main, [*command, *wrong]).exit_code == 2


def with_deadline(name: str, arrival: float, hours: float, **more: Any) -> TieredJob:
    """A job whose pods have a deadline at the end of its work."""
    return job(name, arrival, hours=hours, deadline_s=hours * HOUR, **more)


def test_a_short_job_uses_held_nodes_and_a_longer_one_does_not() -> None:
    """Node n0 is in use for four hours; a job of two nodes waits, so that n1 is held for it."""
    first, wide = with_deadline("first", 0.0, 4.0), with_deadline("wide", 300.0, 1.0, pods=2)
    jobs = [first, wide, with_deadline("short", 600.0, 2.0), with_deadline("long", 600.0, 4.0), last(14_700.0)]
    found = {name: replay_tiers(name, NODES, jobs, 1) for name in HOLD_RULES}

    assert (found["hold"].backfilled_jobs, found["backfill"].backfilled_jobs) == (0, 1)
    assert found["backfill"].utilisation > found["hold"].utilisation
    assert [each.late_holders for each in found.values()] == [0, 0]
    assert found["backfill"].yielded_jobs == 0


def test_a_backfilled_job_is_evicted_if_the_holder_can_start_earlier() -> None:
    """The first job ends after one of four hours."""
    first, wide = job("first", 0.0, hours=1.0, deadline_s=4 * HOUR), with_deadline("wide", 300.0, 1.0, pods=2)
    jobs = [first, wide, with_deadline("short", 600.0, 2.0), last(7_200.0)]
    found = {name: replay_tiers(name, NODES, jobs, 1) for name in HOLD_RULES}

    assert (found["backfill"].backfilled_jobs, found["backfill"].yielded_jobs) == (1, 1)
    assert found["backfill"].gpu_hours_lost > 0
    assert found["backfill"].waits["scavenger"].p50_s <= found["hold"].waits["scavenger"].p50_s


def test_no_holder_of_a_dozen_random_clusters_starts_after_its_estimate() -> None:
    backfilled = 0
    for seed in range(12):
        random = Random(seed)
        shapes: list[dict[str, Any]] = [{"pods": 2}, {"gpus": 4}, {}]
        jobs = [
            with_deadline(f"j{at}", random.randint(0, 100) * 300.0, random.choice((0.25, 0.5, 1.0, 3.0)), **shape)
            for at in range(60)
            for shape in [random.choice(shapes)]
        ]
        found = {name: replay_tiers(name, NODES, jobs, seed) for name in HOLD_RULES}
        backfilled += found["backfill"].backfilled_jobs
        assert [each.late_holders for each in found.values()] == [0, 0], seed

    assert backfilled > 0


def test_simulate_shows_backfill_where_jobs_have_deadlines() -> None:
    command = ["simulate", "--cluster", "dgx-a100*8", "--workload", str(BACKFILL_EXAMPLE)]

    text = CliRunner().invoke(main, [*command, "--policies", "hold,backfill"])
    found = json.loads(CliRunner().invoke(main, [*command, "-o", "json"]).output)["replays"]

    assert text.exit_code == 0, text.output
    assert "holders that started late" in text.output
    assert [each["policy"] for each in found] == [*RULES, *HOLD_RULES]
    held, backfilled = found[-2:]
    assert backfilled["utilisation"] > held["utilisation"]
    assert backfilled["waits"]["low"]["p50_s"] < held["waits"]["low"]["p50_s"]
    assert (held["late_holders"], backfilled["late_holders"]) == (0, 0)


@pytest.mark.parametrize("policy", [*RULES, *HOLD_RULES])
def test_a_job_that_starts_after_the_last_arrival_uses_no_negative_time(policy: str) -> None:
    """Jobs start at ticks; the last job arrives between two of them."""
    jobs = [job("low", 0.0, 8, hours=1.0, priority=-10), urgent(100.0, pods=2)]

    found = replay_tiers(policy, NODES, jobs, 1)

    assert 0.0 <= found.useful <= found.utilisation <= 1.0
    assert found.utilisation > 0.0


def test_the_table_names_jobs_that_never_started_and_tiers_without_jobs() -> None:
    jobs = [job("low", 0.0, 8, priority=-10), job("low-2", 0.0, 8, priority=-10), urgent(100.0, pods=2)]

    text = tiers_text([replay_tiers("none", NODES, jobs, 1)], "about")

    row = next(line for line in text.splitlines() if line.lstrip().startswith("none"))
    assert row.split("  ")[-1].strip() == "0 min / 0 min"
    assert "(1 of 1 never started)" in row
    assert " - " in row


@pytest.mark.parametrize("width", [210, 120, 100, 80, 60])
def test_a_narrow_terminal_drops_columns_and_keeps_the_loss_and_the_waits_of_critical_jobs(width: int) -> None:
    figures = [replay_tiers("none", NODES, [urgent(100.0, pods=2)], 1)]

    text = tiers_text(figures, "about", width)

    assert all(len(line) <= width for line in text.splitlines())
    title, row = text.split("\n\n")[1].splitlines()
    shown = [each for each in titles() if each and f"  {each}  " in f"{title}  "]
    assert {"GPU-hours lost", "wait critical p50 / p95"} <= set(shown)
    assert (len(shown) == len(titles()) - 1) == (width == 210)
    assert row.split()[:2] == ["none", "0"]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("prio", "5", "the unknown column 'prio'; expected name, pods"),
        ("priority", "high", "priority 'high' is not a number"),
        ("num_gpu", "1.5", "num_gpu '1.5' is not a whole number"),
        ("workload", "trainng", "workload 'trainng' is not training, inference"),
        ("island", "yes", "island 'yes' is not required"),
    ],
)
def test_a_value_that_would_be_ignored_or_rounded_is_an_error(column: str, value: str, says: str) -> None:
    row = {"name": "a", "pods": "1", "num_gpu": "8", "arrival_s": "0", "duration_s": "60"} | {column: value}

    with pytest.raises(TieredWorkloadError) as error:
        read_tiered_jobs(f"{','.join(row)}\n{','.join(row.values())}\n")

    assert says in str(error.value)
