"""The texts that both sides share: keys, reasons, the custom resource, the generated page."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from gputopo.crd import nodegpus, reservations
from gputopo.crd.reference import labels_page
from gputopo.labels import keys, reasons
from gputopo.labels.values import is_label_value

REPOSITORY = Path(__file__).parents[3]


def test_every_key_is_a_valid_qualified_name_and_is_defined_once() -> None:
    written = [key.key for key in (*keys.NODE_LABELS, *keys.NODE_ANNOTATIONS, *keys.MIRRORS) if key is not keys.PRODUCT]

    assert len(written) == len(set(written))
    for key in (*written, *(key.key for key in keys.POD_KEYS)):
        assert is_label_value(key.partition("/")[2] or key), key


def test_reasons_are_few_distinct_fixed_sentences() -> None:
    texts = [reason.value for reason in reasons.Reason]

    assert len(texts) <= 16 + 1  # one is about the pod itself
    assert len(set(texts)) == len(texts)
    assert not any(character.isdigit() for text in texts for character in text)


def test_a_malformed_request_is_quoted_and_bounded() -> None:
    assert reasons.malformed_text("gputopo.io/island", "maybe", "one of required, preferred, ignore") == (
        "the pod's request is malformed: gputopo.io/island: 'maybe' is not one of required, preferred, ignore"
    )
    assert len(reasons.malformed_text("k", "x" * 10_000, "short")) < 200


def test_the_custom_resource_accepts_what_the_agent_writes_and_refuses_what_it_would_not() -> None:
    schema = nodegpus.nodegpus_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    validator = jsonschema.Draft4Validator(schema)  # the dialect that Kubernetes' schemas come from
    pod = nodegpus.PodRef(namespace="team-a", name="train-0", container="main", uid="u")
    held = nodegpus.DeviceAllocation(gpu="GPU-1", pod=pod, replica=3, mig_device="MIG-1")
    nic = nodegpus.NicAllocation("mlx5_0", pod, "0000:3b:00.2")
    numa = nodegpus.NumaResources(0, 64, 60, 1 << 40, 1 << 39, (0, 1))
    kubelet = nodegpus.KubeletFacts("restricted", "pod", False, True, True, (numa,), ("GPU-2",), True, False, 2, 4)
    usage = nodegpus.GpuUsage("GPU-1", 90, 100, 50)
    rate = nodegpus.NicRate("mlx5_0", 400)
    facts = (held,), (nic,), kubelet, (usage,), (rate,)
    observation = nodegpus.NodeGpus("2026-11-21T05:00:00Z", "abc", "0.1.0", *facts)
    written = msgspec.json.decode(msgspec.json.encode(observation))

    assert list(validator.iter_errors(written)) == []
    assert written["allocations"][0]["pod"]["namespace"] == "team-a"
    assert [error.message for error in validator.iter_errors({"observedAt": 5})] == [
        "'contentHash' is a required property",
        "'agentVersion' is a required property",
        "5 is not of type 'string'",
    ]


@pytest.mark.parametrize(
    "crd",
    [
        pytest.param(each, id=each()["spec"]["names"]["kind"])
        for each in (nodegpus.nodegpus_crd, reservations.reservation_crd, reservations.ledger_crd)
    ],
)
def test_the_custom_resources_are_structural_schemas(crd: Callable[[], dict[str, Any]]) -> None:
    text = msgspec.json.encode(crd()).decode()

    assert not any(word in text for word in ("$ref", "anyOf", "oneOf", "prefixItems", '"title"', '"default"'))


@pytest.mark.skipif(not (REPOSITORY / "docs").is_dir(), reason="the docs folder is not part of this installation")
def test_the_generated_pages_are_not_stale() -> None:
    script = REPOSITORY / "docs" / "generate.py"
    result = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout) == (0, "")
    assert labels_page() == (REPOSITORY / "docs" / "labels.md").read_text("utf-8")


def test_no_key_is_spelled_outside_of_the_contract() -> None:
    sources = [
        path for folder in ("gputopo", "agent", "scheduler_core") for path in (REPOSITORY / folder).rglob("*.py")
    ]
    prefixes = ('"gputopo.io/', "'gputopo.io/", '"product.gputopo.io', '"nvidia.com/', "'nvidia.com/")
    outside = [path for path in sources if "labels" not in path.parts]
    found = {path.name for path in outside if any(prefix in path.read_text("utf-8") for prefix in prefixes)}

    # These spell document formats of the same name, not keys.
    assert found <= {"snapshot.py", "schema.py", "document.py"}


def test_a_state_is_tied_to_its_annotation_by_the_hash_of_the_text() -> None:
    assert nodegpus.content_hash("{}") == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
