"""Objects of gangs, and an API server that has them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from gputopo.cli import main
from gputopo.crd.reservations import PlannedMember, ReservationSpec, spec_hash
from gputopo.kube.rbac import JOBS, LEDGERS, NODE_GPUS, NODES, PODS, RESERVATIONS
from tests.api_server import Answer, ApiServer, Asked
from tests.gputopo.cli.cluster_objects import NODE, STATE, listed, pod

GATE, KUEUE = {"name": "gputopo.io/gang"}, {"name": "kueue.x-k8s.io/admission"}
SINCE = (datetime.now(UTC) - timedelta(days=2, hours=12)).strftime("%Y-%m-%dT%H:%M:%SZ")


def member(name: str, gang: str | None = "llm", *gates: dict[str, str], **changed: Any) -> dict[str, Any]:
    """A pod of two that ask for two GPUs each."""
    said = {} if gang is None else {"gputopo.io/gang": gang, "gputopo.io/gang-size": "2"}
    found = pod(name, 2, annotations=said, phase="Pending", **changed)
    found["metadata"] |= {"creationTimestamp": SINCE, "resourceVersion": "7"}
    found["spec"]["schedulingGates"] = list(gates or [GATE])
    return found


def job(name: str) -> dict[str, Any]:
    """A pod of an indexed Job, which says nothing of its size."""
    found = member(name, None, namespace="b")
    found["metadata"]["labels"] = {"job-name": "train", "batch.kubernetes.io/job-completion-index": name[-1]}
    return found


PLAN = ReservationSpec("done", (PlannedMember("u-done-0", "done-0", "gpu-0", (("nvidia.com/gpu", 3),)),))
LEDGER = {
    "metadata": {"name": "gpus", "uid": "L", "resourceVersion": "7", "generation": 1},
    "spec": {
        "planner": "p",
        "epoch": 1,
        "entries": [{"uid": "R", "namespace": "a", "name": "done-1", "hash": spec_hash(PLAN), "phase": "Committed"}],
    },
}
THERE = [member("w-0"), member("w-1"), member("k-0", "kueued", GATE, KUEUE), job("t-0"), job("t-1"), pod("web", 0)]
JOB = {"metadata": {"name": "train", "namespace": "b", "uid": "J"}, "spec": {"parallelism": 3, "completions": 3}}
REPORT = {**STATE, "allocations": []}
ANSWERS = {
    PODS.path(): listed(*THERE),
    PODS.path(namespace="a"): listed(*(each for each in THERE if each["metadata"]["namespace"] == "a")),
    JOBS.path(): listed(JOB),
    NODES.path(): listed(NODE),
    NODE_GPUS.path(): listed(REPORT),
    RESERVATIONS.path(): listed(),
    LEDGERS.path(): listed({**LEDGER, "spec": {"planner": "p", "epoch": 1, "levels": "rack=example.com/rack"}}),
}


def cluster(**changed: Answer) -> Callable[[Asked], Answer]:
    """Three gangs and one node; other answers by plural. What is not there is not served."""
    answers = {
        **ANSWERS,
        **{path: answer for path in ANSWERS for name, answer in changed.items() if path.endswith(name)},
    }
    return lambda asked: answers.get(asked.path, Answer({"message": "not found"}, 404))


def run(server: ApiServer, folder: Path, *arguments: str) -> Result:
    there = ["--kubeconfig", server.kubeconfig(folder / "config")]
    return CliRunner().invoke(main.main, [*arguments, *there])
