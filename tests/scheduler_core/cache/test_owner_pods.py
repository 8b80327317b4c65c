"""Pods of one owner: the same hardware for training, different nodes for services."""

from __future__ import annotations

import pytest

from scheduler_core.cache.colocation import OwnerPods
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_table import ClusterSnapshot, snapshot_of
from scheduler_core.cache.owner_pods import PlacedPod, siblings_in, with_owner
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodRequest, SiblingHardware
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, mask, occupant, owned_by, record, request

POLICY = Policy()
OF_JOB = request()._replace(owner="job")
H100, PAIRS, MIXED = (MACHINES[name]() for name in ("hgx_h100", "a100_bridged", "mixed"))


def _table(*records: NodeRecord) -> ClusterSnapshot:
    return snapshot_of(records, NOW, POLICY)


def _asks(workload: str, **wishes: str) -> PodRequest:
    return request(1, "new", workload=workload, **wishes)._replace(owner="job")


def _two_nodes(held: dict[str, list[int]] | None = None) -> ClusterSnapshot:
    """A replica on "a", another owner's pod on "b"."""
    mine, other = owned_by(occupant("mine", 1)), owned_by(occupant("other", 1), "else")
    return _table(
        record("a", PAIRS, held={"mine": [0]} if held is None else held, pods=[mine]),
        record("b", PAIRS, held={"other": [0]}, pods=[other]),
    )


def test_pods_of_an_owner_are_found() -> None:
    table = _two_nodes()

    assert siblings_in(table, OF_JOB) == (PlacedPod("a", owned_by(occupant("mine", 1))),)
    assert siblings_in(table, request()) == ()


def test_replicas_of_a_service_go_to_different_nodes() -> None:
    """Equal nodes but for the owner of the pod there. Weights 3 + 1 + 1 + 1 + 6 + 4 = 16, and spread 1 versus 0.5."""
    table = _two_nodes()
    asked, seen = with_owner(_asks("inference"), siblings_in(table, OF_JOB), table)

    found = evaluate(asked, seen, ["a", "b"], POLICY)

    assert found.nodes == ("b",)
    assert found.scores["b"].points - found.scores["a"].points == pytest.approx(10 * 4 * 0.5 / 16, abs=1e-5)
    assert seen.states["b"] is table.states["b"]


@pytest.mark.parametrize(
    ("held", "kin"),
    [
        pytest.param({"mine": [0]}, OwnerPods(1, mask(0)), id="the kubelet says which GPU"),
        pytest.param({}, OwnerPods(1, mask(0, 1, 2, 3)), id="it has not said so yet: any"),
    ],
)
def test_owner_pods_hold_the_gpus_in_the_report(held: dict[str, list[int]], kin: OwnerPods) -> None:
    table = _two_nodes(held)
    _, seen = with_owner(_asks("inference"), siblings_in(table, OF_JOB), table)

    assert seen.states["a"].owner_pods == kin


def test_owner_pods_on_a_node_without_a_topology() -> None:
    mine = owned_by(occupant("mine", 1))
    table = _table(record("a", labels={"nvidia.com/gpu.count": "x"}, pods=[mine]))
    _, seen = with_owner(_asks("inference"), siblings_in(table, OF_JOB), table)

    assert seen.states["a"].owner_pods == OwnerPods(1, 0)


def test_sibling_hardware_is_that_of_most_pods_of_the_job() -> None:
    jobs = [owned_by(occupant(name, 1)) for name in ("x", "y", "z")]
    table = _table(
        record("h", H100, held={}, pods=[jobs[0]]),
        record("a1", PAIRS, held={}, pods=[jobs[1]]),
        record("a2", PAIRS, held={}, pods=[jobs[2]]),
    )
    asked, seen = with_owner(_asks("training"), siblings_in(table, OF_JOB), table)

    product = table.states["a1"].shape
    assert product is not None
    assert asked.profile.sibling_hardware == SiblingHardware(product.gpus[0].product, PAIRS.driver_version)
    assert seen is table
    found = evaluate(asked, seen, ["h", "a1", "a2"], POLICY)
    raws = {name: {part.factor: part.raw for part in each.parts}["siblings"] for name, each in found.scores.items()}
    assert raws["a1"] == raws["a2"] > raws["h"] == 0.0


@pytest.mark.parametrize(
    "other",
    [record("a", MIXED, pods=[owned_by(occupant("mine", 1))]), record("a", pods=[owned_by(occupant("mine", 1))])],
)
def test_no_sibling_product_where_products_differ_or_are_unknown(other: NodeRecord) -> None:
    table = _table(other)
    asked, _ = with_owner(_asks("training"), siblings_in(table, OF_JOB), table)

    assert asked.profile.sibling_hardware is not None
    assert asked.profile.sibling_hardware.product is None


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(_asks("inference", spread="ignore"), id="a service that does not mind"),
        pytest.param(_asks("batch"), id="batch"),
    ],
)
def test_other_requests_are_unchanged(asked: PodRequest) -> None:
    table = _two_nodes()

    assert with_owner(asked, siblings_in(table, OF_JOB), table) == (asked, table)


def test_neither_the_pod_itself_nor_pods_on_unknown_nodes_count() -> None:
    table = _two_nodes()
    asked = _asks("inference")
    others = [PlacedPod("a", occupant("new", 1)), PlacedPod("ghost", occupant("mine", 1))]

    assert with_owner(asked, others, table) == (asked, table)


def test_training_that_asks_to_be_spread_gets_both() -> None:
    table = _two_nodes()
    asked, seen = with_owner(_asks("training", spread="preferred"), siblings_in(table, OF_JOB), table)

    assert asked.profile.sibling_hardware is not None
    assert seen.states["a"].owner_pods == OwnerPods(1, mask(0))


@pytest.mark.parametrize(("wish", "fits"), [("required", ("b200",)), ("preferred", ("b200", "h100"))])
def test_an_ungated_pod_gets_the_product_of_the_other_pods_of_its_owner(wish: str, fits: tuple[str, ...]) -> None:
    running = owned_by(occupant("w-0", 8))
    records = [
        record("first", MACHINES["hgx_b200"](), held={"w-0": range(8)}, pods=[running]),
        record("b200", MACHINES["hgx_b200"](), held={}),
        record("h100", MACHINES["hgx_h100"](), held={}),
    ]
    table = snapshot_of(records, NOW, Policy())

    asked, seen = with_owner(request(8, same_product=wish), siblings_in(table, OF_JOB), table)

    found = evaluate(asked, seen, ["first", "b200", "h100"], Policy())
    assert tuple(sorted(found.scores)) == fits
    assert found.nodes == ("b200",)
