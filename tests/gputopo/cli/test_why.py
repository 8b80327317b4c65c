"""``gputopo why``, up to the wire. What it tells is in ``tests/scheduler_core/explain``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner, Result

from gputopo.cli import main
from gputopo.crd.reservations import HeldCapacity, PlannedEviction, Preemption, ReservationSpec, spec_hash
from gputopo.kube.rbac import LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from gputopo.labels.keys import GATE, POD_GANG, POD_GANG_SIZE
from scheduler_core.explain import explanation_document, explanation_text
from tests.api_server import Answer, ApiServer, Asked, api_server
from tests.gputopo.cli.cluster_files import file_of
from tests.gputopo.cli.cluster_objects import NODE, STATE, listed, pod
from tests.gputopo.cli.pod_objects import PENDING, THERE, cluster
from tests.scheduler_core.explain.explanations import EXPLANATIONS


def why(server: ApiServer, folder: Path, *arguments: str, written: str | None = None) -> Result:
    there = ["--kubeconfig", server.kubeconfig(folder / "config")]
    return CliRunner().invoke(main.main, ["why", *there, *arguments], input=written)


POD = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def test_a_pod_that_waits(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        shown = why(server, tmp_path, "pod", "waits", "-n", "a")

    assert shown.exit_code == 0
    assert shown.output == (
        "pod a/waits requests:\n"
        "  2 whole GPUs  required  nvidia.com/gpu: 2\n"
        "\n"
        "It fits 0 of 1 node.\n"
        "kube-scheduler says: 0/1 nodes are available: 1 too few free healthy GPUs\n"
        "\n"
        "Any of these changes would make it fit:\n"
        "- gpu-0 has 1 free GPU; 2 free after pod a/train ends\n"
        "\n"
        "Rejected:\n"
        "- too few free healthy GPUs: 1 node\n"
        "  gpu-0\n"
        "  Fewer healthy GPUs (or shares, or MIG devices) are free than the pod requests. Wait for a pod to end, "
        "request fewer,\n"
        "  or add nodes.\n"
    )


def test_every_format_has_the_same_facts(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        as_json, as_yaml = (
            why(server, tmp_path, "pod/waits", "-n", "a", "-o", each).output for each in ("json", "yaml")
        )

    found = json.loads(as_json)
    assert yaml.safe_load(as_yaml) == found
    assert (found["kind"], found["schedulerSaid"]) == ("PodExplanation", PENDING["message"])
    assert [(each["reason"], each["nodes"]) for each in found["refused"]] == [("TOO_FEW_GPUS", ["gpu-0"])]


def test_a_pod_that_runs(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        found = json.loads(why(server, tmp_path, "pod", "train", "-n", "a", "-o", "json").output)

    assert (found["held"]["node"], found["held"]["spot"]["gpus"]) == ("gpu-0", [0, 1, 2])
    assert found["suited"] == ["gpu-0"]  # its own GPUs are free for it


def test_a_pod_that_has_ended_is_looked_at_as_another_one_like_it(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        found = json.loads(why(server, tmp_path, "pod", "done", "-n", "a", "-o", "json").output)

    assert found["held"] is None
    assert found["notes"][-1] == "the pod has ended (Failed): this explains a new pod with the same spec"


def test_a_pod_that_cannot_be_understood(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        shown = why(server, tmp_path, "pod", "odd", "-n", "a").output

    assert "pod a/odd is rejected on every node: the pod's request is malformed: gputopo.io/island: 'yes'" in shown


JOB = """
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
---
apiVersion: batch/v1
kind: Job
metadata: {name: later, namespace: b}
spec:
  template:
    metadata: {annotations: {gputopo.io/island: required}}
    spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}
