"""``gputopo gangs`` and ``gputopo why gang``, up to the wire. What is told is in ``tests/scheduler_core/gang_view``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gputopo.cli import main
from gputopo.crd.nodegpus import NodeGpus
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.rbac import LEASES, NAMESPACES
from scheduler_core.cache import cluster_cache, node_record
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES, TrainJobFacts
from scheduler_core.planner.report.read import SIZE_SOURCES_BY_PREFIX
from tests.api_server import Answer, Asked, api_server
from tests.gputopo.cli.cluster_objects import listed, pod
from tests.gputopo.cli.gang_objects import LEDGER, PLAN, REPORT, SINCE, cluster, member, run

LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()  # than ``REPORT``


RESERVATION = {
    "metadata": {"name": "done-1", "namespace": "a", "uid": "R", "resourceVersion": "7"},
    "spec": msgspec.to_builtins(PLAN),
    "status": {"state": "Committed", "deadline": "2026-11-21T12:00:00Z"},
}


def test_all_gangs_of_the_cluster(tmp_path: Path) -> None:
    with api_server(cluster()) as server:
        shown = run(server, tmp_path, "gangs")

    assert shown.exit_code == 0
    head = "PRIORITY  MEMBERS  GPUS  NODES  DOMAIN  GB/S  WAITING  REASON"
    rest = "     -      -       -     2d       "
    assert shown.output == (
        f"NAMESPACE  GANG       PHASE                       {head}\n"
        f"a          kueued     waiting for members 1 of 2  0         1/2      2{rest}1 of 2 members is there\n"
        f"a          llm        queued                      0         2/2      4{rest}2 members to be placed\n"
        f"b          job.train  waiting for members 2 of 3  0         2/3      4{rest}2 of 3 members are there\n"
    )


def test_kinds_without_permission_are_named(tmp_path: Path) -> None:
    refused = Answer({"message": "forbidden"}, 403)
    with api_server(cluster(jobs=refused, placementledgers=refused)) as server:
        shown = run(server, tmp_path, "gangs")

    assert shown.exit_code == 0
    assert "gputopo: no permission to read placementledgers.gputopo.io, jobs.batch: what they declare" in shown.stderr
    assert "b          job.train  waiting for members 2 of ?" in shown.stdout


def test_without_permission_for_pods_the_missing_rules_are_named(tmp_path: Path) -> None:
    with api_server(cluster(pods=Answer({"message": "pods is forbidden"}, 403))) as server:
        shown = run(server, tmp_path, "gangs")

    assert shown.exit_code == 4
    assert "this command needs a ClusterRole with get, list of nodes; list of pods; " in shown.output


def page(**said: Any) -> Answer:
    """Return a planner's answer about the gang LLM."""
    known = {
        "namespace": "a",
        "name": "llm",
        "phase": "queued",
        "reason": "1 of 2 members fits at once",
        "rollbacks": 2,
    }
    return Answer({"leads": True, "gangs": [{**known, "next_try_s": 30.0, "trouble": "w-1 was late"}], **said})


def test_a_planner_is_asked_too(tmp_path: Path) -> None:
    with api_server(cluster()) as server, api_server(lambda _: page()) as planner:
        result = json.loads(run(server, tmp_path, "gangs", "-o", "json", "--server", f"{planner.url}/").output)
        shown = run(server, tmp_path, "why", "gang", "llm", "-n", "a", "--server", planner.url).output

    (gang,) = (each for each in result["items"] if each["name"] == "llm")
    assert (gang["reason"], gang["rollbacks"], gang["nextTrySeconds"]) == ("1 of 2 members fits at once", 2, 30.0)
    assert shown.startswith("gang a/llm: queued: 1 of 2 members fits at once.\n")
    assert shown.endswith(
        "Note: it was rolled back 2 times (last reason: w-1 was late); the planner tries again in 30 s.\n"
    )
    assert [each.path for each in planner.asked] == ["/gangs", "/gangs"]


def test_all_pages_of_a_planner_are_read(tmp_path: Path) -> None:
    def pages(asked: Asked) -> Answer:
        if asked.query == {"continue": "gangs/a/b"}:
            return page()
        return page(gangs=[])._replace(headers={"Link": '<?continue=gangs%2Fa%2Fb>; rel="next"'})

    with api_server(cluster()) as server, api_server(pages) as planner:
        shown = run(server, tmp_path, "why", "gang", "llm", "-n", "a", "--server", planner.url).output

    assert shown.startswith("gang a/llm: queued: 1 of 2 members fits at once.\n")


