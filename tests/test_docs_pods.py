"""docs/pods.md and docs/troubleshooting.md against the code: what they show works, and they leave nothing out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gputopo.kube.rbac import READER
from gputopo.labels import keys
from gputopo.labels.reasons import Reason
from gputopo.rings import rings_of
from scheduler_core.explain.advice import SEE
from scheduler_core.request.manifest import parse_manifest
from scheduler_core.request.pod_request import PodRequest, Strength, parse_request
from scheduler_core.request.workload_type import WorkloadType
from tests.machines import MACHINES

DOCS = Path(__file__).parent.parent / "docs"
PODS = (DOCS / "pods.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PODS, re.DOTALL)


@pytest.mark.parametrize("key", keys.POD_KEYS, ids=lambda key: key.key)
def test_every_key_of_a_pod_has_its_place(key: keys.LabelKey) -> None:
    headings = [line for line in PODS.splitlines() if line.startswith("## ")]

    assert any(f"`{key.key}`" in line for line in headings)


@pytest.mark.parametrize("word", [*Strength, *WorkloadType], ids=str)
def test_every_word_is_documented(word: Strength | WorkloadType) -> None:
    assert f"`{word.value}`" in PODS


@pytest.mark.parametrize(
    "text", [each for each in EXAMPLES if "kind: Pod" in each], ids=lambda text: text[45:70].strip()
)
def test_examples_are_understood(text: str) -> None:
    ((pod, _),) = parse_manifest(text)
    request = parse_request(pod)

    assert isinstance(request, PodRequest)
    assert request.profile.gpus
    assert any(value is not None for value in request.profile.constraints)


def test_the_role_is_the_one_that_the_commands_obey() -> None:
    (text,) = (each for each in EXAMPLES if "kind: ClusterRole" in each)
    rules = yaml.safe_load(text)["rules"]

    assert {(each["apiGroups"][0], each["resources"][0]): tuple(each["verbs"]) for each in rules} == {
        (resource.group, resource.rbac_name): verbs for resource, verbs in READER.verbs.items()
    }


@pytest.mark.parametrize(
    ("machine", "row"),
    [
        ("hgx_h100", "| HGX H100 (NVSwitch) | 900 | 900 | 900 |"),
        ("a100_mesh", "| HGX A100 with 4 GPUs, 4 links per pair | 600 | 200 | 200 |"),
        ("a100_bridged", "| A100 PCIe in bridged pairs | 600 | PCIe: rejected | 600 |"),
    ],
)
def test_rates_in_the_table_are_those_of_the_machines(machine: str, row: str) -> None:
    topology = MACHINES[machine]()
    islands, found = topology.islands, rings_of(topology)
    assert islands is not None
    result = []
    for size in (4, 2):
        ring = found.best_ring(size)
        assert ring is not None
        result.append(f"{ring.gbps:.0f}" if ring.lanes else "PCIe: rejected")

    assert row in PODS
    assert [cell.strip() for cell in row.split("|")[2:5]] == [f"{islands[0].gbps:.0f}", *result]


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_is_in_troubleshooting(reason: Reason) -> None:
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")

    assert f"| {reason.value.removesuffix(SEE)} | " in page
