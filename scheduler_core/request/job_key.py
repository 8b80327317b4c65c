"""The job that a pod names by a label or an annotation. Pure.

The pods of a JobSet belong to several Jobs, and bare pods to no owner at all: the owner alone does not tell that they
are of one job.
"""

from __future__ import annotations

from gputopo.labels import workloads
from scheduler_core.request.pod import Metadata

JOB_KEYS = (workloads.TRAINING_JOB_ID, workloads.KUBEFLOW_JOB, workloads.JOBSET)
_KEYS = frozenset(JOB_KEYS)
_MAX_NAME = 253  # the maximum length of a name in Kubernetes; an annotation may be much longer


def job_key(metadata: Metadata) -> str | None:
    """Return ``namespace/key/name`` of the job that the pod names by the first of ``JOB_KEYS``; None: it names none.

    A label takes precedence over an annotation. A name of more than 253 characters names no job.
    """
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    if _KEYS.isdisjoint(labels) and _KEYS.isdisjoint(annotations):  # most pods
        return None
    for key in JOB_KEYS:
        name = labels.get(key) or annotations.get(key)
        if name and len(name) <= _MAX_NAME:
            return f"{metadata.namespace}/{key}/{name}"
    return None
