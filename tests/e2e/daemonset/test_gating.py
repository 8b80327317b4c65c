"""The pods that the policies gate on the real API server, and the pods that they do not change."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from gputopo.labels import keys
from gputopo.labels import workloads as seen
from scheduler_core.planner.gang.conventions import GANG_CONVENTIONS, GangConvention, parse_gang_request
from scheduler_core.request.pod import Metadata
from scheduler_core.request.pod_request import InvalidRequest
from tests.api_client import Client
from tests.api_objects import Object, container, pod
from tests.e2e import cleaning
from tests.e2e.attacks import FIGURE
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import apply, documents, refusal
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
OURS = "gputopo-scheduler"
STOCK = "default-scheduler"
GATE = {"name": keys.GATE}
KUEUE = {"name": "kueue.x-k8s.io/admission"}
GANG = {keys.POD_GANG.key: "llm-7", keys.POD_GANG_SIZE.key: "2"}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLAIN, LABELLED = "gating-plain", "gating-labelled"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Client]:
    """A cluster with the policies in force, and two namespaces of which one has opted in. All tests are dry runs."""
    api = control_plane.client()
    if "mutatingadmissionpolicies" not in {each["name"] for each in api.get(ADMISSION)["resources"]}:
        pytest.skip("this API server has no MutatingAdmissionPolicy: it is served by default from 1.36 on")
    cluster = Cluster(control_plane, api, PLAIN)
    cluster.create_namespace(LABELLED)
    labels = {"metadata": {"labels": {keys.GANGS_ENABLED.key: keys.GANGS_ENABLED.example}}}
    api.patch(f"/api/v1/namespaces/{LABELLED}", labels)
    apply(cluster, documents("scheduler/planner/gating.yaml"))
    for namespace, scheduler in ((PLAIN, OURS), (LABELLED, STOCK)):  # a policy each, which comes when it comes
        probe = made(member(GANG, scheduler=scheduler))
        wait_for(partial(gates, api, probe, namespace), f"the policies in {namespace}")
    yield api
    cleaning.clean(api, pristine)
    api.close()


def member(annotations: dict[str, str], labels: dict[str, str] | None = None, *, scheduler: str = OURS) -> Object:
    return {"annotations": annotations, "labels": labels or {}, "schedulerName": scheduler}


def made(of: Object, **spec: object) -> Object:
    """A pod of one GPU."""
    body = pod("train", 1, schedulerName=of["schedulerName"], **spec)
    body["metadata"] |= {"annotations": of["annotations"], "labels": of["labels"]}
    return body


def created(api: Client, body: Object, namespace: str = PLAIN) -> Object:
    found: Object = api.request("POST", f"/api/v1/namespaces/{namespace}/pods", body, query={"dryRun": "All"})
    return found


def gates(api: Client, body: Object, namespace: str = PLAIN) -> list[Object]:
    """Return the gates of a pod after a dry run of its creation."""
    found: list[Object] = created(api, body, namespace)["spec"].get("schedulingGates", [])
    return found


@pytest.mark.parametrize(
    ("namespace", "of", "expected"),
    [
        pytest.param(PLAIN, member(GANG), [GATE], id="a gang of our scheduler"),
        pytest.param(LABELLED, member(GANG), [GATE], id="a gang of our scheduler in a namespace that opted in"),
        pytest.param(LABELLED, member(GANG, scheduler=STOCK), [GATE], id="a gang in a namespace that opted in"),
        pytest.param(PLAIN, member(GANG, scheduler=STOCK), [], id="a gang that did not opt in"),
        pytest.param(LABELLED, member({}, scheduler=STOCK), [], id="no gang"),
        pytest.param(PLAIN, member({}), [], id="no gang of our scheduler"),
        pytest.param(PLAIN, member({keys.POD_PLANNED.key: "true"}), [GATE], id="a pod that is to be planned"),
        pytest.param(PLAIN, member({keys.POD_PLANNED.key: "false"}), [], id="a pod that is not to be planned"),
        pytest.param(LABELLED, member(GANG, scheduler="volcano"), [], id="what Volcano places, whatever else it says"),
        pytest.param(
            LABELLED,
            member({seen.VOLCANO_GROUP: "a"}, scheduler="volcano"),
            [],
            id="Volcano's, in a labelled namespace",
        ),
        pytest.param(
            LABELLED,
            member({}, {seen.POD_GROUP: "a"}, scheduler="scheduler-plugins-scheduler"),
            [],
            id="what Coscheduling places",
        ),
    ],
)
def test_a_pod_is_gated_where_it_names_a_gang_and_opted_in(
    api: Client, namespace: str, of: Object, expected: list[Object]
) -> None:
    assert gates(api, made(of), namespace) == expected


def marks(rule: GangConvention) -> dict[str, str]:
    """Labels by which a pod is known by that rule and by no other."""
    keys_of = [*rule.keys[:1], *rule.needs[:1]]
    return dict.fromkeys(keys_of, "2")


def test_a_pod_with_many_annotations_costs_the_api_server_little_more_than_without_the_policies(
    api: Client, record_property: Callable[[str, object], None]
) -> None:
    """Once, 15 s of CPU time for each pod: the policies read all annotations for each key."""
    many = {f"k{number}": "" for number in range(20_000)}
    seconds: dict[str, float] = {}
    for scheduler in ("volcano", OURS):  # the policies do not read the annotations of the first one
        started = time.monotonic()
        created(api, made(member(many, scheduler=scheduler)))
        seconds[scheduler] = time.monotonic() - started

    record_property(FIGURE, f"{seconds[OURS]:.2f} s, without the policies {seconds['volcano']:.2f} s")
    assert seconds[OURS] < 10.0 * seconds["volcano"] + 1.0, seconds


@pytest.mark.parametrize("rule", [rule for rule in GANG_CONVENTIONS if not rule.native], ids=lambda rule: rule.name)
@pytest.mark.parametrize("annotated", [False, True], ids=["labels", "annotations"])
def test_the_policies_and_the_planner_know_the_same_gangs(api: Client, rule: GangConvention, annotated: bool) -> None:
    found = marks(rule)
    empty = found | {rule.keys[0]: ""}
    needy = {rule.keys[0]: "2"}
    others = [found | {key: value} for key, values in rule.unless for value in values]

    for each in (found, empty, needy, *others):
        wanted = parse_gang_request(Metadata("p", "ns", "u", {} if annotated else each, each if annotated else {}))
        body = made(member(each) if annotated else member({}, each))
        assert isinstance(wanted, InvalidRequest) or bool(gates(api, body)) == (wanted is not None), each
    assert gates(api, made(member(found) if annotated else member({}, found))) == [GATE]


def test_kueues_gate_stays_beside_ours_and_ours_is_not_added_twice(api: Client) -> None:
    kueues = made(member(GANG), schedulingGates=[KUEUE])
    own = made(member(GANG), schedulingGates=[GATE, KUEUE])

    assert sorted(gates(api, kueues), key=str) == sorted([GATE, KUEUE], key=str)
    assert gates(api, own) == [GATE, KUEUE]


def test_a_pod_that_has_its_node_is_left_alone(api: Client) -> None:
    assert gates(api, made(member(GANG), nodeName="gpu-0")) == []


def test_nothing_else_of_the_pod_is_changed(api: Client) -> None:
    """Not even what a merge of lists by their keys would drop."""
    body = made(member(GANG), automountServiceAccountToken=False)  # the name of its volume is made up
    main = body["spec"]["containers"][0]
    main["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)"}, {"name": "A", "value": "2"}]
    main["ports"] = [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 80, "protocol": "TCP", "name": "x"}]
    body["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}, {"key": "a", "operator": "Exists"}]

    gated = created(api, body)["spec"]
    plain = created(api, body | {"metadata": {"name": "train"}})["spec"]

    assert gated.pop("schedulingGates") == [GATE]
    assert gated == plain


def test_in_planned_mode_every_pod_with_gpus_of_our_scheduler_is_gated(
    api: Client, control_plane: ControlPlane
) -> None:
    apply(Cluster(control_plane, api, "planned-all"), documents("scheduler/components/planned-all/gating.yaml"))
    plain = made(member({}))
    wait_for(partial(gates, api, plain), "the policy")
    mig, none, side = (made(member({})) for _ in range(3))
    mig["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/mig-1g.10gb": "1"}
    none["spec"]["containers"] = [container("main", 0)]
    side["spec"] |= {"containers": [container("main", 0)], "initContainers": [container("side", 1)]}

    assert [gates(api, each) for each in (plain, mig, side, none)] == [[GATE], [GATE], [GATE], []]
    assert gates(api, made(member({}, scheduler=STOCK))) == []


def test_in_planned_mode_a_tenant_cannot_remove_the_gate_of_its_own_pod(
    api: Client, control_plane: ControlPlane
) -> None:
    cluster = Cluster(control_plane, api, "planned-tenant")
    apply(cluster, documents("scheduler/components/planned-all/gating.yaml"))
    named: Object = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": "tenant", "namespace": cluster.namespace},
    }
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "update", "patch", "delete"]}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"}
    account = {"kind": "ServiceAccount", "name": "default", "namespace": cluster.namespace}
    apply(
        cluster,
        [
            named | {"kind": "Role", "rules": rules},
            named | {"kind": "RoleBinding", "roleRef": reference, "subjects": [account]},
        ],
    )
    cluster.create_pod(pod("train", 1, schedulingGates=[GATE, KUEUE]))
    tenant = cluster.client(cluster.token("default"))
    wait_for(lambda: refusal(tenant, "PATCH", cluster.pods("train"), only(KUEUE))[0] == 403, "the policy")

    assert "only gputopo's planner" in refusal(tenant, "PATCH", cluster.pods("train"), only(KUEUE))[1]
    assert refusal(tenant, "PATCH", cluster.pods("train"), only(GATE)) == (200, "")
    assert refusal(tenant, "PATCH", cluster.pods("train"), {"metadata": {"labels": {"a": "b"}}}) == (200, "")
    assert refusal(api, "PATCH", cluster.pods("train"), only(KUEUE)) == (200, "")
    tenant.close()


def only(gate: Object) -> Object:
    """A patch that leaves a pod this gate alone."""
    return {"spec": {"schedulingGates": [gate]}}
