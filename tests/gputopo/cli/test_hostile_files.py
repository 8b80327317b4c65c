"""Files with odd values in each place, for every command that reads them: a documented exit code, never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.gputopo.cli.hostile_calls import Files, check, empty_machine

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    10**400,
    "",
    "0",
    "-1",
    "nan",
    "1e400",
    "1Ei",
    "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
    "\x1b[31m",
    "a" * 300,
    [],
    {},
    [None],
    {"a": {"b": []}},
)
CELLS = ("", "0", "1000", "-1", "nan", "inf", "1e9", "1.5", "9" * 30, "٣", "\x1b[31m", '"', "a" * 300)
NODES = ("sn,cpu_milli,memory_mib,gpu,model", "n1,64000,262144,8,V100M32")
JOBS = ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,arrival_s,duration_s", "j0,4000,500,1,1000,2,100")
TIERS = (
    {
        "name": "a",
        "priority": 1000,
        "pods": 2,
        "num_gpu": 4,
        "workload": "training",
        "island": "required",
        "arrival_s": 0,
        "duration_s": 600,
        "checkpoint_s": 60,
        "restart_s": 10,
        "deadline_s": 900,
    },
)
ROOT = Path(__file__).parents[3]
POLICIES = (
    ROOT / "daemonset/scheduler/components/quality-and-cost/policy.yaml",
    *sorted((ROOT / "docs/examples").glob("*/*policy*.yaml")),
    *sorted((ROOT / "docs/examples/preemption").glob("*.yaml")),
)
LIST: dict[str, Any] = {
    "kind": "List",
    "apiVersion": "v1",
    "items": [
        {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": "n", "uid": "1", "labels": {"gputopo.io/islands": "8"}, "annotations": {"a": "b"}},
            "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False},
            "status": {
                "capacity": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "256Gi"},
                "allocatable": {"nvidia.com/gpu": "8", "cpu": "64", "memory": "256Gi"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": "p",
                "namespace": "team",
                "uid": "2",
                "creationTimestamp": "2026-11-01T00:00:00Z",
                "annotations": {"gputopo.io/gang": "g", "gputopo.io/gang-size": "2", "gputopo.io/island": "required"},
                "ownerReferences": [{"kind": "Job", "name": "j", "uid": "3", "controller": True}],
            },
            "spec": {
                "schedulerName": "gputopo-scheduler",
                "priority": 5,
                "schedulingGates": [{"name": "gputopo.io/gang"}],
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
            },
            "status": {"phase": "Pending"},
        },
    ],
}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document, from the outside in."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The document with another value in one place."""
    if not path:
        return value
    changed = copy.deepcopy(document)
    inside = changed
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = value
    return changed


def documents(document: Any, every: int, start: int) -> Iterator[Any]:
    """Some of the documents with one odd value."""
    changed = [(path, value) for path in places(document) for value in ODD]
    return (replaced(document, path, value) for path, value in changed[start::every])


def rows(lines: tuple[str, str]) -> Iterator[str]:
    """CSV files with one odd cell, or without a row or a column."""
    head, row = lines
    cells = row.split(",")
    for at in range(len(cells)):
        for odd in CELLS:
            yield f"{head}\n{','.join((*cells[:at], odd, *cells[at + 1 :]))}\n{row}x\n"
    yield from (head, row, f"{head}\n{row},1,2\n", f"{head}\n{cells[0]}\n", f"{head}\n" + f"{row}\n" * 3)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return empty_machine(tmp_path, monkeypatch)


def test_nodes_of_a_simulation(files: Files, tmp_path: Path) -> None:
    assert files
    for text in rows(NODES):
        check(["simulate", "--jobs", "3", "--cluster", written(tmp_path, "nodes.csv", text)])


def test_jobs_of_a_simulation(files: Files, tmp_path: Path) -> None:
    assert files
    for text in rows(JOBS):
        for change in (("arrival_s,duration_s", "arrival_s,duration_s"), ("arrival_s,duration_s", "x,y")):
            path = written(tmp_path, "jobs.csv", text.replace(*change))
            check(["simulate", "--cluster", "dgx-1*1", "--workload", path])


@pytest.mark.parametrize("start", range(3))
def test_jobs_with_tiers(files: Files, tmp_path: Path, start: int) -> None:
    assert files
    for document in documents(list(TIERS), 7, start):
        path = written(tmp_path, "tiers.json", json.dumps(document))
        check(["simulate", "--cluster", "dgx-1*1", "--workload", path])


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        pytest.param(("nodes",), 0, id="nodes"),
        pytest.param(("nodes", "-o", "wide"), 1, id="nodes wide"),
        pytest.param(("pods",), 2, id="pods"),
        pytest.param(("gangs",), 3, id="gangs"),
        pytest.param(("preemptions",), 4, id="preemptions"),
        pytest.param(("why", "pod", "p", "-n", "team"), 5, id="why pod"),
        pytest.param(("why", "gang", "g", "-n", "team"), 6, id="why gang"),
        pytest.param(("what-if", "-f", "{pod}"), 7, id="what-if"),
        pytest.param(("ui", "-o", "html"), 8, id="ui"),
    ],
)
def test_a_cluster(files: Files, tmp_path: Path, arguments: tuple[str, ...], start: int) -> None:
    for document in documents(LIST, 23, start):
        path = written(tmp_path, "cluster.json", json.dumps(document))
        check([*map(files.filled, arguments), "--from", path])
        if start == 0:
            check(["simulate", "--jobs", "3", "--cluster", path])


@pytest.mark.parametrize("policy", POLICIES, ids=[each.name for each in POLICIES])
def test_a_policy_file(files: Files, tmp_path: Path, policy: Path) -> None:
    assert files
    for document in documents(yaml.safe_load(policy.read_text(encoding="utf-8")), 11, len(policy.name) % 11):
        path = written(tmp_path, "policy.yaml", yaml.safe_dump(document))
        check(["policy", "check", path])
        check(["policy", "show", path])
