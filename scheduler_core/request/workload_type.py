"""The workload type of a pod, detected by its controller, labels and programs. Pure; the rules are data.

The annotation ``gputopo.io/workload`` comes first. Otherwise the first matching rule decides: controllers for one kind
of workload, then the programs that the GPU containers run, then Kubernetes' own workloads, which are the least
specific. A pod has the *needs* of all matching rules: a plain Job that runs torchrun has the needs of torchrun, and a
PyTorchJob needs one island whatever it runs.

The policy sets the strength of needs (default ``required``). The pod's own annotations override them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from gputopo.labels import workloads
from gputopo.labels.resources import is_gpu
from scheduler_core.request.pod import Container, Pod

_WORDS = re.compile(r"[^\s;&|()\"'`\\]+")  # of a command, or of a script that is passed to a shell
_COMMENT = re.compile(r"^[^\S\n]*#.*$", re.MULTILINE)  # in such a script; within a line, or a long text takes hours
_VARIABLE = re.compile(r"\$[({]?(\w+)[)}]?")
_MAX_CHARACTERS = 1 << 17  # that are parsed of all commands of a pod, and of all values inserted into them
_DEGREE_FLAGS = frozenset({"--tensor-parallel-size", "--tensor_parallel_size", "-tp", "--tp", "--tp-size", "--tp_size"})


ANY = "*"  # any value of a label


class WorkloadType(Enum):
    """The workload type of a pod."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"


class WorkloadNeed(Enum):
    """The requirement of a rule for pods with more than one GPU."""

    ISLAND = "all GPUs in one NVLink island"
    PARALLEL = "NVLink or NVSwitch between the GPUs of each tensor-parallel group"


class DetectionRule(NamedTuple):
    """How a workload type is detected: at least one of the criteria below must match."""

    name: str
    because: str  # shown by ``gputopo why pod``
    workload: WorkloadType | None
    owners: tuple[str, ...] = ()  # group/kind of the controller
    labels: tuple[tuple[str, str], ...] = ()  # key and value, or ``ANY``
    images: tuple[str, ...] = ()  # prefixes of the last part of the image name, without tag
    programs: tuple[tuple[str, ...], ...] = ()  # consecutive words of the command; of paths the last part
    variables: tuple[str, ...] = ()  # of the environment
    degree: bool = False  # a flag sets a tensor-parallel degree above one
    need: WorkloadNeed | None = None


class PodTraits(NamedTuple):
    """The properties of a pod that rules read."""

    owner: str | None
    labels: Mapping[str, str]
    images: tuple[str, ...]
    words: tuple[str, ...]
    variables: Mapping[str, str]
    degree: int  # tensor-parallel; 1 if not set


class Detection(NamedTuple):
    """The result of all rules for a pod."""

    workload: WorkloadType | None = None
    needs: frozenset[WorkloadNeed] = frozenset()
    degree: int = 1
    reasons: tuple[str, ...] = ()  # of the rules that were used, in their order


_TRAINING, _INFERENCE, _BATCH = WorkloadType.TRAINING, WorkloadType.INFERENCE, WorkloadType.BATCH

DETECTION_RULES: tuple[DetectionRule, ...] = (
    DetectionRule(
        "pytorchjob",
        "a Kubeflow PyTorchJob made it: DDP reduces gradients among all of its GPUs",
        _TRAINING,
        owners=(workloads.PYTORCH_JOB,),
        need=WorkloadNeed.ISLAND,
    ),
    DetectionRule("mpijob", "a Kubeflow MPIJob made it", _TRAINING, owners=(workloads.MPI_JOB,)),
    DetectionRule(
        "kubeflow",
        "a job of Kubeflow's training operator made it",
        _TRAINING,
        owners=workloads.KUBEFLOW_KINDS,
        labels=((workloads.KUBEFLOW_JOB, ANY),),
    ),
    DetectionRule("trainjob", "a Kubeflow TrainJob made it", _TRAINING, labels=((workloads.TRAINJOB_STEP, ANY),)),
    DetectionRule(
        "kserve",
        "KServe made it",
        _INFERENCE,
        labels=((workloads.KSERVE, ANY), (workloads.PART_OF, "llminferenceservice")),
    ),
    DetectionRule(
        "rayservice",
        "a RayService made it",
        _INFERENCE,
        labels=((workloads.RAY_ORIGIN, "RayService"), (workloads.RAY_SERVE, "true")),
    ),
    DetectionRule("rayjob", "a RayJob made it", _TRAINING, labels=((workloads.RAY_ORIGIN, "RayJob"),)),
    DetectionRule(
        "tensor-parallel",
        "it asks for tensor parallelism, which exchanges every layer's activations",
        _INFERENCE,
        degree=True,
        need=WorkloadNeed.PARALLEL,
    ),
    DetectionRule(
        "vllm",
        "it runs vLLM",
        _INFERENCE,
        images=("vllm-openai",),
        programs=(("vllm", "serve"), ("vllm.entrypoints.*",)),
    ),
    DetectionRule(
        "sglang",
        "it runs SGLang",
        _INFERENCE,
        images=("sglang",),
        programs=(("sglang.launch_server",), ("sglang", "serve")),
    ),
    DetectionRule(
        "triton", "it runs NVIDIA Triton", _INFERENCE, images=("tritonserver",), programs=(("tritonserver",),)
    ),
    DetectionRule(
        "text-generation",
        "it runs a text generation server",
        _INFERENCE,
        images=("text-generation-inference",),
        programs=(("text-generation-launcher",), ("trtllm-serve",)),
    ),
    DetectionRule(
        "torchrun",
        "it runs torchrun: DDP reduces gradients among all of its GPUs",
        _TRAINING,
        programs=(("torchrun",), ("torch.distributed.run",), ("torch.distributed.launch",)),
        need=WorkloadNeed.ISLAND,
    ),
    DetectionRule("deepspeed", "it runs DeepSpeed", _TRAINING, programs=(("deepspeed",),), need=WorkloadNeed.ISLAND),
    DetectionRule(
        "accelerate",
        "it runs Hugging Face Accelerate",
        _TRAINING,
        programs=(("accelerate", "launch"), ("accelerate.commands.launch",)),
        need=WorkloadNeed.ISLAND,
    ),
    DetectionRule(
        "world-size",
        "its environment is that of a distributed PyTorch program",
        _TRAINING,
        variables=("WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE"),
        need=WorkloadNeed.ISLAND,
    ),
    DetectionRule("jobset", "a JobSet made it", _TRAINING, labels=((workloads.JOBSET, ANY),)),
    DetectionRule(
        "leaderworkerset", "a LeaderWorkerSet made it", _INFERENCE, labels=((workloads.LEADER_WORKER_SET, ANY),)
    ),
    DetectionRule(
        "raycluster",
        "a RayCluster made it",
        _BATCH,
        owners=(workloads.RAY_CLUSTER_KIND,),
        labels=((workloads.RAY_CLUSTER, ANY),),
    ),
    DetectionRule("notebook", "it is a notebook", None, labels=((workloads.NOTEBOOK, ANY),)),
    DetectionRule("job", "a Job made it", _BATCH, owners=(workloads.JOB,)),
    DetectionRule(
        "service",
        "a Deployment or StatefulSet made it",
        _INFERENCE,
        owners=(workloads.REPLICA_SET, workloads.STATEFUL_SET),
    ),
)
DETECTION_RULE_NAMES = tuple(rule.name for rule in DETECTION_RULES)
RULE_LABELS = frozenset(key for rule in DETECTION_RULES for key, _ in rule.labels)  # keys


