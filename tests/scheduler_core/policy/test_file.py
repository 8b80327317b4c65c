"""Policy files: the resulting policies, and the texts of faults."""

from __future__ import annotations

from itertools import pairwise

import jsonschema
import pytest
import yaml

from gputopo.model import Interconnect
from scheduler_core.policy.demand_mix import Demand, DemandMix
from scheduler_core.policy.factors import Weights
from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.policy.limits import BackfillMode, BackfillPolicy, GpuLimit, NamespaceLimits
from scheduler_core.policy.models import WeightsModel, policy_schema
from scheduler_core.policy.policy import FillBand, Handling, Policy, WorkloadWeights
from scheduler_core.policy.profiles import BUILT_IN, Policies, PolicyProfile, ProfileMatch
from scheduler_core.policy.show import EffectiveSection, EffectiveValue, effective_values, effective_values_text
from scheduler_core.policy.workload_class import WorkloadClass
from scheduler_core.request.pod_request import ParsingPolicy, Strength
from scheduler_core.request.workload_type import DETECTION_RULES

HEAD = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
WHOLE = f"""{HEAD}staleness:
  after: 20m
  handling: refuse
workloadClass:
  demands: preferred
  rules:
    service: false
    torchrun: true
defaults:
  weights:
    numa: 0
  shortlist: 10
  requiredTopologies: [nvlink]
  isolation: preferred
profiles:
  - name: cheap
    match:
      schedulerName: cost-optimized-scheduler
      namespace: [a, b]
      workloadClass: [training, default]
    weights:
      cost: 6
      onDemand: 1.5
    vram: {{low: 0.5, high: 0.6}}
    degraded: refuse
    isolation: required
    preferNumaZero: false
    halfCost: 3.5
    generation:
      enough: ampere
    requiredTopologies: [pcie, nvswitch]
  - name: fast
    match: {{}}
    requiredTopologies: [nvswitch]
    generation: {{}}
    mix:
      - {{gpus: 1, weight: 3.0}}
      - {{share: 0.25, cpu: 1.5, products: [A100, L4], weight: 1.0}}
"""
FAST_MIX = DemandMix(((Demand(1), 3.0), (Demand(0, 250, 1500, frozenset({"A100", "L4"})), 1.0)))


def _kinds(**weights: float) -> WorkloadWeights:
    return WorkloadWeights(*(each._replace(**weights) for each in WorkloadWeights()))


def test_whole_file() -> None:
    base = Policy(
        weights=Weights(numa=0),
        workload_weights=_kinds(numa=0),
        stale=Handling.REFUSE,
        stale_after_s=1200.0,
        shortlist=10,
    )
    cheap = base._replace(
        name="cheap",
        weights=Weights(numa=0, cost=6, on_demand=1.5),
        workload_weights=_kinds(numa=0, cost=6, on_demand=1.5),
        fill_bands=FillBand(0.5, 0.6),
        degraded=Handling.REFUSE,
        prefer_numa_zero=False,
        half_cost=3.5,
        enough_generation=7,
    )
    match = ProfileMatch(
        frozenset({"cost-optimized-scheduler"}),
        frozenset({"a", "b"}),
        frozenset({WorkloadClass.TRAINING, WorkloadClass.DEFAULT}),
    )

    assert parse_policy_file(WHOLE, "p").policies == Policies(
        (
            PolicyProfile(cheap, match, None, Strength.REQUIRED),
            PolicyProfile(
                base._replace(name="fast", demand_mix=FAST_MIX),
                ProfileMatch(),
                Interconnect.NVSWITCH,
                Strength.PREFERRED,
            ),
            PolicyProfile(base, ProfileMatch(), Interconnect.NVLINK, Strength.PREFERRED),
        ),
        ParsingPolicy(tuple(rule for rule in DETECTION_RULES if rule.name != "service"), Strength.PREFERRED),
    )


