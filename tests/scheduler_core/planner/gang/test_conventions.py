"""Gang conventions: which gang a pod belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_core.planner.gang.conventions import (
    GANG_CONVENTIONS,
    conventional_name,
    is_single_pod_gang,
    named_gang,
    parse_gang_request,
    single_pod_request,
)
from scheduler_core.planner.gang.member import GangName, GangRequest
from scheduler_core.request.pod import Metadata, PodOwner
from scheduler_core.request.pod_request import InvalidRequest

JOB = PodOwner("batch/v1", "Job", "uid-job", controller=True)
INDEXED = {
    "batch.kubernetes.io/job-name": "train",
    "job-name": "train",
    "batch.kubernetes.io/job-completion-index": "3",
}
JOBSET = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/jobset-uid": "uid-jobset",
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "jobset.sigs.k8s.io/group-name": "default",
    "jobset.sigs.k8s.io/job-global-index": "0",
    "jobset.sigs.k8s.io/restart-attempt": "2",
    **INDEXED,
}
LWS = {
    "leaderworkerset.sigs.k8s.io/name": "serve",
    "leaderworkerset.sigs.k8s.io/group-index": "1",
    "leaderworkerset.sigs.k8s.io/worker-index": "2",
    "leaderworkerset.sigs.k8s.io/template-revision-hash": "6c4f5d",
}
OURS = {"gputopo.io/gang": "llm", "gputopo.io/gang-size": "16"}


def meta(
    labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None, owner: PodOwner | None = JOB
) -> Metadata:
    return Metadata(
        "p", "team", "uid-p", dict(labels or {}), dict(annotations or {}), None if owner is None else (owner,)
    )


def wants(name: str, **declared: Any) -> GangRequest:
    return GangRequest(GangName("team", name), **{"creator_uid": "uid-job", **declared})


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        pytest.param(meta(), None, id="none"),
        pytest.param(meta(annotations=OURS), wants("llm", size=16, convention="annotations"), id="annotations"),
        pytest.param(
            meta(
                annotations={
                    **OURS,
                    "gputopo.io/gang-minimum": "12",
                    "gputopo.io/gang-timeout": "2m",
                    "gputopo.io/gang-required-topology": "rack",
                    "gputopo.io/gang-preferred-topology": "clique",
                }
            ),
            wants(
                "llm",
                size=16,
                minimum=12,
                timeout_s=120.0,
                required="rack",
                preferred="clique",
                convention="annotations",
            ),
            id="all annotations",
        ),
        pytest.param(
            meta(JOBSET, OURS),
            wants("llm", size=16, rank=3, convention="annotations"),
            id="annotations before a JobSet",
        ),
        pytest.param(
            meta(annotations={"gputopo.io/gang": "llm"}, owner=None),
            wants("llm", convention="annotations", creator_uid=None),
            id="bare pod, size not declared",
        ),
        pytest.param(
            meta(annotations={"gputopo.io/planned": "true"}),
            wants("pod.uid-p", size=1, convention="annotations"),
            id="single pod",
        ),
        pytest.param(meta(annotations={"gputopo.io/planned": "false"}), None, id="not planned"),
        pytest.param(
            meta({"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "4"}),
            wants("kueue.g", size=4, convention="Kueue"),
            id="Kueue",
        ),
        pytest.param(
            meta(
                {"kueue.x-k8s.io/pod-group-name": "g", "kueue.x-k8s.io/pod-group-pod-index": "1"},
                {"kueue.x-k8s.io/pod-group-total-count": "4", "gputopo.io/gang-minimum": "2"},
            ),
            wants("kueue.g", size=4, minimum=2, rank=1, convention="Kueue"),
            id="Kueue, with an index and a minimum of ours",
        ),
        pytest.param(
            meta({"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-serving": "true"}),
            None,
            id="Kueue, serving replicas",
        ),
        pytest.param(
            meta(LWS, {"leaderworkerset.sigs.k8s.io/size": "4"}),
            wants("lws.serve.1.6c4f5d", size=4, rank=2, convention="LeaderWorkerSet"),
            id="LeaderWorkerSet",
        ),
        pytest.param(
            meta({"scheduling.x-k8s.io/pod-group": "pg"}),
            wants("podgroup.pg", convention="Coscheduling"),
            id="Coscheduling",
        ),
        pytest.param(
            meta({"pod-group.scheduling.sigs.k8s.io": "pg", **INDEXED}),
            wants("podgroup.pg", rank=3, convention="Coscheduling"),
            id="Coscheduling, older, on an indexed Job",
        ),
        pytest.param(
            meta(
                {
                    "pod-group.scheduling.sigs.k8s.io/name": "pg",
                    "pod-group.scheduling.sigs.k8s.io/min-available": "3",
                }
            ),
            wants("podgroup.pg", minimum=3, convention="Coscheduling"),
            id="Coscheduling, oldest",
        ),
        pytest.param(
            meta(annotations={"scheduling.k8s.io/group-name": "pg"}),
            wants("volcano.pg", convention="Volcano"),
            id="Volcano",
        ),
        pytest.param(
            meta(annotations={"scheduling.volcano.sh/group-name": "pg"}),
            wants("volcano.pg", convention="Volcano"),
            id="Volcano's own prefix",
        ),
        pytest.param(
            meta(JOBSET),
            wants("jobset.train", rank=3, convention="JobSet", attempt=2, creator_uid="uid-jobset"),
            id="JobSet",
        ),
        pytest.param(
            meta({**JOBSET, "jobset.sigs.k8s.io/group-name": "ps", "jobset.sigs.k8s.io/job-global-index": "2"}),
            wants("jobset.train.ps", rank=2 * 65536 + 3, convention="JobSet", attempt=2, creator_uid="uid-jobset"),
            id="JobSet, a group, third Job",
        ),
        pytest.param(
            meta({"jobset.sigs.k8s.io/jobset-name": "train"}),
            wants("jobset.train", convention="JobSet"),
            id="JobSet of an old release, no index",
        ),
        pytest.param(
            meta({**JOBSET, "jobset.sigs.k8s.io/replicatedjob-name": "model-initializer"}),
            wants("job.train", rank=3, convention="Job"),
            id="initializer of a TrainJob",
        ),
        pytest.param(
            meta({**JOBSET, "trainer.kubeflow.org/trainjob-ancestor-step": "dataset-initializer"}),
            wants("job.train", rank=3, convention="Job"),
            id="initializer of a TrainJob, by its step",
        ),
        pytest.param(
            meta({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/replica-type": "Master"}),
            wants("kubeflow.j", rank=0, convention="Kubeflow"),
            id="Kubeflow master",
        ),
        pytest.param(
            meta(
                {
                    "training.kubeflow.org/job-name": "j",
                    "training.kubeflow.org/replica-type": "worker",
                    "training.kubeflow.org/replica-index": "4",
                }
            ),
            wants("kubeflow.j", rank=5, convention="Kubeflow"),
            id="Kubeflow worker",
        ),
        pytest.param(
            meta(
                {
                    "training.kubeflow.org/job-name": "j",
                    "training.kubeflow.org/replica-type": "ps",
                    "training.kubeflow.org/replica-index": "4",
                }
            ),
            wants("kubeflow.j", convention="Kubeflow"),
            id="Kubeflow parameter server",
        ),
        pytest.param(
            meta({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/job-role": "launcher"}),
            wants("kubeflow.j", rank=0, convention="Kubeflow"),
            id="MPI launcher",
        ),
        pytest.param(
            meta({"training.kubeflow.org/job-name": "j", "training.kubeflow.org/job-role": "worker"}),
            wants("kubeflow.j", convention="Kubeflow"),
            id="worker without an index",
        ),
        pytest.param(
            meta({"training.kubeflow.org/job-name": "j"}, {"gputopo.io/gang-size": "8"}),
            wants("kubeflow.j", size=8, convention="Kubeflow"),
            id="Kubeflow, and a size of ours",
        ),
        pytest.param(meta(INDEXED), wants("job.train", rank=3, convention="Job"), id="indexed Job"),
        pytest.param(
            meta({"job-name": "train"}, {"batch.kubernetes.io/job-completion-index": "3"}),
            wants("job.train", rank=3, convention="Job"),
            id="indexed Job before 1.27",
        ),
        pytest.param(meta({"job-name": "train"}), None, id="Job without indices"),
        pytest.param(
            meta({"job-name": "train"}, {"gputopo.io/gang-size": "8"}),
            wants("job.train", size=8, convention="Job"),
            id="Job without indices, and a size of ours",
        ),
        pytest.param(meta({"training-job-id": "t-1"}), None, id="training job"),
        pytest.param(
            meta({"training-job-id": "t-1"}, {"gputopo.io/gang-size": "8"}),
            wants("training.t-1", size=8, convention="training job"),
            id="training job, and a size of ours",
        ),
    ],
)
def test_a_pod_s_gang(metadata: Metadata, wanted: GangRequest | None) -> None:
    assert parse_gang_request(metadata) == wanted


def test_a_scheduling_group_of_kubernetes_names_a_gang() -> None:
    assert parse_gang_request(meta(INDEXED), "pg") == wants("group.pg", rank=3, convention="scheduling group")
    assert named_gang(meta(INDEXED), "pg") == wants("group.pg", rank=3, convention="scheduling group")


@pytest.mark.parametrize(
    ("metadata", "reason", "gang"),
    [
        pytest.param(
            meta(annotations={**OURS, "gputopo.io/gang-size": "abc"}),
            "the pod's request is malformed: gputopo.io/gang-size: 'abc' is not a number of pods, 1 to 65536",
            "llm",
            id="size",
        ),
        pytest.param(
            meta(annotations={**OURS, "gputopo.io/gang": "L L M"}),
            "the pod's request is malformed: gputopo.io/gang: 'L L M' is not a name: at most 63 lower-case letters, "
            "digits and -",
            None,
            id="name",
        ),
        pytest.param(
            meta({"kueue.x-k8s.io/pod-group-name": "g"}, {"kueue.x-k8s.io/pod-group-total-count": "many"}),
            "the pod's request is malformed: kueue.x-k8s.io/pod-group-total-count: 'many' is not a number of pods",
            "kueue.g",
            id="another's size",
        ),
        pytest.param(
            meta(annotations={"gputopo.io/gang-size": "8"}),
            "the pod's request is malformed: gputopo.io/gang-size: '8' is not applicable: the pod names no gang; "
            "set gputopo.io/gang",
            None,
            id="size of no gang",
        ),
        pytest.param(
            meta({"gputopo.io/gang": "llm"}),
            "the pod's request is malformed: gputopo.io/gang: 'llm' is a label, and read as an annotation only",
            None,
            id="label",
        ),
    ],
)
def test_malformed_annotations_are_rejected_and_the_named_gang_is_kept(
    metadata: Metadata, reason: str, gang: str | None
) -> None:
    found = named_gang(metadata)

    assert parse_gang_request(metadata) == InvalidRequest(reason)
    assert (None if found is None else found.gang.name) == gang


def test_a_single_pod_is_a_gang_of_one() -> None:
    found = single_pod_request(meta(owner=None), "gate")

    assert found == wants("pod.uid-p", size=1, convention="gate", creator_uid=None)
    assert is_single_pod_gang(found.gang)
    assert not is_single_pod_gang(GangName("team", "llm"))


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        pytest.param(("train",), "jobset.train", id="plain"),
        pytest.param(("train", "default"), "jobset.train", id="default group"),
        pytest.param(("train", ""), "jobset.train", id="not declared"),
        pytest.param(("default",), "jobset.default", id="a JobSet of that name"),
        pytest.param(("Train_7",), "jobset.train-7-a87b327b14", id="label value that is not a valid name"),
        pytest.param(("___",), "jobset.5e37516b05", id="no valid character"),
    ],
)
def test_gang_names_are_valid_object_names(parts: tuple[str, ...], name: str) -> None:
    assert conventional_name("jobset", "team", *parts) == GangName("team", name)


@given(
    st.sampled_from([convention.prefix for convention in GANG_CONVENTIONS]),
    st.lists(st.text(min_size=1, max_size=253), min_size=1, max_size=3),
)
def test_every_conventional_name_is_a_valid_object_name(prefix: str, parts: list[str]) -> None:
    name = conventional_name(prefix, "team", *parts).name

    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
    assert name.startswith(f"{prefix}.")
    assert len(name) <= 200


@given(st.text(min_size=1, max_size=63), st.text(min_size=1, max_size=63))
@example("default", "")
def test_different_labels_are_different_gangs(one: str, other: str) -> None:
    assert (conventional_name("job", "team", one) == conventional_name("job", "team", other)) == (one == other)


def test_no_two_conventions_share_a_name() -> None:
    prefixes = [convention.prefix for convention in GANG_CONVENTIONS]

    assert len({*prefixes, "pod"}) == len(prefixes) + 1
    assert all("." not in prefix for prefix in prefixes)


DOCS = (Path(__file__).parents[4] / "docs" / "gangs.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("convention", GANG_CONVENTIONS, ids=lambda convention: convention.name)
def test_the_documentation_lists_every_convention(convention: Any) -> None:
    keys = "<br>".join(f"`{key}`" for key in convention.keys) or "`spec.schedulingGroup.podGroupName`"
    declared = [f"`{key}`" for key in (convention.size, convention.minimum) if key] + (
        [convention.size_declared_by] if convention.size_declared_by else []
    )
    size = " or ".join(declared) or "`gputopo.io/gang-size`"

    assert (
        f"| {convention.name} | {keys} | `{convention.prefix}.` | {size} | {convention.source} |" in DOCS.splitlines()
    )


def test_the_documentation_lists_them_in_their_order() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `[a-z]+\.` \|", DOCS, re.MULTILINE)

    assert rows == [convention.name for convention in GANG_CONVENTIONS]