def detect_workload(pod: Pod, rules: Iterable[DetectionRule] = DETECTION_RULES) -> Detection:
    """Apply the rules to a pod."""
    traits = traits_of(pod)
    matching = [rule for rule in rules if matches_rule(rule, traits)]
    if not matching:
        return Detection()
    first = matching[0]
    used = [rule for rule in matching if rule is first or rule.need is not None]
    return Detection(
        first.workload,
        frozenset(rule.need for rule in used if rule.need is not None),
        traits.degree,
        tuple(f"{rule.name}: {rule.because}" for rule in used),
    )


def matches_rule(rule: DetectionRule, traits: PodTraits) -> bool:
    """Return True if one of the rule's criteria matches the pod.

    Every GPU pod is compared with every rule, and most criteria of a rule are empty: an empty ``if`` costs a tenth of a
    generator.
    """
    if traits.owner in rule.owners or (rule.degree and traits.degree > 1):
        return True
    if rule.labels and any(value in (traits.labels[key], ANY) for key, value in rule.labels if key in traits.labels):
        return True
    if rule.images and any(image.startswith(rule.images) for image in traits.images):
        return True
    if rule.programs and traits.words and any(_contains_phrase(traits.words, phrase) for phrase in rule.programs):
        return True
    return bool(rule.variables) and not traits.variables.keys().isdisjoint(rule.variables)


def traits_of(pod: Pod) -> PodTraits:
    """Return the properties that rules read; of containers only those with GPUs."""
    owner = pod.metadata.owner
    containers = [each for each in pod.spec.containers or () if _requests_gpus(each)]
    variables = {each.name: each.value or "" for container in containers for each in container.env or ()}
    words = tuple(_words(containers, variables))
    return PodTraits(
        None if owner is None else f"{owner.api_version.partition('/')[0]}/{owner.kind}",
        pod.metadata.labels or {},
        tuple(_image(each.image) for each in containers if each.image),
        tuple(word.rpartition("/")[2] if not word.startswith("-") else word for word in words),
        variables,
        _degree(words),
    )


def _requests_gpus(container: Container) -> bool:
    resources = container.resources
    return any(is_gpu(name) for name in (*(resources.limits or ()), *(resources.requests or ())))


def _image(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _words(containers: Iterable[Container], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the words of all commands, with variables expanded as by the kubelet (``$(NAME)``) and by shells.

    Unknown variables stay. So do variables beyond ``_MAX_CHARACTERS`` inserted characters: a short command can name a
    long value many times.
    """
    insertable = _MAX_CHARACTERS

    def value(found: re.Match[str]) -> str:
        nonlocal insertable
        text = variables.get(found[1], found[0])
        if len(text) > insertable:
            return found[0]
        insertable -= len(text)
        return text

    left = _MAX_CHARACTERS
    for text in (each for one in containers for each in (*(one.command or ()), *(one.args or ()))):
        script = _COMMENT.sub("", text[:left])
        yield from _WORDS.findall(_VARIABLE.sub(value, script))
        left -= len(text)
        if left <= 0:
            return


def _contains_phrase(words: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    """Return True if the words of the phrase follow each other. A first word with ``*`` at its end stands alone."""
    first, *others = phrase
    if first.endswith("*"):
        return any(word.startswith(first[:-1]) for word in words)
    return first in words and any(
        list(words[at + 1 : at + len(phrase)]) == others for at, word in enumerate(words) if word == first
    )


def _degree(words: tuple[str, ...]) -> int:
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in _DEGREE_FLAGS:
            degree = value if equals else words[at + 1] if at + 1 < len(words) else ""
            if degree.isascii() and degree.isdecimal() and len(degree) < 6:
                return max(1, int(degree))
    return 1
