"""Write restrictions that RBAC cannot express, for tokens of extenders, schedulers and planners, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from gputopo.crd.reservations import POOL, ExtenderAck
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.events import EventReporter
from gputopo.kube.rbac import EVENTS, EXTENDER, LEASES, LEDGER_STATUS, LEDGERS
from scheduler_core.cache.events import LedgerUpdate
from scheduler_core.extender.ledger_writer import LedgerWriter
from scheduler_core.extender.pod_events import EVENT_REASONS
from scheduler_core.planner.leader.events import EventReason
from scheduler_core.runtime.event_writer import EventDraft, event_body
from tests.api_client import Client
from tests.api_objects import Object
from tests.daemonset.tools import kustomized
from tests.e2e import cleaning
from tests.e2e.cluster import Cluster, wait_for
from tests.e2e.daemonset.installed import NAMESPACE, apply, documents, refusal
from tests.e2e.gangs.running import define_reservations
from tests.e2e.servers import ControlPlane

pytestmark = pytest.mark.e2e
OVERLAYS = ("default", "cluster-scheduler", "planner-without-gates")
WANTED = {
    "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "PriorityClass",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
}  # fmt: skip
ACCOUNTS = ("gputopo-scheduler", "gputopo-extender", "gputopo-planner")
REASONS = {"gputopo-extender": EVENT_REASONS, "gputopo-planner": tuple(reason.value for reason in EventReason)}
STATUS = LEDGER_STATUS.path(POOL)
LEDGER = {"apiVersion": LEDGERS.api_version, "kind": "PlacementLedger", "metadata": {"name": POOL}}
VICTIM = {"pod": f"{NAMESPACE}/victim", "generation": 1}


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane, pristine: set[cleaning.Found]) -> Iterator[Cluster]:
    """The manifests without their Deployments, with the policies in force; a ledger with another extender's entry."""
    api = control_plane.client()
    found = Cluster(control_plane, api, "extender-guard")
    define_reservations(found)
    apply(found, documents("base/namespace.yaml"))
    for overlay in OVERLAYS:  # two of them have objects of the same name, for different accounts
        apply(found, [renamed(each, overlay) for each in kustomized(f"scheduler/{overlay}") if each["kind"] in WANTED])
    api.create(LEDGERS.path(), LEDGER | {"spec": {"planner": "p"}})
    api.patch(STATUS, {"status": {"extenders": {"other": VICTIM}}})
    for account in ACCOUNTS:
        with bearer(found, found.token(account, namespace=NAMESPACE)) as client:
            wait_for(partial(refused_by_policy, client), f"the policies of {account}")
    yield found
    cleaning.clean(api, pristine)
    api.close()


def renamed(document: Object, overlay: str) -> Object:
    """A cluster role binding by another name for each overlay."""
    if document["kind"] != "ClusterRoleBinding":
        return document
    return document | {"metadata": document["metadata"] | {"name": f"{document['metadata']['name']}-{overlay}"}}


def refused_by_policy(client: Client) -> bool:
    body = {"metadata": {"name": "probe"}}
    return "ValidatingAdmissionPolicy" in refusal(client, "POST", LEASES.path(namespace=NAMESPACE), body)[1]


@contextmanager
def bearer(cluster: Cluster, token: str) -> Iterator[Client]:
    client = cluster.client(token)
    try:
        yield client
    finally:
        client.close()


