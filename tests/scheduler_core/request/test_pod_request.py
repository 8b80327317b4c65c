"""Requests of pods, and the reasons of invalid requests."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.model import Interconnect
from scheduler_core.request.device_request import ContainerStep, DeviceRequest
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import (
    Constraints,
    InvalidRequest,
    PodProfile,
    PodRequest,
    Strength,
    parse_request,
)
from scheduler_core.request.workload_type import WorkloadType
from tests.call_counts import count_calls
from tests.scheduler_core.builders import pod, profile

_MODEL = "accelerator.sched.io/gpu-model"


def test_whole_request() -> None:
    text = b"""{"metadata": {"name": "train", "namespace": "team", "uid": "u1",
        "labels": {"accelerator.sched.io/gpu-model": "A100", "app": "x"},
        "annotations": {"gputopo.io/island": "required", "gputopo.io/interconnect": "nvswitch",
            "gputopo.io/numa": "preferred", "gputopo.io/min-vram": "40Gi", "gputopo.io/vram": "15Gi",
            "gputopo.io/min-bandwidth": "300", "gputopo.io/workload": "training"}},
        "spec": {"schedulerName": "gputopo-scheduler", "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]}}"""

    assert parse_request(msgspec.json.decode(text, type=Pod)) == PodRequest(
        uid="u1",
        namespace="team",
        name="train",
        scheduler="gputopo-scheduler",
        profile=PodProfile(
            DeviceRequest((("nvidia.com/gpu", (ContainerStep(4),)),)),
            Constraints(
                model="A100",
                island=Strength.REQUIRED,
                interconnect=Interconnect.NVSWITCH,
                numa=Strength.PREFERRED,
                min_vram_mib=40960,
                vram_mib=15360,
                min_gbps=300.0,
                workload=WorkloadType.TRAINING,
            ),
        ),
    )


def test_pod_with_null_fields_requests_nothing() -> None:
    text = b'{"metadata": {"labels": null, "annotations": null}, "spec": {"containers": null, "affinity": null}}'

    assert parse_request(msgspec.json.decode(text, type=Pod)) == PodRequest("", "", "", None, PodProfile())


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        pytest.param("island", "yes", "required, preferred or ignore", id="island"),
        pytest.param("island", "Required", "required, preferred or ignore", id="case matters"),
        pytest.param("island", "", "required, preferred or ignore", id="empty"),
        pytest.param("interconnect", "pcie", "nvlink or nvswitch", id="interconnect"),
        pytest.param("numa", "0", "required, preferred or ignore", id="numa"),
        pytest.param("min-vram", "40GB", "an amount of memory like 40Gi", id="memory"),
        pytest.param("vram", "0", "an amount of memory like 40Gi", id="no memory"),
        pytest.param("min-bandwidth", "300GB/s", "GB/s as a plain number like 300", id="bandwidth with a unit"),
        pytest.param("min-bandwidth", "0", "GB/s as a plain number like 300", id="no bandwidth"),
        pytest.param("workload", "games", "training, inference or batch", id="workload"),
        pytest.param("isolation", "strict", "required, preferred or ignore", id="isolation"),
        pytest.param("spread", "required", "preferred or ignore", id="spread cannot be required"),
    ],
)
def test_malformed_value_is_quoted(key: str, value: str, expected: str) -> None:
    reason = f"the pod's request is malformed: gputopo.io/{key}: {value!r} is not {expected}"

    assert parse_request(pod(annotations={key: value})) == InvalidRequest(reason)


def test_malformed_number_of_gpus_is_quoted() -> None:
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "one"}}}]}

    assert parse_request(msgspec.convert({"spec": spec}, Pod)) == InvalidRequest(
        "the pod's request is malformed: nvidia.com/gpu: 'one' is not a number of devices"
    )


@pytest.mark.parametrize("text", ["", "-", "a/b", "A" * 254, "A100\n"])
def test_invalid_model_is_rejected(text: str) -> None:
    expected = f"{_MODEL}: {text[:63]!r} is not a GPU product, a short name like A100, or a glob"

    assert parse_request(pod(labels={_MODEL: text})) == InvalidRequest(f"the pod's request is malformed: {expected}")


def test_both_keys_may_have_the_same_model() -> None:
    found = parse_request(pod(labels={_MODEL: "A100", "gpu-model": "A100"}))

    assert isinstance(found, PodRequest)
    assert found.profile.constraints.model == "A100"


def test_two_different_models_are_rejected() -> None:
    assert parse_request(pod(labels={_MODEL: "A100", "gpu-model": "H100"})) == InvalidRequest(
        f"the pod's request is malformed: gpu-model: 'H100' is not the value of {_MODEL}: 'A100'"
    )


def test_glob_is_an_annotation() -> None:
    with_glob = msgspec.convert({"metadata": {"annotations": {"gpu-model": "*A100*80GB"}}}, Pod)
    found = parse_request(with_glob)

    assert isinstance(found, PodRequest)
    assert found.profile.constraints.model == "*A100*80GB"


