"""The rules of preemption: built-in rules, policy files, and the examples of the documentation."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from scheduler_core.policy.file import PolicyError, PolicyFile, parse_policy_file
from scheduler_core.policy.preemption import (
    DEFAULT_PREEMPTION,
    PreemptionMatch,
    PreemptionMode,
    PreemptionPeer,
    PreemptionPolicy,
    PreemptionRule,
    PreemptionWindow,
)
from scheduler_core.policy.profiles import BUILT_IN
from scheduler_core.policy.show import effective_values
from scheduler_core.policy.workload_class import WorkloadClass

HEAD = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
EXAMPLES = sorted((Path(__file__).parents[3] / "docs/examples/preemption").glob("*.yaml"))
SCAVENGER, NORMAL, CRITICAL = -1_000, 1_000, 100_000


def parsed(preemption: str) -> PreemptionPolicy:
    """The policy of a file with this text under ``preemption``."""
    return _file(preemption).policies.preemption


def _file(preemption: str) -> PolicyFile:
    indented = "\n".join(f"  {line}" for line in preemption.splitlines())
    return parse_policy_file(f"{HEAD}preemption:\n{indented}\n", "policy.yaml")


def decision(policy: PreemptionPolicy, victim: str, priority: int, beneficiary: str, of: int) -> str | None:
    """The name of the rule that allows the eviction; None: it is not allowed."""
    rule = policy.rule_for(
        PreemptionPeer("team", priority, WorkloadClass(victim)), PreemptionPeer("team", of, WorkloadClass(beneficiary))
    )
    return rule.name if rule is not None and rule.allow else None


@pytest.mark.parametrize(
    ("victim", "priority", "beneficiary", "of", "rule"),
    [
        pytest.param("scavenger", SCAVENGER, "batch", 0, "scavengers-preemptible", id="scavengers yield to all"),
        pytest.param(
            "inference", NORMAL, "default", CRITICAL, "normal-preemptible-by-critical", id="inference to critical"
        ),
        pytest.param("batch", NORMAL, "training", CRITICAL, "normal-preemptible-by-critical", id="batch to critical"),
        pytest.param("batch", 0, "training", NORMAL, None, id="batch not to normal"),
        pytest.param("training", NORMAL, "inference", CRITICAL, None, id="training of priority 1000 never"),
        pytest.param(
            "training", 999, "batch", NORMAL, "checkpointed-training-preemptible", id="other training to higher"
        ),
    ],
)
def test_the_built_in_table(victim: str, priority: int, beneficiary: str, of: int, rule: str | None) -> None:
    assert decision(DEFAULT_PREEMPTION, victim, priority, beneficiary, of) == rule


def test_built_in_training_is_protected_near_its_end_and_without_a_young_checkpoint() -> None:
    rule = DEFAULT_PREEMPTION.rules[-1]

    assert (rule.near_end_s, rule.needs_checkpoints, rule.max_checkpoint_age_s) == (7_200.0, True, 1_800.0)
    assert DEFAULT_PREEMPTION.mode is PreemptionMode.DRY_RUN
    assert BUILT_IN.preemption is DEFAULT_PREEMPTION


def test_a_file_sets_every_value() -> None:
    text = """mode: evict
rules:
  - name: a
    victims: {workloadClass: [batch, scavenger], namespace: lab, minPriority: -5, belowPriority: 5}
    beneficiaries: {minPriority: 7}
    price: 2.5
    minRuntime: 1m
    nearEnd: 1h
    needsCheckpoints: true
    maxCheckpointAge: 10m
    honoursNever: false
  - {name: b, allow: false}
