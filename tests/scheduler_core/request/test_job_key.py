"""The job that a pod names, whatever the value."""

from __future__ import annotations

import pytest

from scheduler_core.request.job_key import job_key
from scheduler_core.request.pod import Metadata

KUBEFLOW, JOBSET = "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name"


@pytest.mark.parametrize(
    ("labels", "annotations", "key"),
    [
        pytest.param({"training-job-id": "t"}, None, "team/training-job-id/t", id="label"),
        pytest.param(None, {"training-job-id": "t"}, "team/training-job-id/t", id="annotation"),
        pytest.param({"training-job-id": "l"}, {"training-job-id": "a"}, "team/training-job-id/l", id="label first"),
        pytest.param({KUBEFLOW: "t"}, None, f"team/{KUBEFLOW}/t", id="Kubeflow"),
        pytest.param({JOBSET: "t"}, None, f"team/{JOBSET}/t", id="JobSet"),
        pytest.param({JOBSET: "s", "training-job-id": "t"}, None, "team/training-job-id/t", id="set by hand first"),
        pytest.param({JOBSET: ""}, None, None, id="empty"),
        pytest.param(None, {"training-job-id": "t" * 254}, None, id="longer than a name"),
        pytest.param(None, None, None, id="no labels"),
    ],
)
def test_job_key(labels: dict[str, str] | None, annotations: dict[str, str] | None, key: str | None) -> None:
    assert job_key(Metadata("p", "team", "uid-p", labels=labels, annotations=annotations)) == key