def test_empty_file_is_the_built_in_policy() -> None:
    assert parse_policy_file(HEAD, "p").policies == BUILT_IN


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(
            "staleness: {after: 15}", "p:3:13: staleness.after: 15 should be a duration like 90s, 15m or 1h", id="unit"
        ),
        pytest.param(
            "staleness: {after: 1d}", "p:3:13: staleness.after: '1d' should be a duration like 90s, 15m or 1h", id="day"
        ),
        pytest.param(
            "defaults: {degraded: maybe}",
            "p:3:12: defaults.degraded: 'maybe' should be 'ignore', 'avoid' or 'refuse'",
            id="one of",
        ),
        pytest.param(
            "workloadClass:\n  rules:\n    torchrum: false",
            "p:5:5: workloadClass.rules.torchrum: 'torchrum' should be one of pytorchjob, mpijob",
            id="rule",
        ),
        pytest.param(
            "defaults:\n  weights:\n    cots: 5",
            "p:5:5: defaults.weights.cots: unknown key; allowed: bandwidth, leftover, numa, nic, health, "
            "contiguous, isolation, siblings, packing, spread, utilisation, cost, spot, onDemand, generation, "
            "measuredIdle",
            id="weight",
        ),
        pytest.param(
            "defaults: {weights: {cost: -1}}",
            "p:3:22: defaults.weights.cost: -1 should be greater than or equal to 0",
            id="negative weight",
        ),
        pytest.param("defaults: {weights: {cost: .nan}}", "p:3:22: defaults.weights.cost: nan should be", id="nan"),
        pytest.param("defaults: {halfCost: .inf}", "p:3:12: defaults.halfCost: inf should be a finite", id="infinite"),
        pytest.param(
            "defaults: {vram: {low: 0.9}}", "p:3:12: defaults.vram: low 0.9 should not be above high 0.8", id="band"
        ),
        pytest.param(
            "defaults: {generation: {enough: amper}}",
            "p:3:25: defaults.generation.enough: 'amper' should be one of tesla, fermi, kepler",
            id="family",
        ),
        pytest.param(
            "profiles:\n  - match: {}\n    name: a\n    match2: 1",
            "p:6:5: profiles.0.match2: unknown key; allowed: weights, requiredTopologies, minVram, vram, degraded, ",
            id="in a list",
        ),
        pytest.param(
            "profiles:\n  - name: a\n    match: {scheduleName: x}",
            "p:5:13: profiles.0.match.scheduleName: unknown key; allowed: schedulerName, namespace, workloadClass",
            id="match",
        ),
        pytest.param("profiles:\n  - match: {}", "p:4:5: profiles.0.name is missing", id="missing in a list"),
        pytest.param("defaults: {mix: []}", "p:3:12: defaults.mix: should name at least one", id="empty mix"),
        pytest.param(
            "defaults:\n  mix:\n    - {gpus: 1, share: 0.5, weight: 1.0}",
            "p:5:7: defaults.mix.0: should set either gpus or share",
            id="two sizes",
        ),
        pytest.param(
            "defaults: {mix: [{weight: 1.0}]}", "p:3:18: defaults.mix.0: should set either gpus or share", id="no size"
        ),
        pytest.param("defaults: {mix: [{gpus: 1}]}", "p:3:18: defaults.mix.0.weight is missing", id="no frequency"),
        pytest.param(
            "defaults: {mix: [{gpus: 1, weight: 0.0}]}",
            "p:3:28: defaults.mix.0.weight: 0.0 should be greater than 0",
            id="frequency 0",
        ),
        pytest.param(
            "defaults: {mix: [{gpu: 1, weight: 1.0}]}",
            "p:3:19: defaults.mix.0.gpu: unknown key; allowed: weight, gpus, share, cpu, products",
            id="kind of request",
        ),
        pytest.param("profiles: 5", "p:3:1: profiles should be a list", id="no list"),
        pytest.param("profiles: [5]", "p:3:12: profiles.0 should be a mapping of keys to values", id="no mapping"),
        pytest.param("defaults: 5", "p:3:1: defaults should be a mapping of keys to values", id="no mapping either"),
        pytest.param(
            "workloadClass: {rules: 5}",
            "p:3:17: workloadClass.rules should be a mapping of keys to values",
            id="no dict",
        ),
        *(
            pytest.param(
                f"defaults: {{minVram: {value}}}",
                f"p:3:12: defaults.minVram: {shown} should be an amount of GPU memory above 0, or left out; "
                "example: 40Gi",
                id=f"memory {value}",
            )
            for value, shown in (("lots", "'lots'"), ("0Gi", "'0Gi'"), ("-1Gi", "'-1Gi'"), ("9e99Gi", "'9e99Gi'"))
        ),
        pytest.param(
            "defaults: {requiredTopologies: []}",
            "p:3:12: defaults.requiredTopologies should name at least one",
            id="empty list",
        ),
        pytest.param(
            "profiles: [{name: a, match: {}}, {name: a, match: {}}]",
            "p:1:1: profiles should have different names; several are called a",
            id="same name",
        ),
        pytest.param(
            "profiles: [{name: default, match: {}}]", "p:1:1: no profile should be called default", id="taken name"
        ),
        pytest.param("defaults: {}\ndefaults: {}", "p:4:1: invalid YAML: duplicate key 'defaults'", id="twice"),
        pytest.param("? [a]\n: b", "p:3:3: invalid YAML: a key should be a scalar", id="strange key"),
        pytest.param("defaults: [", "p:3:12: invalid YAML: expected the node content", id="open bracket"),
        pytest.param("defaults: \x00", "p:1:1: invalid YAML: unacceptable character #x0000", id="control character"),
        pytest.param("defaults: &a [*a]", "p:3:1: defaults should be a mapping", id="an alias of itself"),
        pytest.param("defaults: " + "[" * 5000, "p:1:1: invalid YAML: maximum recursion depth", id="too deep"),
        pytest.param("defaults: 2026-13-45", "p:3:11: invalid YAML: '2026-13-45' is not a valid timestamp", id="date"),
        pytest.param("defaults: !!bool maybe", "p:3:11: invalid YAML: 'maybe' is not a valid bool", id="boolean"),
        pytest.param(f"defaults: {'9' * 5000}", f"p:3:11: invalid YAML: '{'9' * 60}' is not a valid int", id="digits"),
        pytest.param("#" * 2**20, "p:1:1: the file has 10486", id="too large"),
    ],
)  # fmt: skip
def test_an_error_has_its_position_and_the_allowed_values(body: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy_file(HEAD + body, "p")

    assert str(caught.value).startswith(said)


def test_nested_aliases_are_visited_once() -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in pairwise("abcdefghijklmnop")
    )

    with pytest.raises(PolicyError, match=r"p:1:1: a: unknown key"):
        parse_policy_file(bomb, "p")


