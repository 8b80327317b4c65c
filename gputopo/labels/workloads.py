"""Labels, annotations and owners by which other projects' controllers mark their pods, each with its source.

gputopo reads them and never writes them.
"""

from __future__ import annotations

from gputopo.labels.keys import API_GROUP

# Labels by which a pod's controller marks it.
KUBEFLOW_JOB = "training.kubeflow.org/job-name"  # kubeflow/training-operator v1, kubeflow/mpi-operator v2beta1
KUBEFLOW_REPLICA_TYPE = "training.kubeflow.org/replica-type"  # "master", "worker", ...: training-operator v1
KUBEFLOW_REPLICA_INDEX = "training.kubeflow.org/replica-index"  # training-operator v1; mpi-operator: workers only
KUBEFLOW_ROLE = "training.kubeflow.org/job-role"  # "launcher", "worker": mpi-operator; "master": training-operator
TRAINJOB_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"  # kubeflow/trainer v2, on jobs and their pods
MIRROR_POD = "kubernetes.io/config.mirror"  # annotation of the API object of a static pod, which a kubelet creates
JOBSET = "jobset.sigs.k8s.io/jobset-name"  # kubernetes-sigs/jobset, with all that follow: labels of jobs and pods
JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
JOBSET_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
INITIALIZERS = (
    "dataset-initializer",
    "model-initializer",
)  # names and steps of the jobs that run first: kubeflow/trainer v2
JOBSET_GROUP = "jobset.sigs.k8s.io/group-name"  # default: "default"; since v0.9
JOBSET_JOB_INDEX = "jobset.sigs.k8s.io/job-global-index"
JOBSET_RESTART = "jobset.sigs.k8s.io/restart-attempt"
# Annotations: one Job, or one group, for each topology domain. Further pods are created once the first has a node.
JOBSET_EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
LWS_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LWS_SUBGROUP_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
LEADER_WORKER_SET = "leaderworkerset.sigs.k8s.io/name"  # kubernetes-sigs/lws, with all that follow
LEADER_WORKER_GROUP = "leaderworkerset.sigs.k8s.io/group-index"  # label
LEADER_WORKER_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"  # label; one per group and roll-out
LEADER_WORKER_SIZE = "leaderworkerset.sigs.k8s.io/size"  # annotation: pods of a group, its leader included
LEADER_WORKER_INDEX = "leaderworkerset.sigs.k8s.io/worker-index"  # label; 0 is the leader
JOB_NAME = "batch.kubernetes.io/job-name"  # kubernetes batch/v1, label, since 1.27
JOB_NAME_CLASSIC = "job-name"  # the same, before and still; also set by hand on pods of no Job
JOB_INDEX = "batch.kubernetes.io/job-completion-index"  # kubernetes batch/v1: annotation, since 1.28 a label too
TRAINING_JOB_ID = "training-job-id"  # set by hand
RAY_CLUSTER = "ray.io/cluster"  # ray-project/kuberay
RAY_ORIGIN = "ray.io/originated-from-crd"  # RayJob, RayService or RayCluster: kuberay
RAY_SERVE = "ray.io/serve"  # "true" on pods of a RayService that take requests: kuberay
KSERVE = "serving.kserve.io/inferenceservice"  # kserve
PART_OF = "app.kubernetes.io/part-of"  # "llminferenceservice" on pods of kserve's LLMInferenceService
NOTEBOOK = "notebook-name"  # kubeflow/notebooks, whose pods belong to a StatefulSet

# Gangs of other gang schedulers and queues.
POD_GROUP = (
    "scheduling.x-k8s.io/pod-group"  # label: kubernetes-sigs/scheduler-plugins (Coscheduling), v1alpha1 PodGroup
)
POD_GROUP_OLD = "pod-group.scheduling.sigs.k8s.io"  # label: the same, group scheduling.sigs.k8s.io; Koordinator still
POD_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"  # label: the lightweight form, without an object
POD_GROUP_MINIMUM = "pod-group.scheduling.sigs.k8s.io/min-available"  # label beside it
KUEUE_GROUP = "kueue.x-k8s.io/pod-group-name"  # label: kubernetes-sigs/kueue, plain pods as one workload
KUEUE_GROUP_SIZE = "kueue.x-k8s.io/pod-group-total-count"  # annotation
KUEUE_GROUP_INDEX = "kueue.x-k8s.io/pod-group-pod-index"  # label
KUEUE_GROUP_SERVING = "kueue.x-k8s.io/pod-group-serving"  # annotation; "true": replicas of a StatefulSet, no gang
VOLCANO_GROUP = "scheduling.k8s.io/group-name"  # annotation: volcano-sh/apis scheduling/v1beta1
VOLCANO_GROUP_NEW = "scheduling.volcano.sh/group-name"  # annotation: the same

# Owners, as ``group/kind``.
JOB = "batch/Job"
REPLICA_SET = "apps/ReplicaSet"
STATEFUL_SET = "apps/StatefulSet"
PYTORCH_JOB = "kubeflow.org/PyTorchJob"
MPI_JOB = "kubeflow.org/MPIJob"
KUBEFLOW_KINDS = tuple(f"kubeflow.org/{kind}" for kind in ("TFJob", "XGBoostJob", "PaddleJob", "JAXJob"))
RAY_CLUSTER_KIND = "ray.io/RayCluster"

# Annotations by which pods say whether they may be evicted, and which replica goes first.
DO_NOT_DISRUPT = (
    "karpenter.sh/do-not-disrupt"  # "true", or a duration since the pod's creation: kubernetes-sigs/karpenter
)
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"  # "false": kubernetes/autoscaler
PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"  # any value: kubernetes-sigs/descheduler
DELETION_COST = (
    "controller.kubernetes.io/pod-deletion-cost"  # kubernetes; the replica with the lowest number goes first
)

# The PriorityClasses of gputopo's manifests.
SCAVENGER = f"{API_GROUP.partition('.')[0]}-scavenger"
NORMAL = f"{API_GROUP.partition('.')[0]}-normal"
CRITICAL = f"{API_GROUP.partition('.')[0]}-critical"
