"""What a pod is, recognised by who made it, how it is labelled and what it runs. Pure; the rules are data.

What a pod says of itself (``gputopo.io/workload``) comes first. Else the first rule that matches says what it is: from
controllers that are made for one thing, over the programs that its GPU containers run, to the kinds of Kubernetes'
own workloads, which say least. What a pod *needs* is what all matching rules together say: a plain Job that runs
torchrun is known by torchrun, and a PyTorchJob needs its island whatever it runs.

A demand is as strong as policy says (``required`` unless it says otherwise), and what the pod's own annotations say
of the same thing always wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from gputopo.labels import workloads as seen
from gputopo.labels.resources import is_gpu
from scheduler_core.request.pod import Container, Pod

_WORDS = re.compile(r"[^\s;&|()\"'`\\]+")  # of a command, and of the scripts that are passed to a shell
_REMARK = re.compile(r"^\s*#.*$", re.MULTILINE)  # of such a script
_VARIABLE = re.compile(r"\$[({]?(\w+)[)}]?")
_DEGREE = frozenset({"--tensor-parallel-size", "--tensor_parallel_size", "-tp", "--tp", "--tp-size", "--tp_size"})


ANY = "*"


class WorkloadType(Enum):
    """What a pod is."""

    TRAINING = "training"
    INFERENCE = "inference"
    BATCH = "batch"


class WorkloadNeed(Enum):
    """What a rule says that a pod with more than one GPU needs."""

    ISLAND = "all GPUs in one NVLink island"
    PARALLEL = "NVLink or NVSwitch between the GPUs of each tensor-parallel group"


class DetectionRule(NamedTuple):
    """How a kind of pod is known: by any one of the marks below."""

    name: str
    because: str  # the sentence that ``why`` shows
    workload: WorkloadType | None
    owners: tuple[str, ...] = ()  # group/kind of the controlling owner
    labels: tuple[tuple[str, str], ...] = ()  # key and value, or ``ANY``
    images: tuple[str, ...] = ()  # how the last part of the image's name begins, without tag
    programs: tuple[tuple[str, ...], ...] = ()  # consecutive words of the command; of paths the last part
    variables: tuple[str, ...] = ()  # of the environment
    degree: bool = False  # a flag says a tensor-parallel degree above one
    need: WorkloadNeed | None = None


class PodTraits(NamedTuple):
    """What rules look at."""

    owner: str | None
    labels: Mapping[str, str]
    images: tuple[str, ...]
    words: tuple[str, ...]
    variables: Mapping[str, str]
    degree: int  # tensor-parallel; 1 where nothing is said


class Detection(NamedTuple):
    """What rules say of a pod."""

    workload: WorkloadType | None = None
    needs: frozenset[WorkloadNeed] = frozenset()
    degree: int = 1
    reasons: tuple[str, ...] = ()  # of the rules that counted, in their order


_TRAINING, _INFERENCE, _BATCH = WorkloadType.TRAINING, WorkloadType.INFERENCE, WorkloadType.BATCH

DETECTION_RULES: tuple[DetectionRule, ...] = (
    DetectionRule(
        "pytorchjob",
        "a Kubeflow PyTorchJob made it: DDP reduces gradients among all of its GPUs",
        _TRAINING,
        owners=(seen.PYTORCH_JOB,),
        need=WorkloadNeed.ISLAND,
    ),
    DetectionRule("mpijob", "a Kubeflow MPIJob made it", _TRAINING, owners=(seen.MPI_JOB,)),
    DetectionRule(
        "kubeflow",
        "a job of Kubeflow's training operator made it",
        _TRAINING,
        owners=seen.KUBEFLOW_KINDS,
        labels=((seen.KUBEFLOW_JOB, ANY),),
    ),
    DetectionRule("trainjob", "a Kubeflow TrainJob made it", _TRAINING, labels=((seen.TRAINJOB_STEP, ANY),)),
    DetectionRule(
        "kserve", "KServe made it", _INFERENCE, labels=((seen.KSERVE, ANY), (seen.PART_OF, "llminferenceservice"))
    ),
    DetectionRule(
        "rayservice",
        "a RayService made it",
        _INFERENCE,
        labels=((seen.RAY_ORIGIN, "RayService"), (seen.RAY_SERVE, "true")),
    ),
    DetectionRule("rayjob", "a RayJob made it", _TRAINING, labels=((seen.RAY_ORIGIN, "RayJob"),)),
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
    DetectionRule("jobset", "a JobSet made it", _TRAINING, labels=((seen.JOBSET, ANY),)),
    DetectionRule("leaderworkerset", "a LeaderWorkerSet made it", _INFERENCE, labels=((seen.LEADER_WORKER_SET, ANY),)),
    DetectionRule(
        "raycluster", "a RayCluster made it", _BATCH, owners=(seen.RAY_CLUSTER_KIND,), labels=((seen.RAY_CLUSTER, ANY),)
    ),
    DetectionRule("notebook", "it is a notebook", None, labels=((seen.NOTEBOOK, ANY),)),
    DetectionRule("job", "a Job made it", _BATCH, owners=(seen.JOB,)),
    DetectionRule(
        "service", "a Deployment or StatefulSet made it", _INFERENCE, owners=(seen.REPLICA_SET, seen.STATEFUL_SET)
    ),
)
DETECTION_RULE_NAMES = tuple(rule.name for rule in DETECTION_RULES)


def detect_workload(pod: Pod, rules: Iterable[DetectionRule] = DETECTION_RULES) -> Detection:
    """What rules say of a pod."""
    traits = traits_of(pod)
    matching = [rule for rule in rules if matches_rule(rule, traits)]
    if not matching:
        return Detection()
    first = matching[0]
    counted = [rule for rule in matching if rule is first or rule.need is not None]
    return Detection(
        first.workload,
        frozenset(rule.need for rule in counted if rule.need is not None),
        traits.degree,
        tuple(f"{rule.name}: {rule.because}" for rule in counted),
    )


def matches_rule(rule: DetectionRule, traits: PodTraits) -> bool:
    """Whether one of the rule's marks is on the pod."""
    return (
        traits.owner in rule.owners
        or any(value in (traits.labels.get(key), ANY) for key, value in rule.labels if key in traits.labels)
        or any(image.startswith(rule.images) for image in traits.images)
        or any(_says(traits.words, phrase) for phrase in rule.programs)
        or any(name in traits.variables for name in rule.variables)
        or (rule.degree and traits.degree > 1)
    )


