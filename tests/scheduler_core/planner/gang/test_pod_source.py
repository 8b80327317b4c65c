"""Pods as the planner decodes them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gputopo.kube.client import ListOptions
from gputopo.kube.projection import Delta, Projection
from gputopo.kube.rbac import PODS
from scheduler_core.cache.cluster_cache import ClusterCache
from scheduler_core.cache.events import Batch, NodeGpusUpdate, NodeUpdate, PodUpdate
from scheduler_core.cache.full_pods import FULL_POD_SOURCES
from scheduler_core.cache.kube_scheduler_filters import SchedulingRules
from scheduler_core.cache.pod_loads import PodLoad
from scheduler_core.planner.gang.disruption import PodDisruption
from scheduler_core.planner.gang.gang import DeclaredSizes, GangPhase, gang_of
from scheduler_core.planner.gang.member import GangName, GangRequest, Member
from scheduler_core.planner.gang.members import GangMembers
from scheduler_core.planner.gang.pod_deadlines import PodDeadline, PodDeadlines
from scheduler_core.planner.gang.pod_source import (
    PlannerPod,
    WatchedPod,
    fan_out,
    planner_pod,
    planner_sources,
    split_loads,
    watched_pod,
)
from scheduler_core.planner.gang.size_sources import SIZE_SOURCES
from scheduler_core.planner.gang.volumes import VOLUME_KINDS
from scheduler_core.policy.policy import Policy
from scheduler_core.request.full_pod import FullPodSpec, LabelSelector, PodAffinityTerm
from scheduler_core.request.node_load import NodeLoad
from scheduler_core.request.pod import Pod, RequiredTerm, RequiredTerms, Requirement
from scheduler_core.request.pod_request import InvalidRequest, PodRequest, parse_request
from tests.scheduler_core.planner.gang.pod_objects import LLM, gang_pod, pod

GATE = {"name": "gputopo.io/gang"}
STARTED = {"phase": "Running", "startTime": "2026-11-18T11:06:40Z"}
RESERVED = {**LLM, "gputopo.io/reservation": "llm-1"}


def seen(name: str = "w-0", gpus: int = 1, **changed: Any) -> PlannerPod | None:
    return planner_pod(f"uid-{name}", gang_pod(name, gpus, **changed))


def member(name: str = "w-0", gpus: int = 1, **changed: Any) -> Member | None:
    found = seen(name, gpus, **changed)
    return None if found is None else found.member


def test_a_gated_member_has_all_fields_of_its_patch() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}
    changed: dict[str, Any] = {
        "annotations": LLM,
        "schedulingGates": [GATE, {"name": "kueue.x-k8s.io/admission"}],
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "llm", "uid": "uid-job", "controller": True}
        ],
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "priority": 5,
        "nodeSelector": {"pool": "gpu"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }
    required = RequiredTerms((RequiredTerm((Requirement("zone", "In", ("a",)),)),))
    request = parse_request(gang_pod(**changed))

    assert member(**changed) == Member(
        uid="uid-w-0",
        namespace="team",
        name="w-0",
        version="7",
        gang_request=GangRequest(GangName("team", "llm"), 2, convention="annotations", creator_uid="uid-job"),
        request=request,
        created=1_794_999_600.0,
        priority=5,
        gates=("gputopo.io/gang", "kueue.x-k8s.io/admission"),
        owner_kind="batch/Job",
        rules=SchedulingRules(
            FullPodSpec(
                affinity=gang_pod(**changed).spec.affinity,
                node_selector={"pool": "gpu"},
            )
        ),
        terms=required,
        finalizers=("batch.kubernetes.io/job-tracking",),
    )
    assert isinstance(request, PodRequest)


def test_a_mirror_pod_is_in_no_gang() -> None:
    """A kubelet may create one in any namespace, with any annotations."""
    static = {**LLM, "kubernetes.io/config.mirror": "x"}

    found = planner_pod("u", gang_pod("w-0", 1, annotations=static, nodeName="n1"))

    assert found is not None
    assert (found.update is not None, found.member) == (True, None)


def test_of_thousands_of_gates_a_member_keeps_ours_and_a_few() -> None:
    others = [{"name": f"example.com/gate-{number}"} for number in range(10_000)]
    found = member(schedulingGates=[*others, GATE])

    assert found is not None
    assert found.gates == (GATE["name"], *(each["name"] for each in others[:8]))


def test_the_reason_of_a_gang_names_a_few_of_the_gates_that_hold_it() -> None:
    gates = [[GATE, *({"name": f"example.com/{pod}-{number}"} for number in range(8))] for pod in range(4)]
    held = [member(f"w-{pod}", schedulingGates=each) for pod, each in enumerate(gates)]
    found = gang_of(GangName("team", "llm"), [each for each in held if each is not None])

    assert found.gates == [f"example.com/0-{number}" for number in range(8)]


def test_a_running_member_lacks_fields_that_only_gated_ones_need() -> None:
    owner = [{"apiVersion": "v1", "kind": "ReplicationController", "uid": "u", "controller": True}]
    found = member(
        annotations=RESERVED,
        nodeName="n1",
        status=STARTED,
        ownerReferences=owner,
        deletionTimestamp="2026-11-18T12:00:00Z",
    )

    assert found is not None
    assert found == Member(
        uid="uid-w-0",
        namespace="team",
        name="w-0",
        version="",
        gang_request=GangRequest(GangName("team", "llm"), 2, convention="annotations", creator_uid="u"),
        request=found.request,
        created=1_794_999_600.0,
        node="n1",
        phase="Running",
        started=True,
        is_terminating=True,
        reservation="llm-1",
        owner_kind="core/ReplicationController",
    )


@pytest.mark.parametrize(
    ("changed", "gang", "by"),
    [
        pytest.param({"schedulingGates": [GATE]}, "pod.uid-w-0", "gate", id="gate alone"),
        pytest.param(
            {"schedulingGates": [GATE], "annotations": {"gputopo.io/planned": "true"}},
            "pod.uid-w-0",
            "annotations",
            id="planned",
        ),
        pytest.param(
            {"schedulingGates": [GATE], "schedulingGroup": {"podGroupName": "pg"}},
            "group.pg",
            "scheduling group",
            id="scheduling group",
        ),
        pytest.param({"schedulingGates": [GATE], "schedulingGroup": {}}, "pod.uid-w-0", "gate", id="empty group"),
        pytest.param(
            {"annotations": {"gputopo.io/reservation": "r-1"}, "status": STARTED, "nodeName": "n1"},
            "pod.uid-w-0",
            "gate",
            id="single pod, placed",
        ),
        pytest.param({"annotations": LLM}, "llm", "annotations", id="names a gang, not gated"),
        pytest.param(
            {"annotations": RESERVED, "status": {"phase": "Succeeded"}}, "llm", "annotations", id="placed, succeeded"
        ),
    ],
)
def test_pods_that_are_members(changed: dict[str, Any], gang: str, by: str) -> None:
    found = member(**changed)

    assert found is not None
    assert (found.gang_request.gang.name, found.gang_request.convention) == (gang, by)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="no annotation"),
        pytest.param({"schedulingGates": [{"name": "other"}]}, id="another gate"),
        pytest.param({"annotations": {"gputopo.io/planned": "true"}}, id="planned, not gated"),
        pytest.param({"annotations": {**LLM, "gputopo.io/gang-size": "0"}}, id="malformed, not gated"),
        pytest.param({"annotations": LLM, "status": {"phase": "Failed"}}, id="failed, placed by another scheduler"),
    ],
)
def test_pods_that_are_no_members(changed: dict[str, Any]) -> None:
    assert member(**changed) is None


@pytest.mark.parametrize(
    ("annotations", "gang", "reason"),
    [
        pytest.param(
            {**LLM, "gputopo.io/gang-size": "0"},
            "llm",
            "the pod's request is malformed: gputopo.io/gang-size: '0' is not a number of pods, 1 to 65536",
            id="of a gang",
        ),
        pytest.param(
            {"gputopo.io/gang": "!"},
            "pod.uid-w-0",
            "the pod's request is malformed: gputopo.io/gang: '!' is not a name: at most 63 lower-case letters, "
            "digits and -",
            id="gang name malformed",
        ),
    ],
)
def test_a_gated_pod_with_invalid_annotations_is_a_member_with_an_invalid_request(
    annotations: dict[str, str], gang: str, reason: str
) -> None:
    found = member(annotations=annotations, schedulingGates=[GATE])

    assert found is not None
    assert (found.gang_request.gang, found.request) == (GangName("team", gang), InvalidRequest(reason))


def test_the_policy_parses_the_request() -> None:
    def strict(pod: Pod) -> PodRequest | InvalidRequest:
        return InvalidRequest(f"not {pod.metadata.name}")

    found = planner_pod("uid-w-0", gang_pod(schedulingGates=[GATE]), strict)

    assert found is not None
    assert found.member is not None
    assert found.member.request == InvalidRequest("not w-0")


@pytest.mark.parametrize(
    ("changed", "ends"),
    [
        pytest.param({"activeDeadlineSeconds": 60, "nodeName": "n1", "status": STARTED}, 1_795_000_060.0, id="runs"),
        pytest.param({"nodeName": "n1", "status": STARTED}, None, id="no deadline"),
        pytest.param({"activeDeadlineSeconds": 60, "nodeName": "n1"}, None, id="not started"),
        pytest.param({"activeDeadlineSeconds": 60}, None, id="not bound"),
    ],
)
def test_the_deadline_of_a_pod(changed: dict[str, Any], ends: float | None) -> None:
    found = seen(**changed)

    assert found is not None
    assert found.deadline == ends


def test_a_pod_without_gpus_that_is_no_member_is_not_kept() -> None:
    assert seen(gpus=0, activeDeadlineSeconds=60, nodeName="n1", status=STARTED) is None


def test_a_launcher_without_gpus_is_a_member_without_devices() -> None:
    found = seen(gpus=0, annotations=LLM, schedulingGates=[GATE])

    assert found is not None
    assert found.update is None
    assert found.member is not None


def found_of(*pods: dict[str, Any]) -> Batch[PlannerPod]:
    """Return what the watch delivers for a list of pods."""
    source = planner_sources()[PlannerPod]
    delta: Delta[PlannerPod] = Projection(source).apply_list(msgspec.Raw(msgspec.json.encode(each)) for each in pods)
    return Batch(PlannerPod, *delta)


def test_a_full_list_is_split_by_consumer() -> None:
    gated = pod("w-0", annotations=LLM, schedulingGates=[GATE])
    bound = pod("w-1", annotations=RESERVED, nodeName="n1", activeDeadlineSeconds=60, status=STARTED)
    launcher = pod("launcher", 0, annotations=LLM)
    other = pod("other", nodeName="n1")

    pods, members, ends, disruptions = fan_out(found_of(gated, bound, launcher, other, pod("none", 0)))

    assert (pods.kind, pods.is_full_list, [each.key for each in pods.updates]) == (
        PodUpdate,
        True,
        ["uid-w-0", "uid-w-1", "uid-other"],
    )
    assert (members.kind, members.is_full_list, [each.uid for each in members.updates]) == (
        Member,
        True,
        ["uid-w-0", "uid-w-1", "uid-launcher"],
    )
    assert ends == Batch(PodDeadline, (PodDeadline("uid-w-1", 1_795_000_060.0),), (), is_full_list=True)
    assert (pods.removed, members.removed) == ((), ())
    assert (disruptions.kind, disruptions.is_full_list) == (PodDisruption, True)
    assert disruptions.updates == (PodDisruption("uid-w-1", started=1_795_000_000.0), PodDisruption("uid-other"))


def test_a_pod_that_no_longer_concerns_a_consumer_is_removed_for_it() -> None:
    placed = seen("a", annotations=RESERVED, nodeName="n1", status=STARTED)
    through = seen("b", annotations=RESERVED, nodeName="n1", status={"phase": "Succeeded"})
    plain = seen("c", nodeName="n1")
    assert placed is not None and through is not None and plain is not None  # noqa: PT018

    pods, members, ends, _ = fan_out(Batch(PlannerPod, (placed, through, plain), ("uid-d",)))

    assert (pods.updates, pods.removed) == ((placed.update, plain.update), ("uid-d", "uid-b"))
    assert (members.updates, members.removed) == ((placed.member, through.member), ("uid-d", "uid-c"))
    assert (ends.updates, ends.removed) == ((), ("uid-d", "uid-a", "uid-b", "uid-c"))
    assert not pods.is_full_list


def test_the_streams_have_the_types_of_their_consumers() -> None:
    cluster_cache, roster, ends = ClusterCache(Policy()), GangMembers(), PodDeadlines()
    gated = pod("w-0", annotations=LLM, schedulingGates=[GATE])
    pods, members, deadlines, _ = fan_out(found_of(gated, pod("w-1", annotations=LLM, schedulingGates=[GATE])))

    cluster_cache.apply_batch(pods, 0.0)
    ends.apply_pod_deadlines(deadlines)

    assert roster.apply_members(members) == {GangName("team", "llm")}
    assert [gang.phase for gang in roster.all_gangs()] == [GangPhase.QUEUED]
    assert set(cluster_cache.pods) == {"uid-w-0", "uid-w-1"}


def test_the_planner_watches_pods_nodes_with_rules_and_objects_that_declare_sizes() -> None:
    kinds = planner_sources()

    assert set(kinds) == {NodeUpdate, PlannerPod, NodeGpusUpdate, *SIZE_SOURCES, *VOLUME_KINDS}
    assert kinds[NodeUpdate] == FULL_POD_SOURCES[NodeUpdate]
    assert kinds[PlannerPod].resource == PODS
    assert kinds[PlannerPod].query == ListOptions()
    assert set(planner_sources(sizes={})) == {NodeUpdate, PlannerPod, NodeGpusUpdate, *VOLUME_KINDS}
    assert all(issubclass(kind, DeclaredSizes) for kind in SIZE_SOURCES)


def test_affinity_without_requirements_has_no_terms() -> None:
    found = member(schedulingGates=[GATE], affinity={"nodeAffinity": {}})

    assert found is not None
    assert found.terms is None
    assert found.rules == SchedulingRules(FullPodSpec())


BY_HOST = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "llm"}}}
BY_OTHERS = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}
NO_SHARING = PodAffinityTerm("kubernetes.io/hostname", LabelSelector({"app": "llm"}))


def _anti_affinity_pod(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


@pytest.mark.parametrize(
    ("affinity", "apart", "unchecked"),
    [
        pytest.param(_anti_affinity_pod(BY_HOST), (NO_SHARING,), (), id="by host"),
        pytest.param(
            _anti_affinity_pod(BY_HOST, {**BY_HOST, "topologyKey": "zone"}),
            (NO_SHARING,),
            ("pod anti-affinity",),
            id="by zone",
        ),
        pytest.param(
            _anti_affinity_pod({**BY_HOST, "namespaceSelector": {"matchLabels": {"a": "b"}}}),
            (),
            ("pod anti-affinity",),
            id="namespaces by label",
        ),
        pytest.param(
            _anti_affinity_pod({**BY_HOST, "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Like"}]}}),
            (),
            ("pod anti-affinity",),
            id="unknown operator",
        ),
        pytest.param(
            {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [BY_OTHERS]}},
            (),
            ("pod affinity",),
            id="pod affinity to others",
        ),
    ],
)
def test_the_anti_affinity_of_a_member(
    affinity: dict[str, Any], apart: tuple[PodAffinityTerm, ...], unchecked: tuple[str, ...]
) -> None:
    gated = member(annotations=LLM, schedulingGates=[GATE], affinity=affinity, labels={"app": "llm"})
    running = member(annotations=RESERVED, nodeName="n1", status=STARTED, affinity=affinity, labels={"app": "llm"})

    assert gated is not None
    assert gated.rules is not None
    assert (gated.anti_affinity, gated.labels, gated.rules.unchecked) == (apart, {"app": "llm"}, unchecked)
    assert running is not None
    assert (running.anti_affinity, running.labels) == (apart, {"app": "llm"})


def _near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": list(terms)}}


OWN_HALL = {"topologyKey": "example.com/hall", "labelSelector": {"matchLabels": {"app": "llm"}}}


@pytest.mark.parametrize(
    ("terms", "annotations", "required", "unplanned"),
    [
        pytest.param([OWN_HALL], {}, "example.com/hall", (), id="with pods like itself"),
        pytest.param([OWN_HALL, OWN_HALL], {}, "example.com/hall", (), id="twice"),
        pytest.param(
            [OWN_HALL], {"gputopo.io/gang-required-topology": "rack"}, "rack", ("pod affinity",), id="two levels"
        ),
        pytest.param(
            [OWN_HALL, {**OWN_HALL, "topologyKey": "zone"}], {}, None, ("pod affinity",), id="two topology keys"
        ),
        pytest.param([OWN_HALL, BY_OTHERS], {}, None, ("pod affinity",), id="with others too"),
        pytest.param([{**OWN_HALL, "namespaces": ["other"]}], {}, None, ("pod affinity",), id="of another namespace"),
        pytest.param([{"topologyKey": "example.com/hall"}], {}, None, ("pod affinity",), id="with no pod"),
    ],
)
def test_the_affinity_of_a_gang_to_itself_is_its_required_topology(
    terms: list[dict[str, Any]], annotations: dict[str, str], required: str | None, unplanned: tuple[str, ...]
) -> None:
    found = member(annotations=LLM | annotations, schedulingGates=[GATE], affinity=_near(*terms), labels={"app": "llm"})
    single = {"gputopo.io/planned": "true"}
    alone = member(annotations=single, schedulingGates=[GATE], affinity=_near(*terms), labels={"app": "llm"})

    assert found is not None
    assert (found.gang_request.required, found.unplanned) == (required, unplanned)
    assert alone is not None
    assert (alone.gang_request.required, alone.unplanned) == (None, ("pod affinity",))


def test_rules_of_a_member_without_gpus_are_left_to_kube_scheduler() -> None:
    spread = [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    with_gpus = member(annotations=LLM, schedulingGates=[GATE], topologySpreadConstraints=spread)
    without = member(gpus=0, annotations=LLM, schedulingGates=[GATE], topologySpreadConstraints=spread)

    assert with_gpus is not None
    assert with_gpus.unplanned == ("topology spread",)
    assert without is not None
    assert without.unplanned == ()


def test_the_volume_claims_of_a_member() -> None:
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-w-0"}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "config", "configMap": {"name": "c"}},
    ]
    gated = member(annotations=LLM, schedulingGates=[GATE], volumes=volumes)
    running = member(annotations=RESERVED, nodeName="n1", status=STARTED, volumes=volumes)

    assert gated is not None
    assert (gated.claims, gated.unplanned) == (("data-w-0", "w-0-scratch"), ())
    assert running is not None
    assert running.claims == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({}, "no volume", id="ungated"),
        pytest.param({"nodeName": "n1"}, None, id="bound after all"),
        pytest.param({"annotations": LLM, "schedulingGates": [GATE]}, None, id="still gated"),
        pytest.param(
            {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}},
            None,
            id="kube-scheduler has not tried yet",
        ),
    ],
)
def test_kube_scheduler_s_message_on_an_ungated_member(changed: dict[str, Any], message: str | None) -> None:
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no volume"}
    usual: dict[str, Any] = {"annotations": RESERVED, "status": {"phase": "Pending", "conditions": [refused]}}
    found = member(**(usual | changed))

    assert found is not None
    assert found.bind_error == message


def test_a_pod_whose_selectors_take_long_to_compare_with_every_node_is_refused() -> None:
    expressions = [{"key": f"key-{at}", "operator": "DoesNotExist"} for at in range(9_000)]
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}

    found = member(annotations=LLM, schedulingGates=[GATE], affinity=affinity)

    assert found is not None
    assert found.request == InvalidRequest(
        "nodeSelector, node affinity and tolerations have 9001 entries: gputopo plans pods with at most 256 "
        "entries and 20000 values; name many nodes as values of one expression, or by one label"
    )


LARGE = [
    ({"containers": [{"name": f"c-{at}"} for at in range(999)], "volumes": [{"name": "v"}]}, 1_000),
    ({"containers": [{"name": f"c-{at}"} for at in range(1_001)]}, 1_001),
    ({"initContainers": [{"name": f"c-{at}"} for at in range(1_000)]}, 1_001),
    ({"containers": [{"name": "c", "env": [{"name": f"E{at}"} for at in range(1_000)]}]}, 1_001),
    ({"containers": [{"name": "c", "ports": [{"containerPort": at} for at in range(1_000)]}]}, 1_001),
    ({"containers": [{"name": "c", "volumeMounts": [{"mountPath": f"/{at}"} for at in range(1_000)]}]}, 1_001),
    ({"volumes": [{"name": f"v-{at}", "emptyDir": {}} for at in range(1_000)]}, 1_001),
    ({"imagePullSecrets": [{"name": f"s-{at}"} for at in range(1_000)]}, 1_001),
    ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}] * 1_000}, 1_001),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "entries"), LARGE)
def test_a_pod_that_the_api_server_writes_slowly_is_refused(spec: dict[str, Any], entries: int) -> None:
    found = member(annotations=LLM, schedulingGates=[GATE], **spec)

    assert found is not None
    refused = isinstance(found.request, InvalidRequest) and f"are {entries:,} entries" in found.request.reason
    assert refused == (entries > 1_000)


LABELS = {f"l-{at}": "x" for at in range(1_001)}


def test_a_gated_pod_with_too_many_labels_is_refused_and_nothing_of_it_is_kept() -> None:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]

    found = member(annotations=LLM, labels=LABELS, schedulingGates=[GATE], affinity=affinity, volumes=volumes)

    assert found is not None
    assert isinstance(found.request, InvalidRequest)
    assert "its labels, containers, " in found.request.reason
    assert (found.labels, found.terms, found.claims) == (None, None, ())


@pytest.mark.parametrize("more", [{"nodeName": "a"}, {}], ids=["placed", "not gated"])
def test_the_labels_of_other_members_are_bounded_too(more: dict[str, Any]) -> None:
    few = dict(list(LABELS.items())[:-1])
    found = [member(annotations=LLM, labels=labels, **more) for labels in (few, LABELS)]

    assert [None if each is None else each.labels for each in found] == [few, None]
    assert [each is not None and isinstance(each.request, PodRequest) for each in found] == [True, True]


def test_long_annotations_are_not_kept() -> None:
    jobset = {"jobset.sigs.k8s.io/jobset-name": "a", "jobset.sigs.k8s.io/jobset-uid": "u" * 10_000}
    annotations = {**jobset, "gputopo.io/reservation": "r" * 254}

    found = member(annotations=annotations, schedulingGates=[GATE])

    assert found is not None
    assert found.reservation is None
    assert len(found.gang_request.creator_uid or "") < 256


def test_the_request_of_a_pod_is_parsed_once_per_event() -> None:
    parsed: list[Pod] = []

    def parse(found: Pod) -> PodRequest | InvalidRequest:
        parsed.append(found)
        return parse_request(found)

    found = planner_pod("u", gang_pod("w-0", 1, annotations=LLM, schedulingGates=[GATE]), parse)

    assert found is not None
    assert found.update is not None
    assert found.member is not None
    assert len(parsed) == 1


CORES = [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Ki"}}}]


def test_of_a_pod_without_gpus_only_its_node_and_its_requests_are_kept() -> None:
    bound = gang_pod("web", 0, nodeName="n1", containers=CORES)

    assert watched_pod("uid-web", bound) == PodLoad("uid-web", "n1", NodeLoad(2000, 1024, 0, 1))
    assert watched_pod("uid-web", gang_pod("web", 0, containers=CORES)) is None
    expected = gang_pod("web", 0, containers=CORES, status={"nominatedNodeName": "n1"})
    assert watched_pod("uid-web", expected) == watched_pod("uid-web", bound)
    assert watched_pod("uid-web", gang_pod("web", 0, nodeName="n1", status={"phase": "Succeeded"})) is None


def test_requests_of_pods_with_gpus_count_where_their_gpus_do() -> None:
    found = seen("w", 1, nodeName="n1", overhead={"cpu": "250m"})
    launcher = seen("l", 0, annotations=RESERVED, nodeName="n1")

    assert found is not None
    assert found.update is not None
    assert (found.update.occupant.load, found.load) == (NodeLoad(250, pods=1), None)
    assert launcher is not None
    assert launcher.load == PodLoad("uid-l", "n1", NodeLoad(pods=1))


def test_the_loads_of_a_batch_are_split_from_its_other_pods() -> None:
    """A pod that leaves one of the two is removed there; a pod that was never there is not mentioned."""
    gpus, web = seen("w", 1, nodeName="n1"), watched_pod("uid-web", gang_pod("web", 0, nodeName="n1"))
    left = PodLoad("uid-left", "n1", NodeLoad(pods=1))
    assert gpus is not None
    assert isinstance(web, PodLoad)
    kind: Any = PlannerPod
    batch: Batch[WatchedPod] = Batch(kind, (gpus, web, left), ("uid-old", "uid-new"))

    loads, pods = split_loads(batch, {"uid-old"}.__contains__, {"uid-left"}.__contains__)

    assert loads == Batch(PodLoad, (web, left), ("uid-old", "uid-new", "uid-w"))
    assert pods == Batch(PlannerPod, (gpus,), ("uid-new", "uid-left"))
    loads, pods = split_loads(batch._replace(removed=(), is_full_list=True), bool, bool)
    assert loads == Batch(PodLoad, (web, left), (), is_full_list=True)
    assert pods == Batch(PlannerPod, (gpus,), (), is_full_list=True)
