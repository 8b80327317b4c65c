"""The objects that a clean-up finds and prints; ``tests/e2e`` shows that they are removed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from gputopo.cluster.cleanup import (
    LEADER_LEASES,
    Removal,
    apply_removals,
    find_definitions,
    find_leader_leases,
    find_planner_objects,
    find_removals,
    held_words,
    node_removals,
)
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.errors import NotFoundError, UnavailableError
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE
from gputopo.kube.leases import Lease, LeaseSpec
from gputopo.kube.objects import ManagedMetadata, ObjectMeta
from gputopo.kube.ownership import OwnedField
from gputopo.kube.rbac import CLEANER, LEASES, NODE_FEATURES, NODE_GPUS, NODES
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER
from gputopo.timestamps import format_timestamp
from tests.api_server import Answer, Asked, api_server

ISLANDS, GPUS, COUNT = "gputopo.io/islands", "gputopo.io/gpus", "nvidia.com/gpu.count"
OWN, MIRROR = OwnedField("labels", ISLANDS), OwnedField("labels", COUNT)


def entry(manager: str, *keys: str, operation: str = "Apply") -> dict[str, object]:
    fields: dict[str, object] = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in keys}}}
    return {"manager": manager, "operation": operation, "fieldsV1": fields}


def node(*entries: dict[str, object]) -> ManagedMetadata:
    return msgspec.json.decode(json.dumps({"name": "n", "uid": "u", "managedFields": entries}), type=ManagedMetadata)


def test_only_fields_of_our_managers_are_removed() -> None:
    metadata = node(
        entry(FIELD_MANAGER, ISLANDS, GPUS),
        entry(MIRROR_FIELD_MANAGER, COUNT),
        entry("kubectl-label", GPUS, "theirs", operation="Update"),
    )

    own, mirrors = node_removals(metadata)

    assert own == Removal(NODES, metadata, FIELD_MANAGER, (OWN,), (OwnedField("labels", GPUS),))
    assert mirrors == Removal(NODES, metadata, MIRROR_FIELD_MANAGER, (MIRROR,))
    assert str(own) == f"nodes/n: label {ISLANDS}, {GPUS} (others own it too: it stays)"


@pytest.mark.parametrize(
    ("fields", "foreign"),
    [
        pytest.param({"f:labels": {"f:gputopo.io/islands": {}, "f:team": {}}}, ("team",), id="a label"),
        pytest.param(
            {"f:labels": {"f:gputopo.io/islands": {}, "f:gputopo.io/cost-per-hour": {}}},
            ("gputopo.io/cost-per-hour",),
            id="a label of administrators",
        ),
        pytest.param({"f:labels": {"f:gputopo.io/islands": {}}, "f:finalizers": {}}, (), id="finalizers"),
        pytest.param({"f:labels": {"f:gputopo.io/islands": {}}, "f:ownerReferences": {}}, (), id="owners"),
    ],
)
def test_fields_that_no_agent_writes_stay(fields: dict[str, object], foreign: tuple[str, ...]) -> None:
    forged: dict[str, object] = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:metadata": fields}}

    (removal,) = node_removals(node(forged))

    assert (removal.fields, tuple(each.key for each in removal.foreign)) == ((OWN,), foreign)
    assert removal.is_forged


@pytest.mark.parametrize("field", ["f:spec", "f:status"])
def test_a_spec_or_status_that_an_agent_seems_to_own_stays(field: str) -> None:
    forged = entry(FIELD_MANAGER, ISLANDS)
    forged["fieldsV1"] |= {field: {"f:taints": {}}}  # type: ignore[operator]

    (removal,) = node_removals(node(forged))

    assert removal.is_forged
    assert removal.fields == (OWN,)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(node(), id="no field of ours"),
        pytest.param(node(entry("nfd-master", "theirs")), id="somebody else's"),
        pytest.param(node(entry(FIELD_MANAGER, "x", operation="Update")), id="somebody's who only goes by our name"),
    ],
)
def test_a_node_that_we_own_nothing_of_is_left_alone(metadata: ManagedMetadata) -> None:
    assert list(node_removals(metadata)) == []


def test_a_cluster_that_has_neither_our_kind_nor_nfds_has_nothing_of_them(tmp_path: Path) -> None:
    def answer(request: Asked) -> Answer:
        if request.path == NODES.path("n"):
            return Answer({"metadata": {"name": "n"}})
        return Answer({"metadata": {}, "items": None}) if request.path == NODES.path() else Answer("404", 404)

    with api_server(answer) as server:
        kube = from_kubeconfig(CLEANER, server.kubeconfig(tmp_path / "config"))
        assert (
            find_removals(kube, None),
            find_removals(kube, "n"),
            find_planner_objects(kube),
            find_definitions(kube),
            find_leader_leases(kube),
        ) == ([], [], [], [], [])
        kube.close()


def test_each_removal_has_an_end_of_its_own(tmp_path: Path) -> None:
    def answer(request: Asked) -> Answer:
        ends = {NODE_GPUS.path("done"): 200, NODE_GPUS.path("gone"): 404, NODE_FEATURES.path("f", "ns"): 503}
        return Answer({"message": "told"}, ends[request.path])

    wanted = [
        Removal(NODE_GPUS, ManagedMetadata("done", "u")),
        Removal(NODE_GPUS, ManagedMetadata("gone", "u")),
        Removal(NODE_FEATURES, ManagedMetadata("f", "u", "ns")),
    ]
    with api_server(answer) as server:
        kube = from_kubeconfig(CLEANER, server.kubeconfig(tmp_path / "config"))
        ends = list(apply_removals(kube, wanted))
        kube.close()

    assert [removal for removal, _ in ends] == wanted
    assert [type(error) for _, error in ends] == [type(None), type(None), UnavailableError]


def test_a_node_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with api_server(lambda _: Answer({"message": "no"}, 404)) as server:
        kube = from_kubeconfig(CLEANER, server.kubeconfig(tmp_path / "config"))
        with pytest.raises(NotFoundError):
            find_removals(kube, "n")
        kube.close()


NOW = 1_795_000_000.0


@pytest.mark.parametrize(
    ("spec", "held"),
    [
        pytest.param(LeaseSpec("a", 15, None, format_timestamp(NOW - 3.0)), "a renewed it 3s ago", id="it is renewed"),
        pytest.param(
            LeaseSpec("a", 15, None, format_timestamp(NOW - 45.0)), "a renewed it 45s ago", id="clocks differ"
        ),
        pytest.param(LeaseSpec("a", 15, None, format_timestamp(NOW - 46.0)), None, id="it has expired"),
        pytest.param(LeaseSpec("", 15, None, format_timestamp(NOW)), None, id="it was released"),
        pytest.param(LeaseSpec("a", 15), None, id="it was never renewed"),
        pytest.param(LeaseSpec("a", None, None, format_timestamp(NOW - 1.0)), None, id="without duration"),
        pytest.param(LeaseSpec(), None, id="empty"),
    ],
)
def test_a_lease_is_held_until_it_has_expired(spec: LeaseSpec, held: str | None) -> None:
    assert held_words(Lease(ObjectMeta("gputopo-planner"), spec), NOW) == held


def test_the_leases_are_those_that_the_roles_name() -> None:
    """The roles of the programs list the names that they may lead by."""
    folder = Path(__file__).parents[3] / "daemonset/scheduler"
    rules = [
        rule
        for file in folder.rglob("rbac.yaml")
        for role in yaml.safe_load_all(file.read_text(encoding="utf-8"))
        for rule in role.get("rules", ())
        if "leases" in rule.get("resources", ()) and "resourceNames" in rule
    ]

    assert {name for rule in rules for name in rule["resourceNames"]} == {*LEADER_LEASES}


def test_leases_of_that_name_are_found_in_every_namespace_but_that_of_heartbeats(tmp_path: Path) -> None:
    namespaces = {"gputopo-planner": ["gputopo", HEARTBEAT_NAMESPACE], "gputopo-scheduler": ["gpu-tools"]}

    def answer(request: Asked) -> Answer:
        assert request.path == LEASES.path()
        (name,) = (each for each in LEADER_LEASES if request.query["fieldSelector"] == f"metadata.name={each}")
        items = [{"metadata": {"name": name, "namespace": each}} for each in namespaces.get(name, [])]
        return Answer({"metadata": {}, "items": items})

    with api_server(answer) as server:
        kube = from_kubeconfig(CLEANER, server.kubeconfig(tmp_path / "config"))
        found = [Removal(LEASES, each.metadata) for each in find_leader_leases(kube)]
        kube.close()

    assert [str(each) for each in found] == [
        "leases/gputopo/gputopo-planner",
        "leases/gpu-tools/gputopo-scheduler",
    ]