"""


@pytest.mark.parametrize(
    ("written", "name"),
    [
        pytest.param(JOB, "b/later", id="a job, in its own namespace"),
        pytest.param(JOB.replace("name: later, namespace: b", ""), "a/(without a name)", id="nameless"),
        pytest.param(
            json.dumps({"kind": "List", "items": [{"kind": "Pod", **pod("web", 0)}, {"kind": "Pod", **pod("p", 2)}]}),
            "a/p",
            id="of several the first that asks for GPUs",
        ),
    ],
)
def test_a_pod_that_does_not_exist_yet(written: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(written)
    with api_server(cluster) as server:
        found = json.loads(why(server, tmp_path, "-f", str(tmp_path / "pod.yaml"), "-n", "a", "-o", "json").output)

    assert f"{found['pod']['namespace']}/{found['pod']['name']}" == name
    assert [each["pods"] for each in found["nearest"]] == [["a/train"]]


POLICY = """
apiVersion: gputopo.io/v1alpha1
kind: PlacementPolicy
staleness: {handling: refuse, after: 1m}
"""


def test_the_policy_file_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(STATE, "observedAt", (datetime.now(UTC) - timedelta(minutes=5)).isoformat())
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "bad.yaml").write_text("kind: what")
    (tmp_path / "binary.yaml").write_bytes(b"\xff")
    file = ("--policy", str(tmp_path / "policy.yaml"))
    with api_server(cluster) as server:
        built_in = json.loads(why(server, tmp_path, "pod", "train", "-n", "a", "-o", "json").output)
        by_file = json.loads(why(server, tmp_path, "pod", "train", "-n", "a", "-o", "json", *file).output)
        bad = why(server, tmp_path, "pod", "train", "--policy", str(tmp_path / "bad.yaml"))
        binary = why(server, tmp_path, "pod", "train", "--policy", str(tmp_path / "binary.yaml"))
        elsewhere = why(server, tmp_path, "pod", "train", "--server", "http://127.0.0.1:1", *file)
        twice = why(server, tmp_path, "-f", "-", "--policy", "-")

    assert (built_in["suited"], by_file["suited"]) == (["gpu-0"], [])
    assert [each["reason"] for each in by_file["refused"]] == ["UNKNOWN_TOPOLOGY"]
    assert (bad.exit_code, "bad.yaml:1:" in bad.output) == (2, True)
    assert "not UTF-8 text" in binary.output
    assert "--policy and --server exclude each other" in elsewhere.output
    assert "only one of -f, --from and --policy can be standard input" in twice.output


def test_wish_on_the_job_instead_of_its_template_is_named(tmp_path: Path) -> None:
    job = JOB.replace("namespace: b}", "namespace: b, annotations: {gputopo.io/numa: required}}")
    (tmp_path / "job.yaml").write_text(job)
    with api_server(cluster) as server:
        found = json.loads(why(server, tmp_path, "-f", str(tmp_path / "job.yaml"), "-o", "json").output)

    (note,) = found["notes"]
    assert note == (
        "gputopo.io/numa is in the metadata of the workload, where it has no effect: set it in the pod "
        "template (spec.template.metadata)"
    )


def test_nodes_that_kube_scheduler_would_not_take_are_left_out(tmp_path: Path) -> None:
    tainted = {
        "metadata": NODE["metadata"] | {"name": "gpu-1"},
        "status": NODE["status"],
        "spec": {"taints": [{"key": "team", "value": "b", "effect": "NoSchedule"}]},
    }
    cpu = {"metadata": {"name": "cpu-0"}, "spec": tainted["spec"]}

    def wider(asked: Asked) -> Answer:
        return listed(NODE, tainted, cpu) if asked.path == NODES.path() else cluster(asked)

    with api_server(wider) as server:
        found = json.loads(why(server, tmp_path, "pod", "waits", "-n", "a", "-o", "json").output)
        shown = why(server, tmp_path, "pod", "waits", "-n", "a").output
        asked_for = json.loads(why(server, tmp_path, "pod", "waits", "-n", "a", "--node", "gpu-1", "-o", "json").output)

    assert found["barred"] == [{"text": "the taint team=b:NoSchedule of the node is not tolerated", "nodes": ["gpu-1"]}]
    assert (found["nodes"], found["suited"], found["otherNodes"]) == (1, [], 1)
    assert (
        "Excluded, as kube-scheduler would: gpu-1: the taint team=b:NoSchedule of the node is not tolerated.\n" in shown
    )
    assert asked_for["suited"] == ["gpu-1"]


def test_one_node_only(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        found = json.loads(why(server, tmp_path, "pod", "waits", "-n", "a", "--node", "gpu-0", "-o", "json").output)
        missing = why(server, tmp_path, "pod", "waits", "-n", "a", "--node", "gpu-9")

    assert found["nodes"] == 1
    assert (missing.exit_code, missing.output) == (4, "gputopo: node gpu-9 not found; did you mean gpu-0?\n")


def test_the_namespace_is_that_of_the_context(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        config = yaml.safe_load(Path(server.kubeconfig(tmp_path / "config")).read_text())
        config["contexts"][0]["context"]["namespace"] = "a"
        (tmp_path / "other").write_text(yaml.safe_dump(config))
        asked = ["why", "pod", "waits", "--kubeconfig"]
        here = CliRunner().invoke(main.main, [*asked, str(tmp_path / "other"), "--context", "here"])
        default = CliRunner().invoke(main.main, [*asked, str(tmp_path / "config")])

    assert here.exit_code == 0
    assert (default.exit_code, default.output) == (4, "gputopo: there is no pod waits in the namespace default\n")


def test_a_pod_without_gpus_is_none_of_our_business(tmp_path: Path) -> None:
    with api_server(cluster) as server:
        shown = why(server, tmp_path, "pod", "web", "-n", "a")

    assert shown.exit_code == 2
    assert shown.output.startswith("gputopo: pod a/web requests no GPU (nvidia.com/gpu, ")


def test_without_permission_the_missing_rules_are_named(tmp_path: Path) -> None:
    def refuses(asked: Asked) -> Answer:
        if asked.path == PODS.path():
            return Answer({"message": 'pods is forbidden: User "me" cannot list pods at the cluster scope'}, 403)
        return cluster(asked)

    with api_server(refuses) as server:
        shown = why(server, tmp_path, "pod", "waits", "-n", "a")

    assert shown.exit_code == 4
    assert shown.output.splitlines() == [
        'gputopo: GET /api/v1/pods: 403: pods is forbidden: User "me" cannot list pods at the cluster scope',
        (
            "this command needs a ClusterRole with get, list of nodes; list of pods; get, list of nodegpus.gputopo.io; "
            "list of leases.coordination.k8s.io; list of placementreservations.gputopo.io; "
            "list of placementledgers.gputopo.io"
        ),
    ]


def planned(phase: str) -> tuple[Answer, Answer]:
    """A reservation of the last free GPU for a member that waits, and the ledger that lists it."""
    seats = [{"uid": "u-member", "name": "member", "node": "gpu-0", "gpus": [["nvidia.com/gpu", 1]]}]
    spec = {"gang": "llm", "seats": seats}
    metadata = {"name": "llm-1", "namespace": "b", "uid": "R", "resourceVersion": "7"}
    deadline = {"deadline": "2026-11-18T11:00:30Z"}
    hashed = spec_hash(msgspec.convert(spec, ReservationSpec))
    entry = {"uid": "R", "namespace": "b", "name": "llm-1", "hash": hashed, "phase": phase}
    ledger = {"metadata": {"name": "gpus", "uid": "L", "generation": 1}, "spec": {"entries": [entry]}}
    return listed({"metadata": metadata, "spec": spec, "status": deadline}), listed(ledger)


def test_a_gang_for_which_gpus_are_kept_is_named(tmp_path: Path) -> None:
    reservations, ledgers = planned("Committed")
    answers = {RESERVATIONS.path(): reservations, LEDGERS.path(): ledgers}
    with api_server(lambda asked: answers.get(asked.path) or cluster(asked)) as server:
        shown = why(server, tmp_path, "-f", "-", "-n", "a", written=POD)

    assert "- GPUs reserved for another workload: 1 node" in shown.output
    assert (
        "Reserved there:\n- 1 GPU for the gang b/llm, until 2026-11-18T11:00:30Z at the latest: gpu-0 (b/llm-1)\n"
        in (shown.output)
    )


def test_without_permission_for_reservations_a_note_says_so(tmp_path: Path) -> None:
    def refuses(asked: Asked) -> Answer:
        return Answer({"message": "no"}, 403) if asked.path == RESERVATIONS.path() else cluster(asked)

    with api_server(refuses) as server:
        shown = why(server, tmp_path, "pod", "waits", "-n", "a")

    assert shown.exit_code == 0
    assert (
        "Note: no permission to list PlacementReservations and PlacementLedgers: reservations of gangs" in shown.output
    )


def test_where_no_agent_runs_labels_are_enough(tmp_path: Path) -> None:
    def bare(asked: Asked) -> Answer:
        if asked.path == NODE_GPUS.path():
            return Answer("404 page not found", 404)
        return cluster(asked)

    with api_server(bare) as server:
        shown = why(server, tmp_path, "pod", "waits", "-n", "a")

    assert "- gpu-0 has 1 free GPU; 2 free after pod a/train ends" in shown.output


def test_a_running_extender_is_asked_instead(tmp_path: Path) -> None:
    explanation = EXPLANATIONS["nowhere"]
    with api_server(lambda _: Answer(explanation_document(explanation))) as server:
        shown = why(server, tmp_path, "pod", "train-4", "-n", "team", "--server", f"{server.url}/")

    assert [asked.path for asked in server.asked] == ["/explain/team/train-4"]
    assert shown.output == explanation_text(explanation, 120)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        pytest.param(
            Answer("no pod a/x wants GPUs", 404), "/explain/default/x: 404: no pod a/x wants GPUs", id="unknown"
        ),
        pytest.param(Answer("not synced yet", 503), "503: not synced yet", id="not ready"),
        pytest.param(
            Answer({"kind": "Status"}), "not an extender of this version: its kind is 'Status'", id="another server"
        ),
    ],
)
def test_errors_of_an_extender_page(answer: Answer, result: str, tmp_path: Path) -> None:
    with api_server(lambda _: answer) as server:
        shown = why(server, tmp_path, "pod", "x", "--server", server.url)

    assert shown.exit_code == 4
    assert result in shown.output


def test_without_an_extender() -> None:
    shown = CliRunner().invoke(main.main, ["why", "pod", "x", "-n", "default", "--server", "http://127.0.0.1:9"])

    assert shown.exit_code == 4
    assert "no answer from http://127.0.0.1:9/explain/default/x" in shown.output


@pytest.mark.parametrize(
    ("arguments", "result"),
    [
        pytest.param([], "specify pod NAME, gang NAME, or -f FILE", id="nothing"),
        pytest.param(["pod", "x", "-f", "y"], "specify pod NAME, gang NAME, or -f FILE", id="both"),
        pytest.param(["node", "x"], "'node x' is invalid: expected pod NAME or gang NAME", id="not a pod"),
        pytest.param(["pod"], "'pod' is invalid: expected pod NAME or gang NAME", id="no name"),
        pytest.param(["pod", "team/x"], "of the namespace team: pod x -n team", id="a name with its namespace"),
        pytest.param(["pod", "x", "y"], "'pod x y' is invalid: expected pod NAME or gang NAME", id="two names"),
        pytest.param(
            ["pod", "x", "--server", "127.0.0.1:9439"],
            "--server '127.0.0.1:9439' is not a URL; example: http://127.0.0.1:9439",
            id="no web address",
        ),
        pytest.param(
            ["-f", "y", "--server", "http://h"],
            "--server needs pod NAME, and excludes -f and --node",
            id="an extender about a file",
        ),
        pytest.param(
            ["pod", "x", "--node", "n", "--server", "http://h"],
            "--server needs pod NAME, and excludes -f and --node",
            id="an extender about one node",
        ),
        pytest.param(["-f", "/nowhere/p.yaml"], "cannot read /nowhere/p.yaml: No such file or directory", id="no file"),
    ],
)
def test_invalid_questions(arguments: list[str], result: str) -> None:
    shown = CliRunner().invoke(main.main, ["why", *arguments])

    assert shown.exit_code == 2
    assert result in shown.output


def test_the_gate_of_a_pod_is_reported_first(tmp_path: Path) -> None:
    gated = pod("waits", 2, annotations={"gputopo.io/gang": "llm", "gputopo.io/gang-size": "2"})
    gated["spec"]["schedulingGates"] = [{"name": "gputopo.io/gang"}]

    def waiting(asked: Asked) -> Answer:
        return listed(gated) if asked.path == PODS.path(namespace="a") else cluster(asked)

    with api_server(waiting) as server:
        shown = why(server, tmp_path, "pod", "waits", "-n", "a").output

    assert " ".join(shown.split()).startswith(
        "pod a/waits: the gate gputopo.io/gang holds it until the planner has a place for it, with its gang llm: see "
        f"`gputopo why gang llm -n a --kubeconfig {tmp_path}/config`. pod a/waits requests:"
    )


@pytest.mark.parametrize(
    ("content", "result"),
    [
        pytest.param(b"kind: ConfigMap", "no Pod found, and no object with a pod template", id="no pod"),
        pytest.param(b"\xff\xfd", "not UTF-8 text (byte 0xff at offset 0); expected a Pod", id="no text"),
    ],
)
def test_a_file_without_a_pod(content: bytes, result: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_bytes(content)

    shown = CliRunner().invoke(main.main, ["why", "-f", str(tmp_path / "p.yaml")])

    assert shown.exit_code == 2
    assert result in shown.output


EVICTIONS = (PlannedEviction("u-train", "a", "train", "gpu-0", "a/train", 3),)
INTENT = Preemption(EVICTIONS, "scavengers-preemptible", "evicts 1 pod of a/train", 4.5, 12.25)


def preempting(begun: tuple[str, ...] = (), reason: str | None = None) -> tuple[Answer, Answer]:
    """A capacity hold of the gang b/llm, for which the pod a/train is evicted, and the ledger that lists it."""
    spec = ReservationSpec("llm", held=(HeldCapacity("gpu-0", 3),), priority=100, preemption=INTENT)
    metadata = {"name": "llm-1", "namespace": "b", "uid": "R", "resourceVersion": "7"}
    entry = {"uid": "R", "namespace": "b", "name": "llm-1", "hash": spec_hash(spec), "phase": "Held"}
    ledger = {"metadata": {"name": "gpus", "uid": "L", "generation": 1}, "spec": {"entries": [entry]}}
    status = {"state": "Held", "evicting": list(begun)} | ({} if reason is None else {"reason": reason})
    return listed({"metadata": metadata, "spec": msgspec.to_builtins(spec), "status": status}), listed(ledger)


def notes(folder: Path, name: str, begun: tuple[str, ...] = (), *options: str, reason: str | None = None) -> list[str]:
    return [each for each in explained(folder, name, begun, *options, reason=reason)["notes"] if "evict" in each]


def explained(
    folder: Path, name: str, begun: tuple[str, ...] = (), *options: str, reason: str | None = None, gpus: int = 3
) -> dict[str, Any]:
    reservations, ledgers = preempting(begun, reason)
    answers = {RESERVATIONS.path(): reservations, LEDGERS.path(): ledgers}
    member = pod("member", gpus, namespace="b", phase="Pending")
    member["metadata"]["annotations"] = {POD_GANG.key: "llm", POD_GANG_SIZE.key: "1"}
    member["spec"]["schedulingGates"] = [{"name": GATE}]

    def answer(asked: Asked) -> Answer:
        if asked.path == PODS.path(namespace="b"):
            return listed(member)
        return answers.get(asked.path) or cluster(asked)

    namespace = "b" if name == "member" else "a"
    with api_server(answer) as server:
        shown = why(server, folder, "pod", name, "-n", namespace, "-o", "json", *options)
    assert shown.exit_code == 0, shown.output
    result: dict[str, Any] = json.loads(shown.output)
    return result


def test_the_notes_say_what_the_planner_does_now(tmp_path: Path) -> None:
    """A unit that was spared was still called "to be evicted", and nothing else was said."""
    why = "the policy allows no eviction now: a/train not evicted"

    for name in ("train", "member"):
        (note,) = notes(tmp_path, name, reason=why)
        assert note.endswith(f"; now: {why}")


def test_capacity_that_is_held_for_the_gang_of_a_pod_is_not_called_reserved_for_another_workload(
    tmp_path: Path,
) -> None:
    result = explained(tmp_path, "member", gpus=1)

    assert (result["refused"], result["kept"]) == ([], [])


def test_a_pod_that_is_evicted_names_the_gang_the_rule_and_the_reservation(tmp_path: Path) -> None:
    said = "for gang b/llm of priority 100, with its unit a/train (rule: scavengers-preemptible; reservation b/llm-1)"

    assert notes(tmp_path, "train") == [f"it is to be evicted {said}"]
    assert notes(tmp_path, "train", ("a/train",)) == [f"it is being evicted {said}"]
    assert notes(tmp_path, "waits") == []


def test_a_pod_for_which_others_are_evicted_names_them_and_the_cost(tmp_path: Path) -> None:
    assert notes(tmp_path, "member") == [
        "pods are evicted for it: a/train (lost work: 4.5 GPU-hours, cost 12.25; rule: scavengers-preemptible)"
    ]


def test_the_planner_reports_the_pods_of_a_dry_run(tmp_path: Path) -> None:
    dry = {"units": ["a/waits"], "pods": 2, "gpu_hours": 0.5, "cost": None, "rule": "idle first"}
    state = {"namespace": "b", "name": "llm", "phase": "queued", "reason": "too few", "dry_run": dry}
    with api_server(lambda _: Answer({"leads": True, "gangs": [state]})) as planner:
        victim = notes(tmp_path, "waits", (), "--planner", planner.url)
        member = notes(tmp_path, "member", (), "--planner", planner.url)

    assert victim == [
        (
            "dry run: it would be evicted for gang b/llm (lost work: 0.5 GPU-hours, of all pods that would be "
            "evicted; rule: idle first)"
        )
    ]
    assert member == [
        "pods are evicted for it: a/train (lost work: 4.5 GPU-hours, cost 12.25; rule: scavengers-preemptible)",
        "dry run: would evict a/waits for it (lost work: 0.5 GPU-hours; rule: idle first)",
    ]


def test_of_a_dry_run_the_notes_have_the_cost_of_each_unit(tmp_path: Path) -> None:
    """Only the cost of all victims together was shown, and at most four of them."""
    costs = [
        {"name": f"a/{name}", "pods": 2, "gpu_hours": 0.5, "cost": cost, "rule": "idle first", "reason": "batch, saved"}
        for name, cost in (("waits", 1.5), ("v1", None), ("v2", None), ("v3", None), ("v4", None))
    ]
    units = [each["name"] for each in costs]
    dry = {"units": units, "pods": 10, "gpu_hours": 2.5, "cost": None, "rule": "idle first", "unit_costs": costs}
    state = {"namespace": "b", "name": "llm", "phase": "queued", "reason": "too few", "dry_run": dry}
    with api_server(lambda _: Answer({"leads": True, "gangs": [state]})) as planner:
        victim = notes(tmp_path, "waits", (), "--planner", planner.url)
        _, _, *of_units = notes(tmp_path, "member", (), "--planner", planner.url)

    assert victim == [
        (
            "dry run: it would be evicted for gang b/llm (lost work: 0.5 GPU-hours, cost 1.50; lost work: 2.5 "
            "GPU-hours, of all pods that would be evicted; rule: idle first; batch, saved)"
        )
    ]
    why = "rule: idle first; batch, saved)"
    assert of_units[0] == f"dry run: would evict 2 pods of a/waits (lost work: 0.5 GPU-hours, cost 1.50; {why}"
    assert of_units[4] == f"dry run: would evict 2 pods of a/v4 (lost work: 0.5 GPU-hours; {why}"


def test_of_a_dry_run_with_one_unit_the_cost_is_said_once(tmp_path: Path) -> None:
    cost = {"name": "a/waits", "pods": 2, "gpu_hours": 0.5, "cost": 1.5, "rule": "idle first", "reason": "batch, saved"}
    dry = {"units": ["a/waits"], "pods": 2, "gpu_hours": 0.5, "cost": 1.5, "rule": "idle first", "unit_costs": [cost]}
    state = {"namespace": "b", "name": "llm", "phase": "queued", "reason": "too few", "dry_run": dry}
    with api_server(lambda _: Answer({"leads": True, "gangs": [state]})) as planner:
        victim = notes(tmp_path, "waits", (), "--planner", planner.url)
        _, *member = notes(tmp_path, "member", (), "--planner", planner.url)

    lost = "lost work: 0.5 GPU-hours, cost 1.50; rule: idle first; batch, saved"
    assert victim == [f"dry run: it would be evicted for gang b/llm ({lost})"]
    assert member == [f"dry run: would evict 2 pods of a/waits for it ({lost})"]


def test_of_a_gang_in_a_dry_run_perhaps_only_some_pods_would_be_evicted(tmp_path: Path) -> None:
    dry = {"units": ["b/llm"], "pods": 2, "gpu_hours": 0.5, "cost": None, "rule": "idle first"}
    state = {"namespace": "c", "name": "top", "phase": "queued", "reason": "too few", "dry_run": dry}
    with api_server(lambda _: Answer({"leads": True, "gangs": [state]})) as planner:
        *_, note = notes(tmp_path, "member", (), "--planner", planner.url)

    assert note.startswith("dry run: its gang, or some of its pods, would be evicted for gang c/top")


def test_the_planner_says_why_it_evicts_no_pod(tmp_path: Path) -> None:
    why_not = "the policy allows no running pod to be evicted for the gang"
    state = {"namespace": "b", "name": "llm", "phase": "queued", "reason": "too few", "no_eviction": why_not}
    with api_server(lambda _: Answer({"leads": True, "gangs": [state]})) as planner:
        member = notes(tmp_path, "member", (), "--planner", planner.url)

    assert member[-1] == f"no pod is evicted for it (preemption): {why_not}"


@pytest.mark.parametrize("options", [("-f", "-"), ("pod", "x", "--server", "http://127.0.0.1:9")])
def test_the_planner_is_asked_about_pods_of_the_cluster_only(tmp_path: Path, options: tuple[str, ...]) -> None:
    with api_server(cluster) as server:
        shown = why(server, tmp_path, *options, "--planner", "http://127.0.0.1:9", written=POD)

    assert (shown.exit_code, "--planner needs pod NAME, and excludes --server" in shown.output) == (2, True)


def test_a_released_pod_whose_scheduler_does_not_run(tmp_path: Path) -> None:
    """As the API server shows it: nothing changes the condition when the gate is removed."""
    blocked = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
    }
    released = pod("released", 1, phase="Pending", conditions=[blocked])
    released["spec"]["schedulerName"] = "gputopo-scheduler"
    file = file_of(tmp_path, [*THERE, released])
    shown = CliRunner().invoke(main.main, ["why", "pod", "released", "-n", "a", "--from", file]).stdout

    assert "".join(shown.partition("requests:")[:2]) == (
        "pod a/released: no scheduler named gputopo-scheduler has handled it since its gates were removed: check that "
        "one runs.\n"
        "\n"
        "pod a/released (scheduler: gputopo-scheduler) requests:"
    )
    assert "It fits 1 of 1 node.\n" in shown
    assert "blocked" not in shown