def test_all_faults_are_reported_in_the_order_of_the_file() -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy_file("kind: Policy\ndefaults: {shortlist: 0}\n", "p")

    assert str(caught.value).splitlines() == [
        "p:1:1: apiVersion is missing",
        "p:1:1: kind: 'Policy' should be PlacementPolicy",
        "p:2:12: defaults.shortlist: 0 should be greater than or equal to 1",
    ]


@pytest.mark.parametrize("body", ["", "# nothing\n", "[]", "just words"])
def test_document_that_is_not_a_mapping_is_rejected(body: str) -> None:
    with pytest.raises(PolicyError, match="p:1:1"):
        parse_policy_file(body, "p")


def test_every_weight_can_be_set() -> None:
    assert set(WeightsModel.model_fields) == set(Weights._fields)


def test_the_old_key_of_workload_classes_means_the_same() -> None:
    old = WHOLE.replace("workloadClass:", "personality:")

    assert parse_policy_file(old, "p").policies == parse_policy_file(WHOLE, "p").policies
    assert list(jsonschema.Draft202012Validator(policy_schema()).iter_errors(yaml.safe_load(old))) == []
    for key, position in (("workloadClass: {}\npersonality: {}", "p:4:1"), ("personality: {rules: 5}", "p:3:15")):
        with pytest.raises(PolicyError, match=f"^{position}: "):
            parse_policy_file(HEAD + key, "p")


def test_a_factor_may_have_the_name_of_the_old_key() -> None:
    with pytest.raises(PolicyError, match="personality"):
        parse_policy_file(HEAD + "defaults: {weights: {personality: 1}}", "p")