wait: 5s
minRuntime: 2m
cooldown: 3m
maxEvictionsPerHour: 4
windows: [{days: [fri], opens: "22:00", closes: "06:30", zone: Europe/Berlin}]
neverLimit: 5m
defaultCheckpointAge: 6m
defaultRestart: 7m
maxLostWork: 8m
maxGrace: 9m
timeout: 10m
maxPlans: 11
maxSearch: 12s
"""

    assert parsed(text) == PreemptionPolicy(
        mode=PreemptionMode.EVICT,
        rules=(
            PreemptionRule(
                "a",
                PreemptionMatch(
                    frozenset({WorkloadClass.BATCH, WorkloadClass.SCAVENGER}), frozenset({"lab"}), at_least=-5, below=5
                ),
                PreemptionMatch(at_least=7),
                price=2.5,
                min_runtime_s=60.0,
                near_end_s=3_600.0,
                needs_checkpoints=True,
                max_checkpoint_age_s=600.0,
                honours_never=False,
            ),
            PreemptionRule("b", allow=False),
        ),
        wait_s=5.0,
        min_runtime_s=120.0,
        cooldown_s=180.0,
        max_evictions_per_hour=4,
        windows=(PreemptionWindow(frozenset({4}), 79_200.0, 23_400.0, "Europe/Berlin"),),
        never_limit_s=300.0,
        default_checkpoint_age_s=360.0,
        default_restart_s=420.0,
        max_lost_work_s=480.0,
        max_grace_s=540.0,
        timeout_s=600.0,
        max_plans=11,
        max_search_s=12.0,
    )


def test_mode_off_needs_no_quotes() -> None:
    assert parsed("mode: off").mode is PreemptionMode.OFF
    assert parsed("mode: 'off'") == DEFAULT_PREEMPTION._replace(mode=PreemptionMode.OFF)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param("mode: kill", "preemption.mode: 'kill'", id="mode"),
        pytest.param("rules: [{name: a, price: 0}]", "preemption.rules.0.price: 0", id="price"),
        pytest.param("rules: [{name: a, price: .inf}]", "preemption.rules.0.price: inf", id="infinite price"),
        pytest.param("rules: [{name: a}, {name: a}]", "several are called a", id="names"),
        pytest.param("windows: [{zone: Europe/Atlantis}]", "'Europe/Atlantis' should be a time zone", id="zone"),
        pytest.param("windows: [{zone: ../../etc/passwd}]", "should be a time zone", id="zone with a path"),
        pytest.param("windows: [{opens: 22:00}]", 'should be a time of day like "22:00"', id="sexagesimal number"),
        pytest.param("windows: [{opens: '6:00'}]", "'6:00' should be a time of day", id="time"),
        pytest.param("windows: [{opens: '06:00', closes: '06:00'}]", "should differ", id="empty window"),
        pytest.param(
            "windows: []", "preemption.windows: should name at least one window; leave it out", id="no window"
        ),
        pytest.param(
            "windows: [{opens: '24:00', closes: '00:00'}]", "opens and closes should differ", id="window of no time"
        ),
        pytest.param(
            'rules: [{name: a, victims: {namespace: "team-*"}}]',
            "preemption.rules.0.victims.namespace.0: 'team-*' should be the name of one namespace",
            id="pattern",
        ),
        pytest.param(
            "rules: [{name: a, beneficiaries: {minPriority: 10, belowPriority: 10}}]",
            "belowPriority 10 should be higher than minPriority 10: no pod matches both",
            id="no priority",
        ),
        pytest.param("rules: [{name: 3}]", "preemption.rules.0.name: 3 should be text, in quotes", id="text"),
        pytest.param(
            "rules: [{name: a, allow: maybe}]",
            "preemption.rules.0.allow: 'maybe' should be true or false",
            id="no Boolean",
        ),
        pytest.param(f"rules: [{{name: {'x' * 300}}}]", "xxx... should have at most 253 characters", id="long name"),
        pytest.param("wait: -1m", "preemption.wait: '-1m' should be a duration", id="duration"),
        pytest.param("rules: [{name: a, victims: {colour: red}}]", "unknown key; allowed: workloadClass", id="key"),
        pytest.param("maxPlans: 0", "preemption.maxPlans: 0", id="plans"),
    ],
)
def test_faults_are_named(text: str, fault: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parsed(text)

    assert fault in str(raised.value)


def test_a_list_with_a_faulty_entry_is_not_called_empty() -> None:
    with pytest.raises(PolicyError) as raised:
        parsed("windows: [{days: [Monday]}]")

    assert "'Monday' should be 'mon'" in str(raised.value)
    assert "at least one" not in str(raised.value)


def test_every_value_is_shown_with_its_line() -> None:
    everything, _ = effective_values(_file("wait: 5s\nrules: [{name: a, victims: {namespace: lab}, nearEnd: 1h}]"))

    shown = {each.setting: (each.value, each.origin) for each in everything.values}
    assert shown["preemption.wait"] == ("5s", "line 4")
    assert shown["preemption.cooldown"] == ("3600s", "built in")
    assert shown["preemption.windows"] == ("at any time", "built in")
    assert shown["preemption.rules.0"] == ("a: pods in namespace lab; price 1; near end 3600s; honours never", "line 5")


@pytest.mark.parametrize(
    ("when", "open_"),
    [
        pytest.param("2026-11-20T20:59:00", False, id="Friday, an hour earlier in Berlin than in UTC"),
        pytest.param("2026-11-20T21:00:00", True, id="Friday 22:00 in Berlin"),
        pytest.param("2026-11-21T05:29:00", True, id="Saturday morning, of the window of Friday"),
        pytest.param("2026-11-21T05:30:00", False, id="it has closed"),
        pytest.param("2026-11-21T22:00:00", False, id="Saturday"),
    ],
)
def test_a_window_over_midnight_belongs_to_the_day_on_which_it_opens(when: str, open_: bool) -> None:
    policy = parsed('windows: [{days: [fri], opens: "22:00", closes: "06:30", zone: Europe/Berlin}]')

    assert policy.is_open(datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()) is open_


def test_without_windows_pods_are_evicted_at_any_time() -> None:
    assert DEFAULT_PREEMPTION.is_open(0.0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_shipped_examples_are_valid_and_only_report(path: Path) -> None:
    policy = parse_policy_file(path.read_text(encoding="utf-8"), path.name).policies.preemption

    assert policy.mode is PreemptionMode.DRY_RUN
    assert policy.rules != DEFAULT_PREEMPTION.rules


def test_the_two_examples_are_opposite_fillings_of_one_table() -> None:
    batch, training = (parse_policy_file(each.read_text(), each.name).policies.preemption for each in EXAMPLES)

    def table(policy: PreemptionPolicy) -> dict[str, list[str]]:
        classes = ("training", "inference", "batch", "scavenger")
        return {
            taker: [each for each in classes if decision(policy, each, 0, taker, 500)]
            for taker in ("training", "inference")
        }

    assert table(training) == {"training": ["inference", "batch", "scavenger"], "inference": ["scavenger"]}
    assert table(batch) == {"training": ["scavenger"], "inference": ["training", "batch", "scavenger"]}
