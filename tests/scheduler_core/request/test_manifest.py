"""The pods of a manifest."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scheduler_core.request.manifest import ManifestError, parse_manifest

SPEC = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}
TEMPLATE = {"metadata": {"annotations": {"gputopo.io/island": "required"}}, "spec": SPEC}


@pytest.mark.parametrize(
    ("document", "name", "annotated"),
    [
        pytest.param({"kind": "Pod", "metadata": {"name": "p"}, "spec": SPEC}, "p", False, id="a pod"),
        pytest.param({"kind": "Pod", "spec": SPEC}, "", False, id="a pod without metadata"),
        pytest.param({"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": TEMPLATE}}, "j", True, id="a job"),
        pytest.param(
            {"kind": "CronJob", "metadata": {"name": "j"}, "spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
            "j",
            True,
            id="a cron job",
        ),
        pytest.param(
            {"kind": "PodTemplate", "metadata": {"name": "t"}, "template": TEMPLATE}, "t", True, id="template"
        ),
        pytest.param(
            {"kind": "Deployment", "metadata": None, "spec": {"template": {"spec": SPEC}}}, "", False, id="no metadata"
        ),
    ],
)
def test_pod_of_a_document(document: dict[str, Any], name: str, annotated: bool) -> None:
    ((pod, _),) = parse_manifest(yaml.safe_dump(document))

    assert pod.metadata.name == name
    assert bool(pod.metadata.annotations) == annotated
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": 2}


def test_a_timestamp_without_quotes_is_text_as_in_kubernetes() -> None:
    ((pod, _),) = parse_manifest(
        "{kind: Pod, metadata: {creationTimestamp: 2026-11-18T11:06:40Z, annotations: {since: 2026-11-18}}, spec: {}}"
    )

    assert pod.metadata.creation_timestamp == "2026-11-18T11:06:40Z"
    assert pod.metadata.annotations == {"since": "2026-11-18"}


def test_several_documents_and_lists_are_read_in_order() -> None:
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": SPEC} for name in "abc"]
    text = yaml.safe_dump_all([pods[0], None, {"kind": "List", "items": [*pods[1:], "what"]}, {"kind": "ConfigMap"}])

    assert [each.pod.metadata.name for each in parse_manifest(text)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "result"),
    [
        pytest.param("", "no Pod found", id="empty"),
        pytest.param("- a\n- b", "no Pod found", id="a list of words"),
        pytest.param("kind: Job\nspec: {template: none}", "no Pod found", id="invalid template"),
        pytest.param("kind: Job\nspec: what", "no Pod found", id="invalid spec"),
        pytest.param("a: [", "invalid YAML or JSON: while parsing", id="not YAML"),
        pytest.param(
            "kind: Pod\nmetadata: {name: p, annotations: {gputopo.io/min-bandwidth: 300}}",
            "invalid pod 'p': Expected `str`, got `int`",
            id="a number instead of a string",
        ),
        pytest.param("kind: Pod\nmetadata: what", "invalid pod", id="invalid metadata"),
    ],
)
def test_manifest_without_a_valid_pod(text: str, result: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text)

    assert result in str(caught.value)


def test_key_that_the_template_lacks_is_named() -> None:
    metadata = {"annotations": {"gputopo.io/island": "required", "gputopo.io/numa": "required"}, "labels": ["odd"]}
    job = {"kind": "Job", "metadata": metadata, "spec": {"template": TEMPLATE}}
    bare = {"kind": "Pod", "metadata": {"annotations": metadata["annotations"]}, "spec": SPEC}

    assert [each.left_out for each in parse_manifest(yaml.safe_dump_all([job, bare]))] == [("gputopo.io/numa",), ()]
