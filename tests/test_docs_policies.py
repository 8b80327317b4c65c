"""docs/policies.md against the code: its files are read, and its nodes score what it says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from gputopo.labels.reasons import Reason
from scheduler_core.cache.node import parse_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.policy.file import parse_policy_file
from scheduler_core.policy.limits import DEFAULT_LIMITS
from scheduler_core.policy.models import WeightsModel
from scheduler_core.policy.profiles import Policies
from scheduler_core.request.manifest import parse_manifest
from scheduler_core.request.pod_request import PodRequest
from scheduler_core.request.workload_type import DETECTION_RULE_NAMES
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, node, occupant, record

TEXT = (Path(__file__).parents[1] / "docs/policies.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"\n## (Example: .*?)\n(.*?)(?=\n## |\Z)", TEXT, re.DOTALL)
_MACHINES = {
    "HGX H100": "hgx_h100",
    "HGX H100 with a weak uplink": "h100_weak_uplink",
    "8 x RTX 4090": "rtx4090",
    "DGX-1": "dgx1",
    "A100 in pairs": "a100_bridged",
}
_SHARED = {"nvidia.com/gpu.count": "1", "nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.replicas": "10"}


class Row(NamedTuple):
    """A node of an example and what each profile says of it: points, or a reason."""

    record: NodeRecord
    answers: dict[str, str]


def _rows(body: str) -> Iterator[Row]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines() if line[:1] == "|"]
    (_, _, _, _, *profiles), _, *nodes = lines
    for name, machine, used, labels, *answers in nodes:
        pairs = dict(label.split("=") for label in labels.split())
        yield Row(_record(name, machine, used.split(), pairs), dict(zip(profiles, answers, strict=True)))


def _record(name: str, machine: str, used: list[str], labels: dict[str, str]) -> NodeRecord:
    if "shared" in machine:
        pods = tuple(occupant(f"p{at}", 1, vram=share, workload="inference") for at, share in enumerate(used))
        return NodeRecord(name, parse_node(node(labels=_SHARED, allocatable={"nvidia.com/gpu": 10})), pods=pods)
    there = [occupant("there", int(used[0]), workload=used[1])] if used else []
    held = {"there": list(range(int(used[0])))} if used else {}
    return record(name, MACHINES[_MACHINES[machine]](), held=held, pods=there, labels=labels)


def _answer(policies: Policies, profile: str, pod: str, rows: list[Row]) -> dict[str, str]:
    ((read, _),) = parse_manifest(pod)
    placement = next(each for each in policies.profiles if each.policy.name == profile)
    schedulers = placement.match.schedulers
    spec = msgspec.structs.replace(read.spec, scheduler_name=next(iter(schedulers), read.spec.scheduler_name))
    request = policies.parse_pod(msgspec.structs.replace(read, spec=spec))
    assert isinstance(request, PodRequest)
    assert policies.profile_for(request) is placement
    table = snapshot_of((row.record for row in rows), NOW, policies.node_policy)
    found = evaluate(request, table, list(table.records), placement.policy)
    return {
        name: found.rejected[name].name if name in found.rejected else f"{found.scores[name].points:.2f}"
        for name in table.records
    }


@pytest.mark.parametrize(("title", "body"), EXAMPLES, ids=[title for title, _ in EXAMPLES])
def test_nodes_of_the_example_score_what_it_says(title: str, body: str) -> None:
    policy, pod = re.findall(r"```yaml\n(.*?)```", body, re.DOTALL)
    policies = parse_policy_file(policy, title).policies
    rows = list(_rows(body))

    for profile in rows[0].answers:
        assert _answer(policies, profile, pod, rows) == {row.record.name: row.answers[profile] for row in rows}


def test_there_are_four_examples_and_every_policy_file_on_the_page_is_one() -> None:
    files = [each for each in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL) if "PlacementPolicy" in each]

    assert len(EXAMPLES) == 4
    policies = [parse_policy_file(each, "page").policies for each in files]
    assert len(policies) == 6
    (limits,) = (each.limits for each in policies if each.limits.by_namespace)
    assert limits._replace(by_namespace={}) == DEFAULT_LIMITS._replace(by_namespace={})


def test_every_rule_and_every_factor_has_a_text() -> None:
    factors = [field.alias for field in WeightsModel.model_fields.values()]

    assert [name for name in (*DETECTION_RULE_NAMES, *factors) if f"`{name}`" not in TEXT] == []


def test_reasons_on_the_page_are_reasons() -> None:
    said = {answer for _, body in EXAMPLES for row in _rows(body) for answer in row.answers.values()}

    assert {answer for answer in said if not answer[0].isdigit()} <= {reason.name for reason in Reason}