@pytest.fixture(scope="module", params=ACCOUNTS[:2])
def account(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def token(cluster: Cluster, account: str) -> str:
    """The token that the kubelet mounts into a pod of an extender, "attacker-..."."""
    overlay = "default" if account == "gputopo-scheduler" else "cluster-scheduler"
    (deployment,) = (each for each in kustomized(f"scheduler/{overlay}") if each["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    made = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": template["metadata"] | {"name": f"attacker-{account}", "namespace": NAMESPACE},
        "spec": template["spec"],
    }
    return cluster.token(account, cluster.create_pod(made), NAMESPACE)


def entries(**changes: Object | None) -> Object:
    return {"status": {"extenders": changes}}


def test_an_extender_writes_only_the_entry_of_its_own_pod(cluster: Cluster, account: str, token: str) -> None:
    own = {"pod": f"{NAMESPACE}/attacker-{account}", "generation": 1}
    attacks = {
        "acknowledges for another": entries(other={"generation": 0}),
        "removes another": entries(other=None),
        "takes over another": entries(other=own),
        "registers as another": entries(new=VICTIM),
        "registers as nobody": entries(new={"generation": 1}),
        "in another namespace": entries(new={"pod": f"kube-system/attacker-{account}"}),
        "one good, one bad": entries(new=own, other=None),
    }
    with bearer(cluster, token) as client:
        answers = {name: refusal(client, "PATCH", STATUS, body) for name, body in attacks.items()}
        good = refusal(client, "PATCH", STATUS, entries(new=own))
        stolen = refusal(client, "PATCH", STATUS, LEDGER | entries(other={"generation": 0}), "apply")
    with bearer(cluster, cluster.token(account, namespace=NAMESPACE)) as unbound:
        nameless = refusal(unbound, "PATCH", STATUS, entries(new=own))

    assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(attacks, 403)
    assert all("changes only entries of the pod that its token names" in text for _, text in answers.values())
    assert good == (200, "")
    assert stolen[0] in {403, 409}  # the conflict is noticed first
    assert (nameless[0], "names no pod" in nameless[1]) == (403, True)


def test_an_extender_cannot_fill_the_ledger(cluster: Cluster, account: str, token: str) -> None:
    own = {"pod": f"{NAMESPACE}/attacker-{account}"}
    uid = "11111111-2222-3333-4444-555555555555"
    attacks = {
        "a generation that the ledger never had": entries(new=own | {"generation": 2**62}),
        "thousands of blocked reservations": entries(new=own | {"blocked": [uid] * 1_001}),
        "many entries": entries(**{f"new-{at}": own for at in range(33)}),
    }
    with bearer(cluster, token) as client:
        answers = {name: refusal(client, "PATCH", STATUS, body) for name, body in attacks.items()}
        for at in range(32):
            client.patch(STATUS, entries(**{f"new-{at}": own}))
        one_more = refusal(client, "PATCH", STATUS, entries(one_more=own))
        client.patch(STATUS, entries(**{f"new-{at}": None for at in range(32)}))

    assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(attacks, 403)
    assert (one_more[0], "at most 32 entries" in one_more[1]) == (403, True)


def test_the_real_writer_registers_acknowledges_and_withdraws(
    cluster: Cluster, account: str, token: str, tmp_path: Path
) -> None:
    kube = from_kubeconfig(EXTENDER, str(cluster.kubeconfig(tmp_path / "extender", token)))
    stored = cluster.api.get(LEDGERS.path(POOL))["metadata"]
    ledger = LedgerUpdate(POOL, stored["uid"], stored["resourceVersion"], stored["generation"])
    writer, identity = LedgerWriter(kube, f"attacker_{account}"), f"attacker_{account}"

    def shown() -> Object | None:
        found: Object = cluster.api.get(LEDGERS.path(POOL))["status"]["extenders"]
        return found.get(identity)

    writer.write_ack(ledger, ExtenderAck(f"{NAMESPACE}/attacker-{account}", generation=1))
    wait_for(lambda: (shown() or {}).get("pod") == f"{NAMESPACE}/attacker-{account}", "the registration")
    writer.write_ack(ledger, None)
    wait_for(lambda: shown() is None, "the withdrawal")
    writer.close()
    kube.close()
    assert writer.error is None


@pytest.mark.parametrize("who", ACCOUNTS)
def test_every_account_writes_only_its_own_lease(cluster: Cluster, who: str) -> None:
    """A kube-scheduler's role allows more: with the Lease of the cluster's own scheduler, all scheduling stops."""
    spec = {"holderIdentity": "attacker", "leaseDurationSeconds": 3600}

    def lease(name: str) -> Object:
        return {"metadata": {"name": name}, "spec": spec}

    ours, system = LEASES.path(namespace=NAMESPACE), LEASES.path(namespace="kube-system")
    for name in ("kube-scheduler", f"theirs-of-{who}"):
        if name not in {each["metadata"]["name"] for each in cluster.api.items(system)}:
            cluster.api.create(system, lease(name))
    schedulers = LEASES.path("kube-scheduler", "kube-system")
    taken = {**cluster.api.get(schedulers), "spec": spec | {"holderIdentity": who}}
    with bearer(cluster, cluster.token(who, namespace=NAMESPACE)) as client:
        answers = [
            refusal(client, "PUT", schedulers, taken),
            refusal(client, "PATCH", schedulers, {"spec": spec}),
            refusal(client, "POST", system, lease(who)),
            refusal(client, "POST", LEASES.path(namespace="kube-node-lease"), lease("gpu-0")),
            refusal(client, "POST", ours, lease("another")),
            refusal(client, "POST", ours, {"metadata": {"generateName": who}, "spec": spec}),
        ]
        own = refusal(client, "POST", ours, lease(who))

    assert [status for status, _ in answers] == [403] * len(answers)
    assert own == (200, "")


def event(who: str, **changes: Object | str) -> Object:
    """Return the Event that the program of an account writes, with changes of its fields."""
    draft = EventDraft("Pod", "default", "w-0", "uid-w-0", REASONS[who][0], "message", warning=True)
    found = event_body(draft, EventReporter(who), datetime.now(UTC))
    merged = {key: {**found[key], **each} if isinstance(each, dict) else each for key, each in changes.items()}
    return found | merged


@pytest.mark.parametrize("who", ACCOUNTS[1:])
def test_programs_with_their_own_account_write_only_events_of_their_own(cluster: Cluster, who: str) -> None:
    attacks: dict[str, Object] = {
        "about a Node": event(who, involvedObject={"kind": "Node", "namespace": ""}),
        "about a Secret": event(who, involvedObject={"kind": "Secret"}),
        "about a Pod of another group": event(who, involvedObject={"apiVersion": "example.com/v1"}),
        "as the kubelet": event(who, source={"component": "kubelet"}),
        "as kube-scheduler": event(who, reportingComponent="default-scheduler"),
        "from a node": event(who, source={"host": "gpu-0"}),
        "with another reason": event(who, reason="Evicted"),
        "with a long message": event(who, message="x" * 1025),
        "with a label": event(who, metadata={"labels": {"a": "b"}}),
        "with a long field path": event(who, involvedObject={"fieldPath": "x" * 100_000}),
    }
    events = EVENTS.path(namespace="default")
    with bearer(cluster, cluster.token(who, namespace=NAMESPACE)) as client:
        answers = {name: refusal(client, "POST", events, body) for name, body in attacks.items()}
        own = {reason: refusal(client, "POST", events, event(who, reason=reason)) for reason in REASONS[who]}

    assert {name: status for name, (status, _) in answers.items()} == dict.fromkeys(attacks, 403)
    assert own == dict.fromkeys(REASONS[who], (200, ""))
