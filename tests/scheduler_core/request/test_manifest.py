"""Pods as people write them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from scheduler_core.request.manifest import ManifestError, parse_manifest, parse_pods

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
def test_pod_of(document: dict[str, Any], name: str, annotated: bool) -> None:
    (pod,) = parse_pods(yaml.safe_dump(document))

    assert pod.metadata.name == name
    assert bool(pod.metadata.annotations) == annotated
    assert pod.spec.containers is not None
    assert pod.spec.containers[0].resources.limits == {"nvidia.com/gpu": 2}


def test_several_documents_and_lists_are_read_in_order() -> None:
    pods = [{"kind": "Pod", "metadata": {"name": name}, "spec": SPEC} for name in "abc"]
    text = yaml.safe_dump_all([pods[0], None, {"kind": "List", "items": [*pods[1:], "what"]}, {"kind": "ConfigMap"}])

    assert [pod.metadata.name for pod in parse_pods(text)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "there is no Pod in it", id="empty"),
        pytest.param("- a\n- b", "there is no Pod in it", id="a list of words"),
        pytest.param("kind: Job\nspec: {template: none}", "there is no Pod in it", id="a template that is none"),
        pytest.param("kind: Job\nspec: what", "there is no Pod in it", id="a spec that is none"),
        pytest.param("a: [", "it is neither YAML nor JSON: while parsing", id="not YAML"),
        pytest.param(
            "kind: Pod\nmetadata: {name: p, annotations: {gputopo.io/min-bandwidth: 300}}",
            "its pod 'p' is none that Kubernetes takes: Expected `str`, got `int`",
            id="a number where Kubernetes wants a text",
        ),
        pytest.param("kind: Pod\nmetadata: what", "its pod", id="metadata that is none"),
    ],
)
def test_what_is_no_pod(text: str, told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_pods(text)

    assert told in str(caught.value)


def test_wish_that_the_template_lacks_is_named() -> None:
    metadata = {"annotations": {"gputopo.io/island": "required", "gputopo.io/numa": "required"}, "labels": ["odd"]}
    job = {"kind": "Job", "metadata": metadata, "spec": {"template": TEMPLATE}}
    bare = {"kind": "Pod", "metadata": {"annotations": metadata["annotations"]}, "spec": SPEC}

    assert [each.left_out for each in parse_manifest(yaml.safe_dump_all([job, bare]))] == [("gputopo.io/numa",), ()]