def test_published_schema_accepts_what_the_parser_accepts() -> None:
    validator = jsonschema.Draft202012Validator(policy_schema())
    jsonschema.Draft202012Validator.check_schema(policy_schema())

    assert list(validator.iter_errors(yaml.safe_load(WHOLE))) == []
    assert list(validator.iter_errors(yaml.safe_load(HEAD + "defaults: {weights: {cots: 1}}")))
    assert list(validator.iter_errors(yaml.safe_load(HEAD + "workloadClass: {rules: {torchrum: false}}")))


def test_backfill() -> None:
    written = parse_policy_file(HEAD + "backfill: {mode: deadline}", "p").policies.backfill
    assert written == BackfillPolicy(BackfillMode.DEADLINE, 30.0)
    assert parse_policy_file(HEAD + "backfill: {mode: off, maxGrace: 5s}", "p").policies.backfill == BackfillPolicy(
        BackfillMode.OFF, 5.0
    )
    with pytest.raises(PolicyError, match="backfill"):
        parse_policy_file(HEAD + "backfill: {mode: always}", "p")


class TestShow:
    """Effective values and their origins."""

    def _values(self, part: EffectiveSection) -> dict[str, tuple[str, str]]:
        return {value.setting: (value.value, value.origin) for value in part.values}

    def test_built_in(self) -> None:
        everything, default = effective_values(None)

        assert (everything.title, default.title) == ("all pods", "profile default: all other pods")
        assert {value.origin for part in (everything, default) for value in part.values} == {"built in"}
        shown = self._values(everything)
        assert shown["preemption.mode"] == ("dry-run", "built in")
        assert {key: value for key, value in shown.items() if not key.startswith("preemption.")} == {
            "staleness.after": ("900s", "built in"),
            "staleness.handling": ("avoid", "built in"),
            "workloadClass.demands": ("required", "built in"),
            "workloadClass.rules": ("all", "built in"),
            "gangs.maxHoldAge": ("43200s", "built in"),
            "gangs.maxTimeout": ("900s", "built in"),
            "gangs.heldGpus": ("50%", "built in"),
            "gangs.queuedGangs": ("1000", "built in"),
            "gangs.gatedPods": ("10000", "built in"),
            "gangs.startingGangs": ("100", "built in"),
            "backfill.mode": ("off", "built in"),
            "backfill.maxGrace": ("30s", "built in"),
        }
        values = self._values(default)
        assert values["weights.health"] == ("1 (training 3)", "built in")
        assert values["weights.onDemand"] == ("0", "built in")
        assert values["requiredTopologies"] == ("pcie, nvlink, nvswitch", "built in")
        assert values["isolation"] == ("as pods say", "built in")
        assert values["minVram"] == ("none", "built in")
        assert values["generation.enough"] == ("none: the newer the better", "built in")
        assert values["mix"] == ("1 GPU 50%, 2 GPUs 20%, 4 GPUs 15%, 8 GPUs 15%", "built in")

    def test_profile_overrides_defaults_and_defaults_override_built_in_values(self) -> None:
        everything, cheap, fast, default = effective_values(parse_policy_file(WHOLE, "p"))

        assert cheap.title == (
            "profile cheap: schedulerName cost-optimized-scheduler and namespace a or b and "
            "workloadClass default or training"
        )
        assert self._values(everything)["staleness.after"] == ("1200s", "line 4")
        assert self._values(everything)["workloadClass.rules"] == ("all but service", "line 8")
        values = self._values(cheap)
        assert values["weights.cost"] == ("6", "line 24")
        assert values["weights.numa"] == ("0", "line 13")
        assert values["weights.nic"] == ("1", "built in")
        assert values["vram.high"] == ("0.6", "line 26")
        assert values["generation.enough"] == ("ampere", "line 32")
        assert values["requiredTopologies"] == ("pcie, nvlink, nvswitch", "line 33")
        assert self._values(fast)["requiredTopologies"] == ("nvswitch", "line 36")
        assert self._values(fast)["generation.enough"] == ("none: the newer the better", "built in")
        mix = "1 GPU 75%, 0.25 of a GPU with 1.5 cores on A100 or L4 25%"
        assert self._values(fast)["mix"] == (mix, "line 38")
        assert self._values(default)["requiredTopologies"] == ("nvlink, nvswitch", "line 15")
        assert self._values(default)["isolation"] == ("preferred", "line 16")

    def test_text_has_a_line_for_each_value(self) -> None:
        part = EffectiveSection(
            "profile a: all other pods",
            (EffectiveValue("weights.x", "1", "built in"), EffectiveValue("y", "22", "line 3")),
        )

        assert (
            effective_values_text([part])
            == "profile a: all other pods\n  weights.x  1   built in\n  y          22  line 3\n"
        )