def traits_of(pod: Pod) -> PodTraits:
    """What rules look at: of containers only those that hold GPUs."""
    owner = pod.metadata.owner
    containers = [each for each in pod.spec.containers or () if _holds_gpus(each)]
    variables = {each.name: each.value or "" for container in containers for each in container.env or ()}
    words = tuple(word for container in containers for word in _words(container, variables))
    return PodTraits(
        None if owner is None else f"{owner.api_version.partition('/')[0]}/{owner.kind}",
        pod.metadata.labels or {},
        tuple(_image(each.image) for each in containers if each.image),
        tuple(word.rpartition("/")[2] if not word.startswith("-") else word for word in words),
        variables,
        _degree(words),
    )


def _holds_gpus(container: Container) -> bool:
    resources = container.resources
    return any(is_gpu(name) for name in (*(resources.limits or ()), *(resources.requests or ())))


def _image(image: str) -> str:
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _words(container: Container, variables: Mapping[str, str]) -> Iterator[str]:
    """Variables stand for their values, as for the kubelet (``$(NAME)``) and for shells; unknown ones stay."""
    for text in (*(container.command or ()), *(container.args or ())):
        script = _REMARK.sub("", text)
        yield from _WORDS.findall(_VARIABLE.sub(lambda found: variables.get(found[1], found[0]), script))


def _says(words: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    """Whether these words follow each other. The first may end in ``*``, then it stands alone."""
    first, *others = phrase
    if first.endswith("*"):
        return any(word.startswith(first[:-1]) for word in words)
    return first in words and any(
        list(words[at + 1 : at + len(phrase)]) == others for at, word in enumerate(words) if word == first
    )


def _degree(words: tuple[str, ...]) -> int:
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in _DEGREE:
            said = value if equals else words[at + 1] if at + 1 < len(words) else ""
            if said.isascii() and said.isdecimal() and len(said) < 6:
                return max(1, int(said))
    return 1