def _affinity(kind: str, when: str) -> dict[str, object]:
    return {"affinity": {kind: {f"{when}DuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}}}


@pytest.mark.parametrize(
    ("spec", "soft"),
    [
        pytest.param(_affinity("nodeAffinity", "preferred"), True, id="node affinity"),
        pytest.param(_affinity("podAffinity", "preferred"), True, id="pod affinity"),
        pytest.param(_affinity("podAntiAffinity", "preferred"), True, id="pod anti-affinity"),
        pytest.param(_affinity("podAffinity", "required"), False, id="hard affinity"),
        pytest.param({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True, id="soft spread"),
        pytest.param({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False, id="hard spread"),
        pytest.param({}, False, id="none"),
    ],
)
def test_soft_preferences(spec: dict[str, object], soft: bool) -> None:
    found = parse_request(msgspec.convert({"spec": spec}, Pod))

    assert isinstance(found, PodRequest)
    assert found.has_soft_preferences is soft


@pytest.mark.parametrize(
    ("asked", "required"),
    [
        pytest.param(profile(4, island="required"), True, id="island"),
        pytest.param(profile(4, numa="required"), True, id="NUMA node"),
        pytest.param(profile(4, interconnect="nvlink"), True, id="interconnect"),
        pytest.param(profile(4, min_bandwidth="300"), True, id="bandwidth"),
        pytest.param(PodProfile(profile(4).device_request, Constraints(parallel=2)), True, id="tensor-parallel groups"),
        pytest.param(profile(1, island="required"), False, id="one GPU has no shape"),
        pytest.param(profile(4, island="preferred", numa="ignore", min_vram="1Gi"), False, id="nothing required"),
    ],
)
def test_shape_required(asked: PodProfile, required: bool) -> None:
    assert asked.requires_shape is required


@pytest.mark.parametrize(
    ("asked", "must_hold"),
    [
        pytest.param(profile(4, island="required"), True, id="a shape"),
        pytest.param(profile(1, isolation="required"), True, id="isolation: an inference pod could come"),
        pytest.param(profile(1, vram="15Gi"), True, id="a share: another could fill the card"),
        pytest.param(
            profile(4, island="preferred", isolation="preferred", spread="ignore"), False, id="soft constraints"
        ),
    ],
)
def test_has_hard_constraints(asked: PodProfile, must_hold: bool) -> None:
    assert asked.has_hard_constraints is must_hold


_UNREAD = [
    pytest.param(
        {"labels": {"gputopo.io/island": "required"}},
        "gputopo.io/island: 'required' is a label, and read as an annotation only",
        id="an annotation as a label",
    ),
    pytest.param(
        {"annotations": {"islnad": "required"}},
        "gputopo.io/islnad: 'required' is the value of an unknown key: the nearest known key is gputopo.io/island",
        id="a typo",
    ),
    pytest.param(
        {"annotations": {"Min-VRAM": "4Gi"}},
        "gputopo.io/Min-VRAM: '4Gi' is the value of an unknown key: the nearest known key is gputopo.io/min-vram",
        id="capital letters",
    ),
    pytest.param(
        {"annotations": {"gpu-model": "A100"}},
        "gputopo.io/gpu-model: 'A100' is the value of an unknown key: "
        "the nearest known key is accelerator.sched.io/gpu-model",
        id="the wrong prefix",
    ),
    pytest.param(
        {"annotations": {"xyz": "1"}},
        "gputopo.io/xyz: '1' is the value of an unknown key: docs/pods.md lists the known keys",
        id="similar to no key",
    ),
    pytest.param(
        {"labels": {"accelerator.sched.io/gpu-modle": "A100"}},
        "accelerator.sched.io/gpu-modle: 'A100' is the value of an unknown key: "
        "the nearest known key is accelerator.sched.io/gpu-model",
        id="the classic key with a typo",
    ),
    pytest.param(
        {"labels": {"accelerator.sched.io/island": "required"}},
        "accelerator.sched.io/island: 'required' is the value of an unknown key: "
        "the nearest known key is gputopo.io/island",
        id="a constraint under the classic prefix",
    ),
]


@pytest.mark.parametrize(("said", "reason"), _UNREAD)
def test_unknown_key_rejects_the_pod(said: dict[str, dict[str, str]], reason: str) -> None:
    expected = InvalidRequest(f"the pod's request is malformed: {reason}")
    labels, annotations = said.get("labels"), said.get("annotations")

    assert parse_request(pod(gpus=2, labels=labels, annotations=annotations)) == expected
    assert isinstance(parse_request(pod(gpus=0, labels=labels, annotations=annotations)), PodRequest)


def test_keys_of_other_projects_are_ignored() -> None:
    labels = {"gputopo.io/team": "a", "accelerator.sched.io/queue": "b", "app": "island", "gpu-model": "A100"}

    assert isinstance(parse_request(pod(gpus=2, labels=labels)), PodRequest)


def test_thousands_of_labels_under_the_classic_prefix_are_not_all_compared_with_known_keys() -> None:
    """Labels are bounded by the size of the object alone, and the watch of all pods waits for each pod."""
    labels = {f"accelerator.sched.io/qzxw{number}": "" for number in range(25_000)}
    asked = pod(gpus=1, labels=labels)

    assert isinstance(parse_request(asked), PodRequest)
    assert count_calls(lambda: parse_request(asked)) < 20 * len(labels)
