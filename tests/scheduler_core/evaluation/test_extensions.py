"""Filters and factors of other packages: found, declared, called, isolated; with the example package of the docs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.labels.reasons import Reason
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.evaluation.evaluate import evaluate, evaluate_state
from scheduler_core.evaluation.extensions import CALLS, DEADLINE_S, MOST_FAILURES, ExtensionCalls
from scheduler_core.evaluation.score import Score, score_state
from scheduler_core.explain import explain
from scheduler_core.extender.decision_record import encode_decision, parse_decision, replay_differences
from scheduler_core.extender.extender import DecisionRecord, Extender
from scheduler_core.extender.metrics import ExtenderStatus, status_samples
from scheduler_core.planner.metrics import PlannerMetrics
from scheduler_core.planner.status import PlannerStatus
from scheduler_core.policy.cached_reader import MemoizedParser
from scheduler_core.policy.extensions import Extension, installed_extensions
from scheduler_core.policy.file import PolicyError, parse_policy_file
from scheduler_core.policy.profiles import Policies
from scheduler_core.policy.show import effective_values
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodRequest
from tests.extension_package import EXAMPLE, forget_evaluations, importable, install_example, write_distribution
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, kubelet_report, node, pod, record

HEAD = "apiVersion: gputopo.io/v1alpha1\nkind: PlacementPolicy\n"
BROKEN = '''
import time
from gputopo.labels.reasons import Reason

def raises(profile, node, policy):
    """It always raises."""
    raise RuntimeError("no such rack")

class Nameless(Exception):
    def __str__(self):
        raise ValueError("no text")

def nameless(profile, node, policy):
    raise Nameless

def exits(profile, node, policy):
    raise SystemExit(1)

def wrong(profile, node, policy):
    return True

def slow(profile, node, policy):
    time.sleep(0.06)
    return None

def too_much(profile, node, policy):
    return 2.0

def undeclared(profile, node, policy):
    return Reason.EXTENSION if node.extras.name == "n2" or profile.label("team") == "x" else None
'''
BROKEN_NAMES = {
    "gputopo.filters": {
        each.replace("_", "-"): f"broken_rules:{each}"
        for each in ("raises", "nameless", "exits", "wrong", "slow", "undeclared")
    }
    | {"missing": "no_such_module:f", "Bad_Name": "broken_rules:slow"},
    "gputopo.factors": {"too-much": "broken_rules:too_much", "raising": "broken_rules:raises"},
}


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Policies]:
    """The example package is installed; its policy file."""
    install_example(tmp_path)
    with importable(tmp_path):
        yield parse_policy_file((EXAMPLE / "policy.yaml").read_text(), "policy.yaml").policies


@pytest.fixture
def broken(tmp_path: Path) -> Iterator[None]:
    """A package is installed in which everything fails."""
    write_distribution(tmp_path, "broken_rules", BROKEN_NAMES)
    (tmp_path / "broken_rules.py").write_text(BROKEN)
    with importable(tmp_path):
        yield


def annotated(annotations: dict[str, str]) -> Pod:
    plain = pod("p", 2)
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, annotations=annotations))


def asking(policies: Policies, licence: str | None = None) -> PodRequest:
    found = policies.parse_pod(annotated({} if licence is None else {"example.com/licence": licence}))
    assert isinstance(found, PodRequest)
    return found


def at(policies: Policies, name: str = "n", **labels: str) -> NodeState:
    keys = {f"example.com/{key.replace('_', '-')}": value for key, value in labels.items()}
    return state_of(record(name, MACHINES["hgx_h100"](), held={}, labels=keys), NOW, policies.node_policy)


def test_a_filter_of_a_package_rejects_nodes(example: Policies) -> None:
    request, policy = asking(example, "matlab"), example.node_policy

    assert evaluate_state(request.profile, at(example), policy) is Reason.EXTENSION
    assert evaluate_state(request.profile, at(example, rack_licences="nastran"), policy) is Reason.EXTENSION
    assert isinstance(evaluate_state(request.profile, at(example, rack_licences="nastran.matlab"), policy), Score)
    assert isinstance(evaluate_state(asking(example).profile, at(example), policy), Score)


def test_a_factor_of_a_package_counts_with_its_weight(example: Policies) -> None:
    profile, policy = asking(example).profile, example.node_policy
    cool, hot, unknown = (
        score_state(profile, at(example, **labels), policy)
        for labels in ({"cooling_reserve": "80"}, {"cooling_reserve": "10"}, {"cooling_reserve": "much"})
    )

    assert [(part.raw, part.weight) for part in cool.parts if part.factor == "cooling"] == [(0.8, 4.0)]
    assert cool.points > hot.points > unknown.points


def test_nodes_that_agree_in_what_is_read_share_one_state(example: Policies) -> None:
    assert at(example, "a", rack_licences="x", other="1") is at(example, "b", rack_licences="x", other="2")
    assert at(example, "a", rack_licences="x") is not at(example, "b", rack_licences="y")


def test_pods_that_agree_in_what_is_read_share_one_profile(example: Policies) -> None:
    def profile(**annotations: str) -> object:
        found = example.parse_pod(annotated({f"example.com/{key}": text for key, text in annotations.items()}))
        assert isinstance(found, PodRequest)
        return found.profile

    assert profile(licence="x", note="1") == profile(licence="x", note="2")
    assert profile(licence="x") != profile(licence="y")


def test_cached_requests_are_not_mixed_up(example: Policies) -> None:
    """The watches of the extender and the planner remember the requests of equal pods."""
    parse = MemoizedParser(lambda: example)

    found = [parse(annotated(each)) for each in ({}, {"example.com/licence": "x"}, {"example.com/licence": "y"})]

    assert [each.profile.annotation("example.com/licence") for each in found if isinstance(each, PodRequest)] == [
        None,
        "x",
        "y",
    ]


def test_without_a_policy_that_uses_them_installed_packages_change_no_state(example: Policies) -> None:
    plain = Policies()
    assert example.node_policy.reads != plain.node_policy.reads

    assert at(plain, "a", rack_licences="x") is at(plain, "b", rack_licences="y")
    assert at(plain, "a").extras is None
    request = plain.parse_pod(annotated({"example.com/licence": "x"}))
    assert isinstance(request, PodRequest)
    assert request.profile.extras is None


def test_why_names_the_filter_and_the_factor(example: Policies) -> None:
    machine = MACHINES["hgx_h100"]()
    table = snapshot_of(
        [
            record("with", machine, held={}, labels={"example.com/rack-licences": "matlab"}),
            record("without", machine, held={}),
        ],
        NOW,
        example.node_policy,
    )

    found = explain(asking(example, "matlab"), table, None, example.node_policy, NOW)

    assert [(each.reason, each.nodes) for each in found.refused] == [("EXTENSION", ("without",))]
    why = "without: rejected by the filter rack-licence: The rack of the node must have the licence that the pod needs"
    assert why in found.notes
    (cooling,) = (each for each in found.best[0].factors if each.name == "cooling")
    assert cooling.measures == "The part of the cooling of the node's zone that is not in use (extension)"


def test_a_decision_with_extensions_is_replayed(example: Policies) -> None:
    machine, cache, records = MACHINES["hgx_h100"](), ClusterCache(example.node_policy), list[DecisionRecord]()
    licences = {"a": "matlab", "b": "nastran"}
    nodes = [
        NodeUpdate(name, parse_node(node(machine, labels={"example.com/rack-licences": text})))
        for name, text in licences.items()
    ]
    reports = [NodeGpusUpdate(name, kubelet_report(machine, {})) for name in licences]
    for kind, updates in ((NodeUpdate, nodes), (PodUpdate, []), (NodeGpusUpdate, reports)):
        cache.apply_batch(Batch(kind, tuple(updates), is_full_list=True), NOW)
    extender = Extender(cache, example.node_policy, lambda: NOW, records.append)
    extender.policies = example

    answer = extender.filter(annotated({"example.com/licence": "matlab"}), frozenset(licences))
    line = parse_decision(encode_decision(records[0]))

    assert answer.nodes == ("a",)
    assert (line.answer, line.policy) == (("a",), example.node_policy)
    assert list(replay_differences(line)) == []
    CALLS.disabled.add(("gputopo.filters", "rack-licence"))
    forget_evaluations()
    assert list(replay_differences(line)) == ["answered a; now no node"]


def test_the_reference_and_the_ranking_agree(example: Policies) -> None:
    machine = MACHINES["hgx_h100"]()
    names = {"a": "matlab", "b": "nastran", "c": "matlab.x"}
    records = [
        record(name, machine, held={}, labels={"example.com/rack-licences": text}) for name, text in names.items()
    ]
    table = snapshot_of(records, NOW, example.node_policy)

    decision = evaluate(asking(example, "matlab"), table, names, example.node_policy)

    assert sorted(decision.nodes) == ["a", "c"]
    assert decision.rejected == {"b": Reason.EXTENSION}


def test_the_effective_values_name_them(example: Policies) -> None:
    assert example.node_policy.factors == (("cooling", 4.0),)
    file = parse_policy_file((EXAMPLE / "policy.yaml").read_text(), "policy.yaml")
    rows = {each.setting: each.value for section in effective_values(file) for each in section.values}
    assert rows["filters"] == "rack-licence (on failure: refuse)"
    assert rows["factors"] == "cooling 4"


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "defaults: {filters: [{name: rack-licence}]}",
            "should be an installed entry point of the group gputopo.filters",
        ),
        ("defaults: {filters: [{name: missing}]}", "cannot be used: no_such_module:f: ModuleNotFoundError"),
        ("defaults: {filters: [{name: Bad_Name}]}", "cannot be used: its name is not of a-z, 0-9 and -"),
        ("defaults: {factors: {cooling: 2}}", "installed: raising, too-much"),
        ("defaults: {filters: [{name: slow, onFailure: maybe}]}", "onFailure: 'maybe' should be 'refuse' or 'ignore'"),
    ],
)
def test_names_that_cannot_be_used_are_faults_of_the_file(text: str, says: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_policy_file(HEAD + text, "p")

    assert says in str(error.value)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ["raises", "nameless", "exits", "wrong"])
@pytest.mark.parametrize(("on_failure", "passes"), [("refuse", False), ("ignore", True)])
def test_a_filter_that_fails_is_on_the_safe_side_and_disabled_after_failures(
    name: str, on_failure: str, passes: bool
) -> None:
    text = f"defaults: {{filters: [{{name: {name}, onFailure: {on_failure}}}]}}"
    policies = parse_policy_file(HEAD + text, "p").policies
    profile = asking(policies).profile

    for number in range(MOST_FAILURES + 2):
        found = evaluate_state(profile, at(policies, f"n{number}"), policies.node_policy)
        assert isinstance(found, Score) if passes else found is Reason.EXTENSION

    assert dict(CALLS.failures) == {("gputopo.filters", name, "error"): MOST_FAILURES}
    assert CALLS.disabled == {("gputopo.filters", name)}
    status = ExtenderStatus(
        True, extension_failures=dict(CALLS.failures), extensions_disabled=frozenset(CALLS.disabled)
    )
    samples = {(sample, labels): value for sample, labels, value in status_samples(status)}
    assert samples["gputopo_extension_failures", ("gputopo.filters", name, "error")] == MOST_FAILURES
    assert samples["gputopo_extension_disabled", ("gputopo.filters", name)] == 1
    planner = PlannerMetrics()
    planner.register_status(lambda: PlannerStatus(is_leader=True, not_ready_reason=None))
    labels = {"group": "gputopo.filters", "name": name}
    failed = planner.registry.get_sample_value("gputopo_extension_failures_total", {**labels, "outcome": "error"})
    assert (failed, planner.registry.get_sample_value("gputopo_extension_disabled", labels)) == (MOST_FAILURES, 1)


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ["too-much", "raising"])
def test_a_factor_that_fails_scores_nothing_and_the_others_count(name: str) -> None:
    policies = parse_policy_file(HEAD + f"defaults: {{factors: {{{name}: 5}}}}", "p").policies

    score = score_state(asking(policies).profile, at(policies), policies.node_policy)

    assert {part.factor: part.raw for part in score.parts}[name] == 0.0
    assert score.points > 0


@pytest.mark.usefixtures("broken")
def test_a_function_that_declares_nothing_sees_every_node_and_pod_by_itself() -> None:
    policies = parse_policy_file(HEAD + "defaults: {filters: [{name: undeclared}]}", "p").policies
    profile = asking(policies).profile

    assert evaluate_state(profile, at(policies, "n2"), policies.node_policy) is Reason.EXTENSION
    assert isinstance(evaluate_state(profile, at(policies, "n1"), policies.node_policy), Score)
    assert at(policies, "a") is not at(policies, "b")


def test_a_slow_answer_counts_and_disables_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    calls = ExtensionCalls(lambda: now[0])

    def slow(*_: object) -> None:
        now[0] += 2 * DEADLINE_S

    extension = Extension("slow", slow)
    with caplog.at_level(logging.WARNING):
        answers = [
            calls.call("gputopo.filters", extension, lambda each: each is None) for _ in range(MOST_FAILURES + 1)
        ]

    assert answers == [(True, None)] * MOST_FAILURES + [(False, None)]
    assert calls.failures["gputopo.filters", "slow", "slow"] == MOST_FAILURES
    assert len(caplog.records) == MOST_FAILURES


def test_a_success_in_between_keeps_a_function_enabled() -> None:
    answers = iter([1, None, 1, None, 1, None, 1, None])
    calls = ExtensionCalls()
    extension = Extension("moody", lambda: next(answers))

    found = [calls.call("gputopo.filters", extension, lambda each: each is None)[0] for _ in range(8)]

    assert found == [False, True] * 4
    assert calls.disabled == set()


@pytest.mark.usefixtures("broken")
def test_a_package_that_cannot_be_loaded_affects_no_other() -> None:
    installed = installed_extensions()

    assert {name for name, each in installed.filters.items() if each.error is None} == {
        "raises",
        "nameless",
        "exits",
        "wrong",
        "slow",
        "undeclared",
    }
    assert len(installed.filters["missing"].error or "") > 10


@pytest.mark.usefixtures("broken")
def test_the_simulator_places_with_the_filters_of_the_policy_file(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(HEAD + "defaults: {filters: [{name: raises}]}")
    options = ["--cluster", "8a100-2n-pairs12*2", "--jobs", "5", "--policies", "spread", "-o", "json"]

    result = CliRunner().invoke(main.main, ["simulate", *options, "--policy", str(tmp_path / "policy.yaml")])

    found = json.loads(result.stdout)
    assert {row["policy"]: row["never"] for row in found["replays"]} == {"spread": 0, "ours:default": 5}


@pytest.mark.parametrize(
    ("used", "note"),
    [
        ("filters: [{name: raises}]", "the filter raises is disabled after failures: 'RuntimeError: no such rack'"),
        ("filters: [{name: wrong, onFailure: ignore}]", "the filter wrong is disabled after failures: 'answered True"),
        ("factors: {too-much: 1}", "the factor too-much is disabled after failures: 'answered 2.0, a float'"),
    ],
)
def test_why_names_each_failing_function_with_its_last_failure(broken: None, used: str, note: str) -> None:
    """Commands have no log: before, they printed the word "extension", and nothing of a filter that passes then."""
    assert broken is None
    policies = parse_policy_file(f"{HEAD}defaults: {{{used}}}", "policy.yaml").policies
    request = asking(policies)
    nodes = [record(f"n{at}", MACHINES["hgx_h100"](), held={}) for at in range(4)]
    table = snapshot_of(nodes, NOW, policies.node_policy)

    found = explain(request, table, None, policies.policy_for(request), NOW)

    assert [each for each in found.notes if each.startswith(note)] != []
    assert logging.lastResort not in logging.getLogger("gputopo.extensions").handlers
    assert logging.getLogger("gputopo.extensions").hasHandlers()