LIMITS = (
    HEAD
    + """
gangs:
  maxHoldAge: 2h
  maxTimeout: 5m
  heldGpus: 25%
  namespaces:
  - name: [team-a, team-b]
    heldGpus: 64
  - name: team-c
    queuedGangs: 5
"""
)


class TestGangLimits:
    """Limits of gangs for each namespace."""

    def test_limits_of_a_namespace_override_those_of_all(self) -> None:
        limits = parse_policy_file(LIMITS, "p").policies.limits

        assert (limits.max_hold_age_s, limits.max_timeout_s) == (7200.0, 300.0)
        assert limits.limits_of("other") == NamespaceLimits(GpuLimit(percent=25))
        assert limits.limits_of("team-a") == limits.limits_of("team-b") == NamespaceLimits(GpuLimit(64))
        assert limits.limits_of("team-c") == NamespaceLimits(GpuLimit(percent=25), queued_gangs=5)

    def test_a_namespace_has_one_entry(self) -> None:
        with pytest.raises(
            PolicyError, match="gangs: namespaces should name each namespace once; named several times:"
        ):
            parse_policy_file(LIMITS + "  - {name: [team-a], gatedPods: 1}", "p")

    def test_a_share_is_at_least_two_nodes_of_eight_gpus(self) -> None:
        assert [GpuLimit(percent=25).max_gpus(total) for total in (0, 16, 64, 100, 1000)] == [16, 16, 16, 25, 250]
        assert [GpuLimit(gpus).max_gpus(1000) for gpus in (0, 8, 2000)] == [0, 8, 2000]
        assert GpuLimit(percent=0).max_gpus(1000) == 0  # off, as 0 is

    def test_shown_with_their_lines(self) -> None:
        everything, _ = effective_values(parse_policy_file(LIMITS, "p"))

        start = HEAD.count("\n")
        shown = [value for value in everything.values if value.setting.startswith("gangs.")]
        assert shown == [
            EffectiveValue("gangs.maxHoldAge", "7200s", f"line {start + 3}"),
            EffectiveValue("gangs.maxTimeout", "300s", f"line {start + 4}"),
            EffectiveValue("gangs.heldGpus", "25%", f"line {start + 5}"),
            EffectiveValue("gangs.queuedGangs", "1000", "built in"),
            EffectiveValue("gangs.gatedPods", "10000", "built in"),
            EffectiveValue("gangs.startingGangs", "100", "built in"),
            EffectiveValue("gangs.heldGpus of team-a, team-b", "64", f"line {start + 8}"),
            EffectiveValue("gangs.queuedGangs of team-c", "5", f"line {start + 10}"),
        ]

    @pytest.mark.parametrize(
        "value", ["-1", "true", "1.5", "101%", "5 %", "many", "'64'", "[1]", "\u0665%"], ids=lambda value: value
    )
    def test_invalid_number_of_gpus(self, value: str) -> None:
        with pytest.raises(PolicyError, match=r"gangs\.heldGpus: .*should be a number of GPUs like 64, or a share"):
            parse_policy_file(HEAD + f"gangs: {{heldGpus: {value}}}", "p")

    def test_unknown_key_of_a_namespace(self) -> None:
        with pytest.raises(PolicyError, match=r"namespaces\.0\.gpus: unknown key; allowed: heldGpus, queuedGangs"):
            parse_policy_file(HEAD + "gangs: {namespaces: [{name: a, gpus: 1}]}", "p")
