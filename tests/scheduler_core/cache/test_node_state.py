"""From objects about a node to its record, state and snapshot."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.nodegpus import NodeGpus
from gputopo.labels import keys
from gputopo.model import Interconnect
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet
from scheduler_core.allocation.numa_alignment import NumaPolicy
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.node import Node, NodeFacts, parse_node
from scheduler_core.cache.node_cost import NodeCost
from scheduler_core.cache.node_record import NodeRecord, parse_occupant, with_gpus, with_pod, without_pod
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import (
    ClusterSnapshot,
    snapshot_of,
    with_records,
    without_nodes,
)
from scheduler_core.cache.staleness import Staleness, is_stale, staleness
from scheduler_core.policy.gpu_families import GPU_FAMILIES
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod import Pod
from scheduler_core.request.pod_request import PodProfile
from tests.machines import MACHINES
from tests.scheduler_core.builders import (
    NOW,
    OBSERVED,
    hash_of,
    kubelet_report,
    node,
    occupant,
    pod,
    profile,
    record,
    with_pods,
)

PAIRS = MACHINES["a100_bridged"]()
POLICY = Policy()
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


class TestParseNode:
    """Facts of a Node object."""

    def test_annotation_describes_the_topology(self) -> None:
        assert parse_node(node(PAIRS)) == NodeFacts(
            topology=PAIRS.stable_facts(),
            described=True,
            allocatable=(("nvidia.com/gpu", 4),),
            interconnect=Interconnect.NVLINK,
            cost=NodeCost(generation=GPU_FAMILIES.index("ampere")),
            topology_hash=hash_of(PAIRS),
        )

    def test_labels_set_by_hand_with_the_count_of_the_device_plugin(self) -> None:
        """Product and NUMA node by hand, nothing else."""
        machine = parse_node(node(labels={**A100, "nvidia.com/gpu.numa": "1"}, allocatable={"nvidia.com/gpu": 2}))

        assert machine.topology is not None
        assert [(gpu.product, gpu.numa_node) for gpu in machine.topology.gpus] == [("NVIDIA-A100-SXM4-80GB", 1)] * 2
        assert machine.topology.nvlink is None
        assert not machine.described

    def test_damaged_annotation_leaves_the_labels(self) -> None:
        whole = node(PAIRS)
        metadata = msgspec.structs.replace(whole.metadata, annotations={keys.TOPOLOGY.key: "{"})
        machine = parse_node(msgspec.structs.replace(whole, metadata=metadata))

        assert machine.topology is not None
        assert machine.topology.nvlink is None
        assert len(machine.topology.gpus) == 4
        assert not machine.described

    def test_only_gpu_resources_count_and_only_whole_numbers(self) -> None:
        allocatable = {"nvidia.com/gpu": "8", "cpu": "64", "nvidia.com/mig-1g.5gb": 7, "nvidia.com/gpu.shared": "x"}
        found = parse_node(msgspec.convert({"status": {"allocatable": allocatable}}, Node))

        assert found.allocatable == (("nvidia.com/gpu", 8), ("nvidia.com/mig-1g.5gb", 7))

    def test_too_many_gpus_count_as_unknown(self) -> None:
        assert parse_node(node(allocatable={"nvidia.com/gpu": 80})).topology is None

    def test_node_without_gpu_facts(self) -> None:
        found = parse_node(Node())

        assert found.topology is not None
        assert found.topology.gpus == ()

    def test_labels_of_health_and_kubelet(self) -> None:
        labels = {
            keys.DEGRADED.key: "true",
            keys.TOPOLOGY_MANAGER.key: "single-numa-node",
            "nvidia.com/gpu-topology": "nvswitch",
        }
        found = parse_node(node(labels=labels, allocatable={"nvidia.com/gpu": 8}))

        assert (found.degraded, found.interconnect) == (True, Interconnect.NVSWITCH)
        assert found.numa_policy is NumaPolicy.SINGLE_NUMA_NODE


class TestParseOccupant:
    """Pods as the kubelet counts them."""

    def test_running_pod(self) -> None:
        found = parse_occupant(pod("a", 2, annotations={"island": "required"}, status={"startTime": OBSERVED}))

        assert found == Occupant("uid-a", "team", "a", profile(2, island="required"), admitted=True)

    def test_bound_pod_that_is_not_admitted(self) -> None:
        assert parse_occupant(pod("a", 2, status={"phase": "Pending"})) == Occupant("uid-a", "team", "a", profile(2))

    @pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
    def test_finished_pod_holds_nothing(self, phase: str) -> None:
        assert parse_occupant(pod("a", 2, status={"phase": phase})) is None

    def test_pod_without_gpus_is_no_occupant(self) -> None:
        assert parse_occupant(pod("a")) is None
        assert parse_occupant(pod("a", 4, resource="cpu")) is None

    @pytest.mark.parametrize("text", ["0", "many"])
    def test_pod_that_requests_zero_gpus(self, text: str) -> None:
        asking = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": text}}}

        assert parse_occupant(msgspec.convert({"spec": {"containers": [asking]}}, Pod)) is None

    def test_pod_with_malformed_annotations_still_holds_its_gpus(self) -> None:
        found = parse_occupant(pod("a", 2, annotations={"island": "maybe"}))

        assert found == Occupant("uid-a", "team", "a", PodProfile(profile(2).device_request))

    def test_pod_that_no_api_server_accepts(self) -> None:
        spec = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "half"}}}]}

        assert parse_occupant(msgspec.convert({"spec": spec}, Pod)) is None


class TestRecords:
    """Events that change the record of a node."""

    def test_pod_is_added_and_replaced(self) -> None:
        bound, running = occupant("a", 1), occupant("a", 1, admitted=True)
        other = occupant("b", 1)

        changed = with_pod(with_pod(with_pod(record(topology=PAIRS), other), bound), running)

        assert changed.pods == (running, other)

    def test_ended_pod_is_departed_until_the_next_report(self) -> None:
        before = record(topology=PAIRS, held={"a": [0]}, pods=[occupant("a", 1), occupant("b", 1)])

        ended = without_pod(before, "uid-a")

        assert (ended.pods, ended.departed) == ((occupant("b", 1),), (occupant("a", 1),))
        assert with_gpus(ended, kubelet_report(PAIRS, {"a": [0]})).departed == (occupant("a", 1),)
        assert with_gpus(ended, kubelet_report(PAIRS, {"b": [1]})).departed == ()
        assert with_gpus(ended, None).departed == ()

    def test_no_pod_is_departed_on_a_node_without_reports(self) -> None:
        before = with_gpus(record(topology=PAIRS, pods=[occupant("a", 1)]), None)

        assert without_pod(before, "uid-a") == with_gpus(record(topology=PAIRS), None)


class TestState:
    """The state derived from a record."""

    def test_equal_states_are_one_object(self) -> None:
        one = record("one", PAIRS, held={"a": [0]}, pods=[occupant("a", 1)])
        other = record("other", MACHINES["a100_bridged"](), held={"b": [0]}, pods=[occupant("b", 1)])

        assert state_of(one, NOW, POLICY) is state_of(other, NOW, POLICY)

    def test_free_counts_are_healthy_devices_minus_those_of_pods(self) -> None:
        allocatable = {"nvidia.com/gpu": 4, "nvidia.com/mig-1g.5gb": 7}
        pods = [occupant("a", 3), occupant("b", 2)]
        state = state_of(record(topology=PAIRS, pods=pods, allocatable=allocatable), NOW, POLICY)

        assert state.free_counts == (("nvidia.com/gpu", 0), ("nvidia.com/mig-1g.5gb", 7))
        assert [state.free_devices(name) for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "x")] == [0, 7, 0]

    def test_sliced_gpus_have_no_free_sets(self) -> None:
        state = state_of(record(topology=PAIRS, allocatable={"nvidia.com/gpu": 16}), NOW, POLICY)

        assert (state.sliced, state.free, state.free_devices("nvidia.com/gpu")) == (True, None, 16)

    def test_partial_topology_gives_no_shape(self) -> None:
        partial = MACHINES["h100_partial"]()

        assert state_of(record(topology=partial, allocatable={"nvidia.com/gpu": 8}), NOW, POLICY).shape is None
        assert state_of(record(topology=partial, allocatable={"nvidia.com/gpu": 4}), NOW, POLICY).shape is not None

    def test_machine_without_usable_gpus_has_no_shape(self) -> None:
        state = state_of(record(topology=MACHINES["no_gpu"]()), NOW, POLICY)

        assert (state.shape, state.free) == (None, None)

    def test_state_of_an_unknown_node(self) -> None:
        state = state_of(record(allocatable={"nvidia.com/gpu": 80}), NOW, POLICY)

        assert (state.shape, state.free_devices("nvidia.com/gpu")) == (None, 80)

    def test_report_without_a_topology_is_ignored(self) -> None:
        labelled = record(labels=A100, allocatable={"nvidia.com/gpu": 4}, pods=[occupant("a", 1)])
        observed = msgspec.structs.replace(labelled, gpus=kubelet_report(PAIRS, {"a": [0]}))

        assert state_of(observed, NOW, POLICY).free == SomeSet(0b1111, 3)

    def test_report_without_allocations(self) -> None:
        observed = record(topology=PAIRS, pods=[occupant("a", 1)])
        gpus = NodeGpus(OBSERVED, hash_of(PAIRS), "1", None)

        assert state_of(msgspec.structs.replace(observed, gpus=gpus), NOW, POLICY).free == SomeSet(0b1111, 3)

    def test_stale_graph_is_unknown_but_products_stay(self) -> None:
        old = record(topology=PAIRS, held={"a": [0]}, observed="2026-11-18T10:00:00Z", pods=[occupant("a", 1)])
        state = state_of(old, NOW, POLICY)

        assert state.stale
        assert state.shape is not None
        assert (state.shape.islands, state.shape.points, state.shape.numa) == (None, None, (None,) * 4)
        assert state.shape.gpus[0].product == "NVIDIA-A100-80GB-PCIe"
        assert state.interconnect is None
        assert state.free == ExactSets((0b1110,))  # a pod holds its GPUs until it ends


@pytest.mark.parametrize(
    ("observed", "stale"),
    [
        pytest.param("2026-11-18T11:00:00Z", None, id="400 seconds"),
        pytest.param("2026-11-18T10:51:40Z", None, id="900 seconds: just fresh"),
        pytest.param("2026-11-18T10:51:39Z", Staleness.SILENT, id="901 seconds"),
        pytest.param("2026-11-18T11:16:40Z", None, id="its clock is 600 seconds ahead"),
        pytest.param("2026-11-18T11:16:41Z", Staleness.CLOCK_AHEAD, id="its clock is 601 seconds ahead"),
        pytest.param("yesterday", Staleness.SILENT, id="no time"),
        pytest.param("2026-11-18T11:00:00", Staleness.SILENT, id="a time without a zone"),
    ],
)
def test_stale(observed: str, stale: Staleness | None) -> None:
    found = record(topology=PAIRS, held={}, observed=observed)

    assert staleness(found, NOW, POLICY) is stale
    assert is_stale(found, NOW, POLICY) is (stale is not None)


def test_unconfirmed_graph_is_stale() -> None:
    known = record(topology=PAIRS, held={})
    other = with_gpus(known, kubelet_report(MACHINES["a100_mesh"](), {}))

    assert staleness(with_gpus(known, None), NOW, POLICY) is Staleness.UNCONFIRMED
    assert staleness(other, NOW, POLICY) is Staleness.HASH_MISMATCH
    assert staleness(with_gpus(record(labels=A100), None), NOW, POLICY) is None


def test_labels_set_by_hand_do_not_become_stale() -> None:
    labelled = record(labels=A100, allocatable={"nvidia.com/gpu": 4})
    old = msgspec.structs.replace(labelled, gpus=kubelet_report(PAIRS, {}, "2020-01-01T00:00:00Z"))

    assert not is_stale(old, NOW, POLICY)


class TestSnapshot:
    """Each change makes a new snapshot."""

    def _table(self) -> ClusterSnapshot:
        records = [record(name, PAIRS, held={}) for name in ("a", "b", "c")]
        return snapshot_of(records, NOW, POLICY, generation=7)

    def test_new_generation_does_not_change_the_old_snapshot(self) -> None:
        before = self._table()
        changed = record("b", PAIRS, held={"x": [0]}, pods=[occupant("x", 1)])

        after = with_records(before, [changed], NOW, POLICY)

        assert (before.generation, after.generation) == (7, 8)
        assert before.states["b"] is before.states["a"]
        assert after.states["b"].free == ExactSets((0b1110,))
        assert after.states["a"] is before.states["a"]
        assert after.records["b"] == changed

    def test_nodes_are_added(self) -> None:
        after = with_records(self._table(), [record("aa", PAIRS, held={})], NOW, POLICY)

        assert [set(part) for part in (after.records, after.states)] == [{"a", "aa", "b", "c"}] * 2

    def test_nodes_are_removed(self) -> None:
        after = without_nodes(self._table(), ["a", "c", "never there"])

        assert after.generation == 8
        assert [set(part) for part in (after.records, after.states)] == [{"b"}] * 2

    def test_added_pods_count_until_the_watch_shows_them(self) -> None:
        known = occupant("known", 1)
        before = with_records(self._table(), [record("b", PAIRS, held={}, pods=[known])], NOW, POLICY)
        pods = [("a", occupant("x", 2)), ("a", occupant("y", 2)), ("b", known), ("no such node", occupant("z", 1))]

        after = with_pods(before, pods, NOW, POLICY)

        assert after.generation == before.generation
        assert after.states["a"].free_devices("nvidia.com/gpu") == 0
        assert after.states["b"] is before.states["b"]
        assert set(after.records) == set(before.records)


def test_records_survive_json_so_that_decisions_can_be_recomputed() -> None:
    observed = record(
        "n", PAIRS, held={"a": [0]}, pods=[occupant("a", 1), occupant("b", 1, island="required", min_bandwidth="3")]
    )

    text = msgspec.json.encode(observed)

    assert msgspec.json.decode(text, type=NodeRecord) == observed


def test_keys_of_decision_logs_do_not_change() -> None:
    """Decision logs of format 1 are read by later versions."""
    state = (
        "shape free counts sliced unsettled described stale degraded interconnect kubelet offered driver company "
        "economy ledger awaited kin cpu obeys promised waiting open extras busy_nics pending_nics proximity "
        "network_gbps"
    )
    facts = (
        "topology described allocatable degraded interconnect numa_policy economy replicas choice topology_hash "
        "cpu_milli obeys annotation_error label_faults extension_labels clique rack storage_nics "
        "memory storage max_pods"
    )
    assert " ".join(NodeState.__struct_encode_fields__) == state
    assert " ".join(NodeFacts.__struct_encode_fields__) == facts
    assert " ".join(NodeRecord.__struct_encode_fields__) == (
        "name machine gpus pods departed reserved parted observed_policy"
    )
