"""How the controllers and images that people run on GPUs show themselves on pods. Keys and names, each with its source.

Nothing here is ours: these are read, never written.
"""

from __future__ import annotations

from gputopo.labels.keys import API_GROUP

# Labels by which a pod's controller marks it.
KUBEFLOW_JOB = "training.kubeflow.org/job-name"  # kubeflow/training-operator v1, kubeflow/mpi-operator v2beta1
TRAINJOB_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"  # kubeflow/trainer v2, on jobs and their pods
JOBSET = "jobset.sigs.k8s.io/jobset-name"  # kubernetes-sigs/jobset
LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"  # kubernetes-sigs/lws
RAY_CLUSTER = "ray.io/cluster"  # ray-project/kuberay
RAY_ORIGIN = "ray.io/originated-from-crd"  # RayJob, RayService or RayCluster: kuberay
RAY_SERVE = "ray.io/serve"  # "true" on pods of a RayService that take requests: kuberay
KSERVE = "serving.kserve.io/inferenceservice"  # kserve
PART_OF = "app.kubernetes.io/part-of"  # "llminferenceservice" on pods of kserve's LLMInferenceService
NOTEBOOK = "notebook-name"  # kubeflow/notebooks, whose pods belong to a StatefulSet

# Owners, as ``group/kind``. Workloads of Kubernetes itself say least about what runs in them.
JOB = "batch/Job"
REPLICA_SET = "apps/ReplicaSet"
STATEFUL_SET = "apps/StatefulSet"
PYTORCH_JOB = "kubeflow.org/PyTorchJob"
MPI_JOB = "kubeflow.org/MPIJob"
KUBEFLOW_KINDS = tuple(f"kubeflow.org/{kind}" for kind in ("TFJob", "XGBoostJob", "PaddleJob", "JAXJob"))
RAY_CLUSTER_KIND = "ray.io/RayCluster"

# Names of the PriorityClasses that come with gputopo.
SCAVENGER = f"{API_GROUP.partition('.')[0]}-scavenger"
NORMAL = f"{API_GROUP.partition('.')[0]}-normal"
CRITICAL = f"{API_GROUP.partition('.')[0]}-critical"
