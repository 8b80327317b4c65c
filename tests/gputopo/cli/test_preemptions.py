"""``gputopo preemptions``, up to the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.crd.reservations import HeldCapacity, PlannedEviction, Preemption, ReservationSpec, spec_hash
from tests.api_server import Answer, api_server
from tests.gputopo.cli.cluster_objects import listed, pod
from tests.gputopo.cli.gang_objects import LEDGER, cluster, member, run

VICTIMS = (
    PlannedEviction("u-old-0", "b", "old-0", "gpu-0", "b/old", 2),
    PlannedEviction("u-old-1", "b", "old-1", "gpu-0", "b/old", 2),
    PlannedEviction("u-gone", "b", "gone", "gpu-0", "b/gone", 1),
)
INTENT = Preemption(VICTIMS, "scavengers", "evicts 3 pods of b/old and b/gone", 4.5, 12.25)
HOLD = ReservationSpec("llm", held=(HeldCapacity("gpu-0", 4),), preemption=INTENT)
LINE = {"uid": "H", "namespace": "a", "name": "llm-1", "hash": spec_hash(HOLD), "phase": "Held"}
HELD: dict[str, Any] = {
    "metadata": {"name": "llm-1", "namespace": "a", "uid": "H", "resourceVersion": "7"},
    "spec": msgspec.to_builtins(HOLD),
    "status": {"state": "Held", "deadline": "2026-11-21T12:00:00Z", "evicting": ["b/old"]},
}
RUNNING = [pod(name, 2, namespace="b", node="gpu-0", phase="Running") for name in ("old-0", "old-1")]
IN_EFFECT = {"placementledgers": listed({**LEDGER, "spec": {**LEDGER["spec"], "entries": [LINE]}})}
CLUSTER = {"placementreservations": listed(HELD), "pods": listed(*RUNNING), **IN_EFFECT}
DRY = {"units": ["c/idle"], "pods": 2, "gpu_hours": 0.5, "cost": None, "rule": "idle first", "reason": "evicts 2 pods"}
STATE = {"namespace": "a", "name": "next", "phase": "queued", "reason": "too few", "dry_run": DRY}
PAGE = Answer({"leads": True, "gangs": [STATE, {**STATE, "name": "none", "dry_run": None}]})
HEAD = (
    "NAMESPACE  GANG  MODE         UNITS          PODS LEFT  GPU-HOURS  COST  DEADLINE              RULE        "
    "REASON\n"
)
EVICTS = (
    "a          llm   evicting     b/old, b/gone  2/3        4.5        12.2  2026-11-21T12:00:00Z  scavengers  "
    "evicts 3 pods of b/old and b/gone\n"
)
WOULD = (
    "a          next  would evict  c/idle         -/2        0.5        -     -                     idle first  "
    "evicts 2 pods\n"
)


def test_running_preemptions_and_the_dry_run(tmp_path: Path) -> None:
    with api_server(cluster(**CLUSTER)) as server, api_server(lambda _: PAGE) as planner:
        shown = run(server, tmp_path, "preemptions", "--server", planner.url)

    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, HEAD + EVICTS + WOULD, "")


COSTS = [
    {"name": "c/idle", "pods": 2, "gpu_hours": 0.5, "cost": 1.5, "rule": "idle first", "reason": "batch, saved"},
    {"name": "c/old", "pods": 1, "gpu_hours": 2.0, "cost": None, "rule": "last", "reason": "training, saved"},
]


def test_of_several_units_of_a_dry_run_the_cost_of_each_is_shown(tmp_path: Path) -> None:
    """Only the cost of all victims together was shown."""
    dry = {**DRY, "units": ["c/idle", "c/old"], "pods": 3, "gpu_hours": 2.5, "unit_costs": COSTS}
    page = Answer({"leads": True, "gangs": [{**STATE, "dry_run": dry}]})
    with api_server(cluster()) as server, api_server(lambda _: page) as planner:
        table = run(server, tmp_path, "preemptions", "--server", planner.url).stdout
        shown = run(server, tmp_path, "preemptions", "--server", planner.url, "-o", "json")

    (item,) = json.loads(shown.stdout)["items"]
    assert "  c/idle (0.5 GPU-hours, cost 1.5), c/old (2 GPU-hours)  " in table
    assert item["units"] == ["c/idle", "c/old"]
    renamed = [{("gpuHours" if key == "gpu_hours" else key): value for key, value in each.items()} for each in COSTS]
    assert item["unitCosts"] == renamed


@pytest.mark.parametrize(
    ("begun", "running", "mode"),
    [
        pytest.param((), RUNNING, "planned", id="no unit is begun"),
        pytest.param(("b/old",), RUNNING, "evicting", id="a unit is begun"),
        pytest.param(("b/old",), [], "evicted", id="no pod is left"),
    ],
)
def test_the_mode_and_the_present_state(
    tmp_path: Path, begun: tuple[str, ...], running: list[dict[str, Any]], mode: str
) -> None:
    """Each preemption was called "evicting", also before the first eviction, and its reason never changed."""
    why = "b/gone is protected by now: an annotation forbids it; not evicted: b/gone"
    held = {**HELD, "status": {**HELD["status"], "evicting": list(begun), "reason": why}}
    objects = {**CLUSTER, "placementreservations": listed(held), "pods": listed(*running)}
    with api_server(cluster(**objects)) as server:
        table = run(server, tmp_path, "preemptions").stdout
        (item,) = json.loads(run(server, tmp_path, "preemptions", "-o", "json").stdout)["items"]

    assert table.splitlines()[1].split()[2] == mode
    assert table.splitlines()[1].endswith(why)
    assert (item["status"], item.get("isBegun", True)) == (why, bool(begun))


def test_the_document(tmp_path: Path) -> None:
    with api_server(cluster(**CLUSTER)) as server:
        shown = run(server, tmp_path, "preemptions", "-o", "json")

    result = json.loads(shown.stdout)
    assert result["kind"] == "PreemptionList"
    assert result["items"] == [
        {
            "namespace": "a",
            "gang": "llm",
            "mode": "evicting",
            "units": ["b/old", "b/gone"],
            "pods": 3,
            "podsLeft": 2,
            "gpuHours": 4.5,
            "cost": 12.25,
            "rule": "scavengers",
            "reason": "evicts 3 pods of b/old and b/gone",
            "deadline": "2026-11-21T12:00:00Z",
            "reservation": "llm-1",
            "stuck": [],
        }
    ]


def test_the_dry_run_for_a_single_pod_names_the_pod(tmp_path: Path) -> None:
    single = {**STATE, "name": "pod.u-1", "pod": "one"}
    page = Answer({"leads": True, "gangs": [], "pods": [single]})
    with api_server(cluster()) as server, api_server(lambda _: page) as planner:
        shown = run(server, tmp_path, "preemptions", "--server", planner.url, "-o", "json")

    assert [(each["namespace"], each["gang"]) for each in json.loads(shown.stdout)["items"]] == [("a", "one")]


def test_a_preemption_in_progress_for_a_single_pod_names_the_pod(tmp_path: Path) -> None:
    alone = member("one", None, namespace="a")
    hold = msgspec.structs.replace(HOLD, gang=f"pod.{alone['metadata']['uid']}")
    held = {**HELD, "spec": msgspec.to_builtins(hold)}
    line = {**LINE, "hash": spec_hash(hold)}
    ledger = {**LEDGER, "spec": {**LEDGER["spec"], "entries": [line]}}
    there = {"placementreservations": listed(held), "pods": listed(alone), "placementledgers": listed(ledger)}
    with api_server(cluster(**there)) as server:
        shown = run(server, tmp_path, "preemptions", "-o", "json")

    assert [(each["namespace"], each["gang"]) for each in json.loads(shown.stdout)["items"]] == [("a", "one")]


def test_pods_that_did_not_end_in_time_are_counted(tmp_path: Path) -> None:
    stuck = {**HELD, "status": {**HELD["status"], "stuck": ["b/old-0"]}}
    with api_server(cluster(**{**CLUSTER, "placementreservations": listed(stuck)})) as server:
        shown = run(server, tmp_path, "preemptions")
        result = run(server, tmp_path, "preemptions", "-o", "json")

    assert "evicting (1 stuck)" in shown.stdout
    assert json.loads(result.stdout)["items"][0]["stuck"] == ["b/old-0"]
    assert shown.stderr == (
        "gputopo: results of the dry run are on the planner's page /gangs: add --server URL to list them\n"
    )


@pytest.mark.parametrize(
    ("arguments", "changed"),
    [
        pytest.param(["-n", "b"], {}, id="of another namespace"),
        pytest.param([], {"placementledgers": listed(LEDGER)}, id="not in the ledger"),
    ],
)
def test_reservations_that_are_no_running_preemption(
    tmp_path: Path, arguments: list[str], changed: dict[str, Answer]
) -> None:
    with api_server(cluster(**{**CLUSTER, **changed})) as server:
        shown = run(server, tmp_path, "preemptions", *arguments)

    assert shown.exit_code == 0
    assert "no preemptions found" in shown.output
    assert "llm" not in shown.output


def test_a_server_that_is_no_url() -> None:
    shown = CliRunner().invoke(main.main, ["preemptions", "--server", "127.0.0.1"])

    assert shown.exit_code == 2
    assert "--server '127.0.0.1' is not a URL" in shown.output


def test_a_gang_is_explained_with_its_victims(tmp_path: Path) -> None:
    changed = {**CLUSTER, "pods": listed(*RUNNING, member("w-0"), member("w-1"))}
    dry = Answer({"leads": True, "gangs": [{**STATE, "name": "llm"}]})
    with api_server(cluster(**changed)) as server, api_server(lambda _: dry) as planner:
        shown = run(server, tmp_path, "why", "gang", "llm", "-n", "a", "--server", planner.url)

    assert shown.exit_code == 0
    result = " ".join(shown.stdout.split())
    evicts = "pods are evicted for it: b/old, b/gone (lost work: 4.5 GPU-hours, cost 12.25; rule: scavengers)."
    assert f"Note: {evicts}" in result
    assert "Note: dry run: would evict c/idle (lost work: 0.5 GPU-hours; rule: idle first)." in result