def test_pages_without_end_are_an_error() -> None:
    with api_server(lambda _: page()._replace(headers={"Link": '<?continue=again>; rel="next"'})) as planner:
        shown = CliRunner().invoke(main.main, ["gangs", "--server", planner.url])

    assert (shown.exit_code, shown.output) == (4, f"gputopo: {planner.url}/gangs: more than 1024 pages\n")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        pytest.param(page(leads=False), "so it knows no gang: query the holder of the Lease", id="one that waits"),
        pytest.param(
            page(leads=False, holder="planner-7c9f-x2_0f1e"), "query pod planner-7c9f-x2, which holds", id="one of two"
        ),
        pytest.param(Answer("no such page", 404), "/gangs: 404: no such page", id="another server"),
    ],
)
def test_errors_of_a_planner_page(answer: Answer, result: str) -> None:
    with api_server(lambda _: answer) as planner:
        shown = CliRunner().invoke(main.main, ["gangs", "--server", planner.url])

    assert shown.exit_code == 4
    assert result in shown.output


@pytest.mark.parametrize(
    ("arguments", "code", "result"),
    [
        pytest.param(["gangs", "--server", "127.0.0.1"], 2, "--server '127.0.0.1' is not a URL", id="no address"),
        pytest.param(
            ["gangs", "--server", "http://127.0.0.1:9"], 4, "no answer from http://127.0.0.1:9/gangs", id="none"
        ),
        pytest.param(
            ["gangs", "-A", "-n", "a"], 2, "--namespace a and --all-namespaces exclude each other", id="one and all"
        ),
        pytest.param(["why", "gang"], 2, "'gang' is invalid: expected pod NAME or gang NAME", id="no name"),
        pytest.param(["why", "gang", "x", "-f", "y"], 2, "gang NAME excludes -f and --node", id="a file"),
        pytest.param(["why", "gang", "x", "--node", "y"], 2, "gang NAME excludes -f and --node", id="a node"),
    ],
)
def test_invalid_questions(arguments: list[str], code: int, result: str) -> None:
    shown = CliRunner().invoke(main.main, arguments)

    assert (shown.exit_code, result in shown.output) == (code, True)


def test_why_a_gang_waits(tmp_path: Path) -> None:
    with api_server(cluster(placementreservations=listed(RESERVATION), placementledgers=listed(LEDGER))) as server:
        shown = run(server, tmp_path, "why", "gang", "llm", "-n", "a")

    assert shown.exit_code == 0
    assert shown.output == (
        "gang a/llm: queued: 2 members to be placed.\n"
        "Declared by annotations; priority 0; waiting for 2d; 2 members; 4 GPUs; to be bound within 30 s after "
        "ungating.\n"
        "\n"
        "Members:\n"
        "- held by the gate gputopo.io/gang: w-0, w-1\n"
        "\n"
        "It does not fit now: 0 of 2 members fit at once.\n"
        "- GPUs reserved for another workload: w-0, w-1\n"
        "\n"
        "It would fit without this reservation:\n"
        "- 3 GPUs for the gang a/done, until 2026-11-21T12:00:00Z at the latest: gpu-0 (a/done-1)\n"
    )


def test_a_kubelet_report_that_a_heartbeat_confirms_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    beat = {"metadata": {"name": "gpu-0"}, "spec": {"holderIdentity": REPORT["observedAt"], "renewTime": LATER}}
    heartbeats = {LEASES.path(namespace=HEARTBEAT_NAMESPACE): listed(beat)}
    others = cluster()
    applied: list[str | None] = []

    def with_gpus(record: NodeRecord, gpus: NodeGpus | None) -> NodeRecord:
        applied.append(None if gpus is None else gpus.observed_at)
        return node_record.with_gpus(record, gpus)

    monkeypatch.setattr(cluster_cache, "with_gpus", with_gpus)
    with api_server(lambda asked: heartbeats.get(asked.path) or others(asked)) as server:
        shown = run(server, tmp_path, "why", "gang", "llm", "-n", "a")

    assert (shown.exit_code, applied) == (0, [LATER])


LEASE = LEASES.path("gputopo-planner", "gputopo")
LED = listed({**LEDGER, "spec": {"planner": "p", "epoch": 1, "lease": "gputopo/gputopo-planner"}})


