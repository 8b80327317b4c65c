"""The attacks that gputopo did not withstand once, repeated: a table with figures before and now.

Run: ``make attacks``. Each row runs tests that attack the real API server or the real server process, and measure the
figures of "now".
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FIGURE = "attack"  # the property of a test's report with a figure of this table


class Attack(NamedTuple):
    """A row of the table."""

    name: str
    before: str
    tests: tuple[str, ...]  # of pytest
    now: str  # if all tests pass; their figures are added


_SLOW_PEERS = "tests/scheduler_core/runtime/test_http_server_slow_peers.py"
_OBJECTS = "tests/e2e/gangs/test_hostile_objects.py"
_GATING = "tests/e2e/daemonset/test_gating.py"
_PREEMPTION = "tests/e2e/gangs/test_hostile_preemption.py"
_HOLDS = "tests/e2e/gangs/test_hostile_holds.py"
_BUDGETS = "tests/e2e/gangs/test_hostile_budgets.py"
_LATE = "tests/e2e/gangs/test_late_protection.py"
_FULL_NODES = "tests/e2e/gangs/test_full_nodes.py"
ATTACKS = (
    Attack(
        "Pod, Job, Node annotation nested 1,000 to 3,000 levels; restarts while they exist",
        "all watches end, every Filter call 503 after 120 s, for ever",
        (f"{_OBJECTS}::test_deeply_nested_objects_stop_nothing",),
        "pods and gangs placed; 0 unreadable objects; commands end with 0",
    ),
    Attack(
        "managed fields of own objects (Node, NodeGpus, Lease, ledger, reservation), 1,000 to 9,000 levels",
        "not tried",
        ("tests/e2e/daemonset/test_deep_managed_fields.py",),
        "keys restored and cleaned up; gangs placed",
    ),
    Attack(
        "400 pods of a megabyte, restarts",
        "829 MiB (extender), 834 MiB (planner)",
        ("tests/e2e/gangs/test_large_objects.py",),
        "",
    ),
    Attack(
        "forged placements on all four nodes",
        "four nodes blocked for ever",
        ("tests/e2e/gangs/test_hostile_tenant.py",),
        "a gang and pods get these nodes",
    ),
    Attack(
        "1,500 half-sent requests",
        "101 of 111 probes reset",
        (f"{_SLOW_PEERS}::test_half_sent_requests_keep_no_probe_out",),
        "",
    ),
    Attack(
        "300 peers that pipeline /gangs and never read",
        "85 to 598 MiB",
        (f"{_SLOW_PEERS}::test_peers_that_pipeline_and_never_read_cost_a_bounded_memory",),
        "",
    ),
    Attack(
        "trailers without end; 6,000 headers; 20,000 escapes in a URL",
        "249 MiB (extender), 741 MiB (planner), 1,518 MiB (ui-server)",
        ("tests/scheduler_core/runtime/test_http_server_heads.py",),
        "the connection ends at 64 KiB, 100 headers, a URL of 8 KiB",
    ),
    Attack(
        "a member of high priority without GPUs, and an old one",
        "the gang jumps the queue",
        ("tests/e2e/gangs/test_fairness.py::test_a_high_priority_member_without_gpus_does_not_move_a_gang_forward",),
        "it keeps its place",
    ),
    Attack(
        "a gang of priority -1000 that never fits",
        "14 GPUs kept from pods of priority 100000 without end",
        ("tests/e2e/gangs/test_hold_limits.py",),
        "pods of a higher priority start; age and GPUs of holds end at their limits",
    ),
    Attack(
        "scavengers with a grace period of a year: of a pod, of a gang's member without GPUs, of a deletion",
        "a critical gang waits as long",
        (f"{_PREEMPTION}::test_an_owner_chooses_no_grace_period_above_the_limit_of_the_policy",),
        "the gang starts: an eviction gives a pod at most maxGrace",
    ),
    Attack(
        "one evicted pod of a Deployment; a victim that ends slowly",
        "its other pods protected for an hour; no other preemption for gangs of this priority for 70 minutes",
        (
            f"{_PREEMPTION}::test_one_evicted_pod_of_a_controller_does_not_protect_the_others",
            f"{_PREEMPTION}::test_a_victim_that_ends_slowly_delays_the_next_preemption_by_a_minute",
        ),
        "the gangs start",
    ),
    Attack(
        "a PodDisruptionBudget that allows nothing once the first pod of a gang terminates",
        "a critical gang not started within 90 s; 20 minutes by the code",
        (
            f"{_BUDGETS}::test_a_budget_that_allows_nothing_once_the_first_pod_terminates_delays_a_gang_by_half_a_minute",
        ),
        "",
    ),
    Attack(
        "a PodDisruptionBudget that a tenant creates when the first of its pods is evicted",
        "a pod of another tenant evicted in vain; a critical gang not started within 50 s",
        (f"{_LATE}::test_a_budget_that_a_tenant_creates_when_its_first_pod_is_evicted_comes_too_late",),
        "",
    ),
    Attack(
        "the same by the owner of a gang of many pods without GPUs and one with eight",
        "one or two pods of other tenants evicted in vain; a critical gang not started within 50 s",
        (f"{_LATE}::test_many_members_without_gpus_do_not_protect_the_member_with_gpus",),
        "",
    ),
    Attack(
        "hundreds of PodDisruptionBudgets of 300 kB",
        "980: a critical gang not started within 60 s; planner 88 to 418 MiB",
        (f"{_BUDGETS}::test_large_budgets_neither_delay_a_preemption_nor_take_the_memory_of_the_planner",),
        "",
    ),
    Attack(
        "members without GPUs, and evictions of own pods, up to maxEvictionsPerHour",
        "a critical gang not started within 60 s",
        (f"{_BUDGETS}::test_members_without_gpus_and_evictions_of_own_pods_protect_no_gang",),
        "",
    ),
    Attack(
        "a gang that waits for a pod of its own tenant: one GPU on each node, or a hold of its own",
        "2 x 8 GPUs do not start on free nodes within 40 s; other tenants get no hold",
        (
            f"{_HOLDS}::test_few_gpus_of_each_node_keep_no_whole_nodes_from_others",
            f"{_HOLDS}::test_a_gang_that_waits_for_a_pod_of_its_own_tenant_keeps_no_other_tenant_from_a_hold",
        ),
        "the first gets no hold",
    ),
    Attack(
        "deadlines of Jobs that are raised once capacity is held on their nodes",
        "the gang with the hold never starts",
        (f"{_HOLDS}::test_a_hold_leaves_nodes_whose_jobs_get_a_later_deadline",),
        "",
    ),
    Attack(
        "pods without GPUs that kube-scheduler has nominated to a node: they wait for a slow volume",
        "gangs fail, or wait for 41 to more than 150 s",
        (f"{_FULL_NODES}::test_gangs_start_beside_a_node_where_a_pod_without_gpus_waits_for_its_volume",),
        "",
    ),
    Attack(
        "gangs that are deleted after pods were evicted for them, with new names",
        "166 pods of others evicted in 220 s",
        (f"{_PREEMPTION}::test_gangs_deleted_after_evictions_for_them_evict_no_more_pods_with_new_names",),
        "",
    ),
    Attack(
        "JobSets of 999 groups",
        "1,300: gangs wait for up to 33 s; planner +429 MiB",
        (f"{_OBJECTS}::test_jobsets_of_many_groups_neither_take_the_memory_of_the_planner_nor_delay_gangs",),
        "",
    ),
    Attack(
        "a pod with 20,000 annotations; an agent's token on a Node with 5,000",
        "15 s and 1.1 s of the API server's CPU time for each write",
        (
            f"{_GATING}::test_a_pod_with_many_annotations_costs_the_api_server_little_more_than_without_the_policies",
            "tests/e2e/daemonset/test_agent_token.py::test_a_node_with_thousands_of_annotations_is_not_compared",
        ),
        "",
    ),
    Attack(
        "an agent's token on keys of administrators, Events, NodeGpus of 10,000 allocations",
        "accepted; 2,386 Events in 5 s about another node",
        ("tests/e2e/daemonset/test_agent_token.py",),
        "403, 422",
    ),
    Attack(
        "own keys of a Node and NodeGpus edited by hand",
        "never restored; 409 for ever",
        ("tests/e2e/daemonset/test_restored_keys.py",),
        "restored within a heartbeat, with an Event",
    ),
    Attack(
        "pages read from the pod network",
        "names, UIDs and requests of all tenants",
        ("tests/e2e/daemonset/test_page_access.py",),
        "401, 403",
    ),
    Attack(
        "supply chain: base image by tag, tools without hash, pip and shell in the image",
        "all three",
        ("tests/daemonset/test_image.py", "tests/daemonset/test_images.py", "tests/test_workflows.py"),
        "digests, hashes; none in the image (the built image: make manifests)",
    ),
)


class Outcome(NamedTuple):
    """The result of the tests of a row."""

    failed: int
    passed: int
    figures: tuple[str, ...]


def run_tests(tests: tuple[str, ...]) -> Outcome:
    """Run the tests in a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-n",
            "0",
            "-o",
            "junit_family=xunit1",
        ]
        command += ["-m", "e2e or not e2e"]
        subprocess.run([*command, f"--junitxml={report}", *tests], check=False, stdout=sys.stderr)
        return _outcome(ET.parse(report).getroot()) if report.exists() else Outcome(1, 0, ())


def _outcome(report: ET.Element) -> Outcome:
    cases = list(report.iter("testcase"))
    failed = [each for each in cases if each.find("failure") is not None or each.find("error") is not None]
    skipped = [each for each in cases if each.find("skipped") is not None]
    return Outcome(len(failed), len(cases) - len(failed) - len(skipped), tuple(dict.fromkeys(_figures(cases))))


def _figures(cases: list[ET.Element]) -> Iterator[str]:
    for case in cases:
        for each in case.iter("property"):
            if each.get("name") == FIGURE:
                yield each.get("value", "")


def main() -> None:
    """Run all rows, or those whose name contains an argument, and print the table."""
    failed = 0
    print("| attack | before | now | tests |\n|---|---|---|---|")
    for attack in ATTACKS:
        if sys.argv[1:] and not any(each in attack.name for each in sys.argv[1:]):
            continue
        found = run_tests(attack.tests)
        is_held = found.passed > 0 and not found.failed
        failed += not is_held
        now = "; ".join(each for each in (attack.now, *found.figures) if each) if is_held else "**does not hold**"
        print(f"| {attack.name} | {attack.before} | {now} | {found.passed} |", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
