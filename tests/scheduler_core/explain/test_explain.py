"""The whole story of a pod: groups, the best nodes, what a bound pod has got."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.nodegpus import DeviceAllocation, PodRef
from gputopo.labels.keys import TOPOLOGY_MANAGER
from gputopo.labels.reasons import Reason
from scheduler_core.cache.node_record import NodeRecord, with_gpus
from scheduler_core.evaluation.evaluate import evaluate
from scheduler_core.explain import Explanation, explain
from scheduler_core.explain.advice import ADVICE
from scheduler_core.explain.model import CurrentPlacement, GpuSet
from scheduler_core.request.pod_request import PodRequest, parse_request
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, occupant, pod, record, request
from tests.scheduler_core.explain.fleets import ACROSS, ALIKE, H100, MIG, PAIRS, POLICY, QUADS, explained, fleet

FREE = record("free", PAIRS, held={})
FULL = record("full", PAIRS, held={"x": [0, 1, 2, 3]}, pods=[occupant("x", 4)])
SPLIT = record("split", PAIRS, held={"y": [0], "z": [2]}, pods=[occupant("y", 1), occupant("z", 1)])


def _of(explanation: Explanation) -> dict[str, tuple[str, ...]]:
    return {each.reason: each.nodes for each in explanation.refused}


def test_every_reason_has_advice() -> None:
    assert set(ADVICE) == set(Reason)


def test_nodes_are_grouped_by_reason_most_nodes_first() -> None:
    full = [msgspec.structs.replace(FULL, name=name) for name in ("full-2", "full-1")]

    found = explained(request(2, island="required"), SPLIT, *full, FREE, record("cpu"))

    assert list(_of(found).items()) == [("TOO_FEW_GPUS", ("full-1", "full-2")), ("ISLAND", ("split",))]
    assert (found.nodes, found.other_nodes, found.suited) == (4, 1, ("free",))


def test_only_the_named_nodes_are_looked_at() -> None:
    found = explain(request(2), fleet(FREE, FULL), ["full", "ghost"], POLICY, NOW)

    assert _of(found) == {"TOO_FEW_GPUS": ("full",), "UNKNOWN_NODE": ("ghost",)}
    assert [change.text for change in found.nearest] == ["full has 0 free GPUs; 2 free after pod team/x ends"]


def test_the_nodes_that_filter_answers_are_the_best_nodes() -> None:
    table = fleet(*(msgspec.structs.replace(FREE, name=f"n{at:02}") for at in range(20)))
    asked = request(2)

    found = explain(asked, table, None, POLICY, NOW)

    assert tuple(each.node for each in found.best) == evaluate(asked, table, table.states, POLICY).nodes[:3]


def test_where_filter_answers_one_node_the_next_best_follow() -> None:
    found = explained(request(2, island="required"), FREE, record("switch", H100, held={}))

    assert [each.node for each in found.best] == ["free", "switch"]
    assert len(found.notes) == 2


def test_factors_of_the_score() -> None:
    (best,) = explained(request(2), FREE).best

    assert [(each.name, each.raw, each.weight, each.share) for each in best.factors] == [
        ("bandwidth", 0.666667, 4.0, 2.666667),
        ("leftover", 0.64, 3.0, 1.92),
        ("numa", 1.0, 1.0, 1.0),
        ("nic", 0.0, 1.0, 0.0),
        ("health", 1.0, 1.0, 1.0),
    ]
    assert best.points == pytest.approx(sum(each.share for each in best.factors), abs=1e-5)


def test_possible_outcomes_best_first_and_the_choice_of_gputopo() -> None:
    (best,) = explained(request(2), record("n", QUADS, held={"x": [0]}, pods=[occupant("x", 1)])).best

    assert best.outcomes is not None
    assert [each.gpus for each in best.outcomes] == [(1, 2), (1, 3), (2, 3), (4, 5)]
    assert best.more_outcomes == 5
    assert best.choice is not None
    assert best.choice.gpus == (1, 2)  # leaves the other island whole


@pytest.mark.parametrize(
    ("node", "resource", "gpus"),
    [
        pytest.param(record("n", allocatable={"nvidia.com/gpu": 2}), "nvidia.com/gpu", 2, id="known by number only"),
        pytest.param(
            record("n", MIG, allocatable={"nvidia.com/mig-1g.10gb": 7}), "nvidia.com/mig-1g.10gb", 1, id="MIG device"
        ),
    ],
)
def test_unknown_outcomes_are_none(node: NodeRecord, resource: str, gpus: int) -> None:
    asked = parse_request(pod("p", gpus, resource=resource))
    assert isinstance(asked, PodRequest)

    (best,) = explained(asked, node).best

    assert (best.outcomes, best.choice) == (None, None)


def test_no_choice_among_gpus_that_may_not_be_free() -> None:
    (best,) = explained(request(2), record("n", PAIRS, pods=[occupant("x", 1)])).best

    assert best.outcomes is not None
    assert (len(best.outcomes), best.more_outcomes, best.choice) == (4, 2, None)


def test_too_many_sets_are_not_listed() -> None:
    (best,) = explained(request(6), record("n", ALIKE, held={})).best

    assert best.outcomes is None
    assert best.choice is not None


class TestBound:
    """A pod that is on a node already."""

    def test_the_held_gpus_and_the_best_available_gpus(self) -> None:
        mine = record("n", PAIRS, held={"new": [1, 2]}, pods=[occupant("new", 2, numa="required")])

        found = explained(request(2, numa="required"), mine, bound="n")

        assert found.held == CurrentPlacement(
            node="n",
            spot=GpuSet((1, 2), (1, 1), (0, 1), "pcie", 63.0, "SYS"),
            broken=("gputopo.io/numa: required",),
            best=GpuSet((0, 1), (2,), (0,), "nvlink", 600.0),
        )
        assert found.suited == ("n",)

    def test_an_unknown_requirement_does_not_count_as_violated(self) -> None:
        mine = record("n", PAIRS, held={"new": [0, 1]}, pods=[occupant("new", 2)])

        held = explained(request(2, island="required", numa="required"), mine, bound="n").held

        assert held is not None
        assert (held.broken, held.spot) == ((), held.best)

    @pytest.mark.parametrize(
        ("node", "bound"),
        [
            pytest.param(record("n", PAIRS, held={}, pods=[occupant("new", 2)]), "n", id="nobody has said"),
            pytest.param(record("n", PAIRS, pods=[occupant("new", 2)]), "n", id="no agent"),
            pytest.param(
                record("n", allocatable={"nvidia.com/gpu": 4}, pods=[occupant("new", 2)]), "n", id="labels only"
            ),
            pytest.param(record("n", PAIRS, held={}), "gone", id="the node is gone"),
        ],
    )
    def test_gpus_that_are_not_reported(self, node: NodeRecord, bound: str) -> None:
        assert explained(request(2), node, bound=bound).held == CurrentPlacement(node=bound, spot=None)

    def test_a_pod_is_not_blocked_by_its_own_gpus(self) -> None:
        mine = record("n", PAIRS, held={"new": [0, 1, 2, 3]}, pods=[occupant("new", 4)])

        assert explained(request(4), mine, bound="n").suited == ("n",)
        assert explained(request(4), mine).suited == ()

    def test_shares_and_unknown_devices_do_not_count_as_its_gpus(self) -> None:
        mine = record("n", PAIRS, held={}, pods=[occupant("new", 1)])
        assert mine.gpus is not None
        uuid = PAIRS.gpus[0].uuid or ""
        holder = PodRef("team", "new", "c")
        allocations = (
            DeviceAllocation(gpu=uuid, pod=holder, replica=1),
            DeviceAllocation(gpu=uuid, pod=holder, mig_device="MIG-1"),
            DeviceAllocation(gpu="GPU-strange", pod=holder),
            DeviceAllocation(gpu=uuid, pod=PodRef("team", "other", "c")),
        )
        mine = with_gpus(mine, msgspec.structs.replace(mine.gpus, allocations=allocations))

        assert explained(request(1), mine, bound="n").held == CurrentPlacement(node="n", spot=None)


def test_products_of_the_cluster_are_a_note_if_the_model_is_missing() -> None:
    labelled = record("n3", allocatable={"nvidia.com/gpu": 8})
    partial = record("n4", MACHINES["h100_partial"](), allocatable={"nvidia.com/gpu": 8})
    records = [FREE, msgspec.structs.replace(FREE, name="f2"), record("n", H100, held={}), labelled]

    some, none = explained(request(1, model="B300"), *records), explained(request(1, model="B300"), partial)

    assert some.notes == (
        "products in the cluster: NVIDIA-A100-80GB-PCIe on 2, NVIDIA-H100-80GB-HBM3 on 1, unknown on 1",
    )
    assert none.notes == ("products in the cluster: none with a known topology",)


def test_topology_manager_is_heeded() -> None:
    strict = record("n", ACROSS, held={}, labels={TOPOLOGY_MANAGER.key: "single-numa-node"})

    found = explained(request(3), strict)

    assert _of(found) == {"NUMA": ("n",)}
    assert found.nearest == ()


def test_without_a_report_only_the_number_of_free_gpus_is_known() -> None:
    """Without a PodResources report only the number of free GPUs is known."""
    silent = record("n", PAIRS, pods=[occupant("x", 3)])

    assert [change.text for change in explained(request(2), silent).nearest] == [
        "n has 1 free GPU; 2 free after pod team/x ends"
    ]
