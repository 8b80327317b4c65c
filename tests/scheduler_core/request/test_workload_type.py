"""Detection of workload types, by controllers, labels and programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gputopo.model import Interconnect
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import (
    DEFAULT_PARSING,
    Constraints,
    ParsingPolicy,
    PodRequest,
    Strength,
    parse_request,
)
from scheduler_core.request.workload_type import (
    DETECTION_RULE_NAMES,
    DETECTION_RULES,
    Detection,
    DetectionRule,
    WorkloadNeed,
    WorkloadType,
    detect_workload,
    traits_of,
)

_TRAINING, _INFERENCE, _BATCH = WorkloadType.TRAINING, WorkloadType.INFERENCE, WorkloadType.BATCH


def _pod(
    *command: str,
    gpus: int = 8,
    owner: tuple[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    **container: Any,
) -> Pod:
    """A pod as the API server writes it, with an unrelated sidecar."""
    metadata: dict[str, Any] = {
        "name": "p",
        "uid": "u",
        "labels": labels,
        "annotations": {f"gputopo.io/{key}": value for key, value in (annotations or {}).items()},
    }
    if owner is not None:
        version, kind = owner
        controller = {"apiVersion": version, "kind": kind, "name": "o", "uid": "uid-o", "controller": True}
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "x"}, controller]
    main = {
        "name": "main",
        "command": list(command) or None,
        "env": [{"name": name, "value": value} for name, value in (env or {}).items()],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        **container,
    }
    sidecar = {"name": "side", "image": "vllm/vllm-openai", "command": ["torchrun"]}
    return msgspec.convert({"metadata": metadata, "spec": {"containers": [sidecar, main]}}, Pod)


# One row per rule at least: what is on the pod, what it is taken for, what it needs.
ROWS: list[tuple[str, Pod, WorkloadType | None, set[WorkloadNeed]]] = [
    ("pytorchjob", _pod(owner=("kubeflow.org/v1", "PyTorchJob")), _TRAINING, {WorkloadNeed.ISLAND}),
    ("mpijob", _pod(owner=("kubeflow.org/v2beta1", "MPIJob")), _TRAINING, set()),
    ("kubeflow", _pod(owner=("kubeflow.org/v1", "XGBoostJob")), _TRAINING, set()),
    ("kubeflow", _pod(labels={"training.kubeflow.org/job-name": "j"}), _TRAINING, set()),
    (
        "trainjob",
        _pod(owner=("batch/v1", "Job"), labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}),
        _TRAINING,
        set(),
    ),
    (
        "kserve",
        _pod(owner=("apps/v1", "ReplicaSet"), labels={"serving.kserve.io/inferenceservice": "m"}),
        _INFERENCE,
        set(),
    ),
    ("kserve", _pod(labels={"app.kubernetes.io/part-of": "llminferenceservice"}), _INFERENCE, set()),
    (
        "rayservice",
        _pod(owner=("ray.io/v1", "RayCluster"), labels={"ray.io/cluster": "c", "ray.io/serve": "true"}),
        _INFERENCE,
        set(),
    ),
    ("rayjob", _pod(labels={"ray.io/cluster": "c", "ray.io/originated-from-crd": "RayJob"}), _TRAINING, set()),
    (
        "tensor-parallel",
        _pod("server", "--tensor-parallel-size=4", owner=("apps/v1", "ReplicaSet")),
        _INFERENCE,
        {WorkloadNeed.PARALLEL},
    ),
    ("vllm", _pod("vllm", "serve", "m"), _INFERENCE, set()),
    ("vllm", _pod("python3", "-m", "vllm.entrypoints.openai.api_server"), _INFERENCE, set()),
    ("vllm", _pod(image="registry:5000/vllm/vllm-openai:v0.9@sha256:0", args=["--model", "m"]), _INFERENCE, set()),
    ("sglang", _pod("python3", "-m", "sglang.launch_server"), _INFERENCE, set()),
    ("sglang", _pod(image="lmsysorg/sglang:latest"), _INFERENCE, set()),
    ("triton", _pod("/opt/tritonserver/bin/tritonserver", "--model-repository=/m"), _INFERENCE, set()),
    ("triton", _pod(image="nvcr.io/nvidia/tritonserver:26.10-py3"), _INFERENCE, set()),
    ("text-generation", _pod("text-generation-launcher"), _INFERENCE, set()),
    ("torchrun", _pod("/usr/bin/torchrun", "--nproc-per-node=8", "t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    (
        "torchrun",
        _pod("bash", "-c", "cd /w && exec torchrun t.py;", owner=("batch/v1", "Job")),
        _TRAINING,
        {WorkloadNeed.ISLAND},
    ),
    ("torchrun", _pod("python", "-m", "torch.distributed.run", "t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    ("deepspeed", _pod("deepspeed", "t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    ("accelerate", _pod("accelerate", "launch", "t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    ("accelerate", _pod("python", "-m", "accelerate.commands.launch", "t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    ("accelerate", _pod("sh", "-c", "accelerate \\\n  launch t.py"), _TRAINING, {WorkloadNeed.ISLAND}),
    ("world-size", _pod("python", "t.py", env={"WORLD_SIZE": "16"}), _TRAINING, {WorkloadNeed.ISLAND}),
    ("world-size", _pod("python", "t.py", env={"PET_NPROC_PER_NODE": "8"}), _TRAINING, {WorkloadNeed.ISLAND}),
    ("jobset", _pod(owner=("batch/v1", "Job"), labels={"jobset.sigs.k8s.io/jobset-name": "j"}), _TRAINING, set()),
    (
        "leaderworkerset",
        _pod(owner=("apps/v1", "StatefulSet"), labels={"leaderworkerset.sigs.k8s.io/name": "l"}),
        _INFERENCE,
        set(),
    ),
    ("raycluster", _pod(owner=("ray.io/v1", "RayCluster"), labels={"ray.io/cluster": "c"}), _BATCH, set()),
    ("notebook", _pod(owner=("apps/v1", "StatefulSet"), labels={"notebook-name": "n"}), None, set()),
    ("job", _pod("python", "t.py", owner=("batch/v1", "Job")), _BATCH, set()),
    ("service", _pod(owner=("apps/v1", "ReplicaSet")), _INFERENCE, set()),
    ("service", _pod(owner=("apps/v1", "StatefulSet")), _INFERENCE, set()),
]


@pytest.mark.parametrize(("rule", "pod", "workload", "needs"), ROWS)
def test_each_rule(rule: str, pod: Pod, workload: WorkloadType | None, needs: set[WorkloadNeed]) -> None:
    found = detect_workload(pod)

    assert (found.workload, set(found.needs)) == (workload, needs)
    assert found.reasons[0].startswith(f"{rule}: ")


def test_every_rule_has_a_row_above() -> None:
    assert {rule for rule, *_ in ROWS} == set(DETECTION_RULE_NAMES)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(_pod("python", "train.py"), id="a bare pod"),
        pytest.param(_pod("sh", "-c", "set -e\n  # torchrun comes later\npython t.py"), id="a comment in a script"),
        pytest.param(_pod("python", "vllm_notes.py", "accelerate"), id="similar names"),
        pytest.param(_pod("server", "--tp", "1"), id="tensor parallelism of one GPU"),
        pytest.param(_pod("server", "--tp"), id="a flag without a value"),
        pytest.param(_pod("server", "--tp=$(NOBODY)"), id="a variable from elsewhere"),
        pytest.param(_pod(labels={"ray.io/serve": "false"}), id="another value"),
    ],
)
def test_pod_that_matches_no_rule_has_no_type(pod: Pod) -> None:
    assert detect_workload(pod) == Detection()


def test_first_rule_sets_the_type_and_all_rules_add_needs() -> None:
    found = detect_workload(_pod("torchrun", "t.py", owner=("kubeflow.org/v1", "MPIJob")))

    assert found == Detection(
        _TRAINING,
        frozenset({WorkloadNeed.ISLAND}),
        1,
        (
            "mpijob: a Kubeflow MPIJob made it",
            "torchrun: it runs torchrun: DDP reduces gradients among all of its GPUs",
        ),
    )


@pytest.mark.parametrize(
    ("command", "env", "degree"),
    [
        (("x", "--tensor-parallel-size", "4"), {}, 4),
        (("x", "--tensor-parallel-size=8"), {}, 8),
        (("x", "-tp", "2"), {}, 2),
        (("x", "--tp-size", "16"), {}, 16),
        (("sh", "-c", "exec x --tp=$TP"), {"TP": "4"}, 4),
        (("x", "--tp", "$(TP)"), {"TP": "2"}, 2),
        (("x", "--tp", "${TP}"), {"TP": "2"}, 2),
        (("x", "--tp", "many"), {}, 1),
        (("x", "--tp", "0"), {}, 1),
        (("x", "--tp", "many", "--tp", "2"), {}, 2),
    ],
)
def test_tensor_parallel_degree(command: tuple[str, ...], env: dict[str, str], degree: int) -> None:
    assert traits_of(_pod(*command, env=env)).degree == degree


# What a pod with 8 GPUs (or as many as it says) demands of placement.
@pytest.mark.parametrize(
    ("pod", "wishes"),
    [
        pytest.param(_pod("torchrun"), Constraints(workload=_TRAINING, island=Strength.REQUIRED), id="DDP: one island"),
        pytest.param(_pod("torchrun", gpus=1), Constraints(workload=_TRAINING), id="one GPU has no needs"),
        pytest.param(
            _pod("torchrun", annotations={"island": "ignore"}),
            Constraints(workload=_TRAINING, island=Strength.IGNORE),
            id="the annotation wins",
        ),
        pytest.param(
            _pod("torchrun", annotations={"workload": "batch"}),
            Constraints(workload=_BATCH, island=Strength.REQUIRED),
            id="an annotated workload type keeps the needs",
        ),
        pytest.param(
            _pod("vllm", "serve", "--tp", "8"),
            Constraints(workload=_INFERENCE, island=Strength.REQUIRED, interconnect=Interconnect.NVLINK),
            id="tensor parallelism over all of its GPUs: 8 of 8",
        ),
        pytest.param(
            _pod("vllm", "serve", "--tp", "16"),
            Constraints(workload=_INFERENCE, island=Strength.REQUIRED, interconnect=Interconnect.NVLINK),
            id="over several pods: all GPUs of this pod",
        ),
        pytest.param(
            _pod("vllm", "serve", "--tp", "8", annotations={"interconnect": "nvswitch"}),
            Constraints(workload=_INFERENCE, island=Strength.REQUIRED, interconnect=Interconnect.NVSWITCH),
            id="a stronger requested interconnect stays",
        ),
        pytest.param(
            _pod("vllm", "serve", "--tp", "2"),
            Constraints(workload=_INFERENCE, parallel=2),
            id="four groups of two",
        ),
        pytest.param(
            _pod("vllm", "serve", "--tp", "3"),
            Constraints(workload=_INFERENCE, island=Strength.PREFERRED),
            id="groups of three that do not fill eight: nothing can be required",
        ),
        pytest.param(
            _pod("torchrun", "--tp", "2"),
            Constraints(workload=_INFERENCE, island=Strength.REQUIRED, interconnect=Interconnect.NVLINK),
            id="both needs: the stronger",
        ),
    ],
)
def test_needs_become_constraints(pod: Pod, wishes: Constraints) -> None:
    found = parse_request(pod)

    assert isinstance(found, PodRequest)
    assert found.profile.constraints == wishes


@pytest.mark.parametrize(
    ("reading", "wishes"),
    [
        pytest.param(DEFAULT_PARSING, Constraints(workload=_TRAINING, island=Strength.REQUIRED), id="default"),
        pytest.param(
            ParsingPolicy(needs_strength=Strength.PREFERRED),
            Constraints(workload=_TRAINING, island=Strength.PREFERRED),
            id="needs are preferred",
        ),
        pytest.param(
            ParsingPolicy(needs_strength=Strength.IGNORE), Constraints(workload=_TRAINING), id="needs are ignored"
        ),
        pytest.param(
            ParsingPolicy(rules=tuple(rule for rule in DETECTION_RULES if rule.name != "torchrun")),
            Constraints(workload=_BATCH),
            id="the rule is off: only the Job matches",
        ),
        pytest.param(
            ParsingPolicy(rules=(DetectionRule("mine", "it does", None),)), Constraints(), id="a rule without criteria"
        ),
    ],
)
def test_policy_sets_rules_and_strength(reading: ParsingPolicy, wishes: Constraints) -> None:
    found = parse_request(_pod("torchrun", owner=("batch/v1", "Job")), reading)

    assert isinstance(found, PodRequest)
    assert found.profile.constraints == wishes


def test_request_has_the_reasons_and_the_owner() -> None:
    found = parse_request(_pod("tritonserver", owner=("apps/v1", "ReplicaSet")))

    assert isinstance(found, PodRequest)
    assert found.owner == "uid-o"
    assert found.detection == ("triton: it runs NVIDIA Triton",)


def test_scavenger_by_priority_class() -> None:
    spec = {"containers": [], "priorityClassName": "gputopo-scavenger"}
    found = parse_request(msgspec.convert({"spec": spec}, Pod))

    assert isinstance(found, PodRequest)
    assert found.profile.scavenger


def test_a_script_of_empty_lines_is_read_in_no_time() -> None:
    """Python's regular expressions cannot be interrupted: what takes minutes stops the whole program."""
    before = time.process_time()

    words = traits_of(_pod("sh", "-c", "\t# torchrun\n" + "\n" * 60_000 + "deepspeed a.py\n\n  # vllm serve\n")).words

    assert words == ("sh", "-c", "deepspeed", "a.py")
    assert time.process_time() - before < 30.0  # about 0.01 s; what is quadratic takes minutes


def test_a_short_command_that_names_a_long_variable_often_stays_short() -> None:
    pod = _pod("sh", "-c", "$A " * 4000 + "torchrun", env={"A": "x" * 10_000})

    words = traits_of(pod).words

    assert sum(map(len, words)) < 200_000
    assert words[-1] == "torchrun"
    assert words[2] == "x" * 10_000
    assert words[-2] == "$A"  # what is not replaced stays