@pytest.mark.parametrize(
    ("lease", "result"),
    [
        pytest.param(
            Answer({"metadata": {"name": "gputopo-planner"}, "spec": {"holderIdentity": ""}}),
            "gputopo: no planner leads: its Lease gputopo/gputopo-planner has no holder",
            id="released",
        ),
        pytest.param(
            Answer({"message": "not found"}, 404),
            "gputopo: no planner leads: its Lease gputopo/gputopo-planner does not exist",
            id="gone",
        ),
        pytest.param(
            Answer({"message": "forbidden"}, 403),
            "gputopo: no permission to read leases.coordination.k8s.io: what they declare about gangs is not shown\n",
            id="not to be read",
        ),
    ],
)
def test_a_missing_planner_is_reported_below_the_table(lease: Answer, result: str, tmp_path: Path) -> None:
    answers = cluster(placementledgers=LED)
    with api_server(lambda asked: lease if asked.path == LEASE else answers(asked)) as server:
        shown = run(server, tmp_path, "gangs")

    assert shown.exit_code == 0
    assert shown.stderr.startswith(result)


def test_refused_and_ungated_gangs_are_reported_below_the_table(tmp_path: Path) -> None:
    wrong = member("p", "Bad_Name")
    ungated = [pod(f"g{at}-0", 2, annotations={"gputopo.io/gang": f"g{at}"}, phase="Pending") for at in range(5)]
    for each in ungated:
        each["metadata"]["creationTimestamp"] = SINCE
    with api_server(cluster(pods=listed(wrong, *ungated))) as server:
        shown = run(server, tmp_path, "gangs")

    assert [line.split()[:3] for line in shown.stdout.splitlines()[1:]] == [["a", "pod/p", "refused"]]
    assert shown.stderr == (
        "gputopo: to retry a refused gang, correct the quoted value in the workload's pod template, and on existing "
        "pods with kubectl annotate --overwrite pod\n"
        "gputopo: a/g0, a/g1, a/g2 and 2 more: no scheduling gate, so their pods are placed one by one; see `gputopo "
        f"why gang NAME -n NAMESPACE --kubeconfig {tmp_path}/config`\n"
    )


@pytest.mark.parametrize(
    ("space", "result"),
    [
        pytest.param(
            Answer({"metadata": {"name": "a", "labels": {"gputopo.io/gangs": "enabled"}}}),
            "What to do: the namespace has opted in",
            id="opted in",
        ),
        pytest.param(Answer({"metadata": {"name": "a"}}), "What to do: gate its pods: kubectl label", id="not"),
        pytest.param(Answer({"message": "forbidden"}, 403), "What to do: gate its pods: kubectl label", id="unknown"),
    ],
)
def test_the_reason_for_a_gang_without_gates(space: Answer, result: str, tmp_path: Path) -> None:
    ungated = pod("g-0", 2, annotations={"gputopo.io/gang": "g"}, phase="Pending")
    answers = cluster(pods=listed(ungated))
    with api_server(lambda asked: space if asked.path == NAMESPACES.path("a") else answers(asked)) as server:
        shown = run(server, tmp_path, "why", "gang", "g", "-n", "a")

    assert result in shown.stdout


def test_the_message_of_kube_scheduler_about_an_ungated_member(tmp_path: Path) -> None:
    late = pod("w-0", 2, annotations={"gputopo.io/gang": "g", "gputopo.io/reservation": "g-1"}, phase="Pending")
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no volume"}
    late["status"]["conditions"] = [said]
    other = pod("x", 1, phase="Pending")
    other["status"]["conditions"] = [said, {"type": "Ready", "status": "False"}]
    with api_server(cluster(pods=listed(late, other))) as server:
        shown = run(server, tmp_path, "why", "gang", "g", "-n", "a")

    assert "- ungated, not bound yet (kube-scheduler: no volume): w-0\n" in shown.stdout


def test_the_story_as_a_document(tmp_path: Path) -> None:
    with api_server(cluster()) as server:
        found = json.loads(run(server, tmp_path, "why", "gang/job.train", "-n", "b", "-o", "json").output)

    assert (found["kind"], found["gang"]["size"], found["absentRanks"]) == ("GangExplanation", 3, [2])
    assert [each["node"] for each in found["places"][0]["stops"]] == ["gpu-0"]


def test_a_gang_that_is_not_there(tmp_path: Path) -> None:
    with api_server(cluster()) as server:
        shown = run(server, tmp_path, "why", "gang", "lm", "-n", "a")

    assert (shown.exit_code, shown.output) == (
        4,
        "gputopo: there is no gang lm in the namespace a; nearest: llm\n",
    )


def test_every_kind_that_says_sizes_is_read_for_the_gangs_of_its_convention() -> None:
    telling = {rule.prefix for rule in GANG_CONVENTIONS if rule.size_declared_by}

    assert SIZE_SOURCES_BY_PREFIX.keys() == telling
    assert sorted(str(kind) for kinds in SIZE_SOURCES_BY_PREFIX.values() for kind in kinds) == sorted(
        str(kind) for kind in SIZE_SOURCES if kind is not TrainJobFacts
    )
