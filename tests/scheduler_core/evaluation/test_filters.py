"""Why nodes are rejected: one row per rule, checked against the worst possible set."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputopo.crd.nodegpus import KubeletFacts, NicAllocation, PodRef
from gputopo.labels.reasons import Reason
from gputopo.model import Link, Nic, NodeTopology, Nvlink, PcieDistance
from scheduler_core.allocation.device_plugin import preferred_sets
from scheduler_core.allocation.machine_shape import shape_of
from scheduler_core.cache.node_record import parse_occupant
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.evaluation.filters import may_be_degraded, rejection_reason
from scheduler_core.policy.policy import Handling, Policy
from scheduler_core.request.device_request import ContainerStep
from scheduler_core.request.pod_request import Constraints, PodProfile, PodRequest, parse_request
from tests.machines import MACHINES
from tests.scheduler_core.allocation.random_graphs import graphs
from tests.scheduler_core.builders import NOW, mask, occupant, pod, profile, record
from tests.scheduler_core.evaluation.by_definition import holds
from tests.simulated_node.preferred import PluginCrashError, best_effort, pair_scores

DGX1, H100, PAIRS, ACROSS, MESH, PCIE, MIXED, MIG, VM, DGX2, UNKNOWN = (
    MACHINES[name]()
    for name in (
        "dgx1", "hgx_h100", "a100_bridged", "a100_bridged_across", "a100_mesh", "rtx4090", "mixed", "a100_mig",
        "cloud_vm", "dgx2", "nvlink_unknown",
    )
)  # fmt: skip


def _node(topology: NodeTopology | None, *busy: int, labels: dict[str, str] | None = None) -> NodeState:
    """A node on which the kubelet allocated these GPUs to a pod."""
    pods = [occupant("busy", len(busy))] if busy else []
    observed = record(
        topology=topology,
        held={"busy": busy},
        pods=pods,
        labels=labels,
        allocatable=None if topology else {"nvidia.com/gpu": 4},
    )
    return state_of(observed, NOW, Policy())


def _near_one_nic(*busy: int, nic_holder: str | None = None, virtual_function: str | None = None) -> NodeState:
    """Four GPUs, two on each NUMA node, and one NIC on NUMA node 0."""
    near, far = PcieDistance.NODE, PcieDistance.SYS
    topology = msgspec.structs.replace(PAIRS, nics=(Nic(name="mlx5_0", distances=(near, near, far, far)),))
    found = record(topology=topology, held={"busy": busy}, pods=[occupant("busy", len(busy))] if busy else [])
    assert found.gpus is not None
    nics = [NicAllocation("mlx5_0", PodRef("team", nic_holder, "c"), virtual_function)] if nic_holder else []
    gpus = msgspec.structs.replace(found.gpus, nics=tuple(nics))
    return state_of(msgspec.structs.replace(found, gpus=gpus), NOW, Policy())


def _on(state: NodeState, asked: PodProfile, policy: Policy = Policy()) -> Reason | None:  # noqa: B008  frozen
    return rejection_reason(asked, state, policy)


@pytest.mark.parametrize(
    ("state", "asked", "reason"),
    [
        pytest.param(_node(PAIRS), profile(4), None, id="as many as there are"),
        pytest.param(_node(PAIRS), profile(5), Reason.TOO_FEW_GPUS, id="more than there are"),
        pytest.param(_node(PAIRS, 0), profile(4), Reason.TOO_FEW_GPUS, id="more than are free"),
        pytest.param(_node(None), profile(4), None, id="known by number only"),
        pytest.param(_node(None), profile(1, model="A100"), Reason.MODEL, id="product unknown"),
        pytest.param(_node(PAIRS), profile(1, model="A100"), None, id="model"),
        pytest.param(_node(PAIRS), profile(1, model="H100"), Reason.MODEL, id="another model"),
        pytest.param(_node(MIXED), profile(1, model="A6000"), Reason.MODEL, id="mixed: the kubelet may give another"),
        pytest.param(_node(MIXED, 0, 1, 3), profile(1, model="A6000"), None, id="mixed: only that one is free"),
        pytest.param(_node(PAIRS), profile(2, min_vram="80Gi"), None, id="memory: 81920 MiB"),
        pytest.param(_node(PAIRS), profile(2, min_vram="81Gi"), Reason.VRAM, id="less memory"),
        pytest.param(_node(PAIRS), profile(2, vram="81Gi"), Reason.VRAM, id="a share cannot be more than a GPU has"),
        pytest.param(_node(None), profile(1, min_vram="1Gi"), Reason.VRAM, id="memory unknown"),
        pytest.param(_node(MIXED), profile(1, min_vram="40Gi"), Reason.VRAM, id="mixed: a smaller one may come"),
        # Islands.
        pytest.param(_node(PAIRS), profile(2, island="required"), None, id="pair: the plugin takes a bridged one"),
        pytest.param(_node(PAIRS, 0, 2), profile(2, island="required"), Reason.ISLAND, id="one of each pair"),
        pytest.param(_node(PAIRS), profile(3, island="required"), Reason.ISLAND, id="no island of three"),
        pytest.param(_node(PAIRS, 0, 2), profile(1, island="required"), None, id="one GPU is an island"),
        pytest.param(_node(H100, 0, 5), profile(6, island="required"), None, id="NVSwitch: any six"),
        pytest.param(_node(UNKNOWN), profile(2, island="required"), Reason.UNKNOWN_TOPOLOGY, id="graph unknown"),
        pytest.param(_node(None), profile(2, island="required"), Reason.UNKNOWN_TOPOLOGY, id="labels only"),
        pytest.param(_node(UNKNOWN), profile(1, island="required"), None, id="one GPU needs no graph"),
        pytest.param(_node(DGX2), profile(6, island="required"), None, id="too many sets to list, all in one island"),
        # Interconnect: of the weakest hop of the ring.
        pytest.param(_node(H100), profile(4, interconnect="nvswitch"), None, id="NVSwitch"),
        pytest.param(_node(DGX2), profile(6, interconnect="nvswitch"), None, id="NVSwitch, sets not listed"),
        pytest.param(_node(MESH), profile(4, interconnect="nvswitch"), Reason.INTERCONNECT, id="links are no NVSwitch"),
        pytest.param(_node(MESH), profile(4, interconnect="nvlink"), None, id="mesh of NVLinks"),
        pytest.param(_node(PCIE), profile(2, interconnect="nvlink"), Reason.INTERCONNECT, id="PCIe"),
        pytest.param(_node(PAIRS), profile(4, interconnect="nvlink"), Reason.INTERCONNECT, id="between pairs is PCIe"),
        pytest.param(_node(UNKNOWN), profile(2, interconnect="nvlink"), Reason.UNKNOWN_TOPOLOGY, id="link unknown"),
        # Bandwidth: of the ring. A hop of the mesh is 4 x 50 GB/s.
        pytest.param(_node(MESH), profile(4, min_bandwidth="200"), None, id="200 of 200"),
        pytest.param(_node(MESH), profile(4, min_bandwidth="200.5"), Reason.BANDWIDTH, id="200 of 200.5"),
        pytest.param(_node(PCIE), profile(2, min_bandwidth="1"), Reason.BANDWIDTH, id="PCIe is no NVLink"),
        pytest.param(_node(VM), profile(2, min_bandwidth="300"), Reason.UNKNOWN_TOPOLOGY, id="speed unknown"),
        pytest.param(_node(UNKNOWN), profile(2, min_bandwidth="300"), Reason.UNKNOWN_TOPOLOGY, id="links unknown"),
        # NUMA: two GPUs on each node.
        pytest.param(_node(PAIRS), profile(2, numa="required"), None, id="a pair on one node"),
        pytest.param(_node(ACROSS), profile(2, numa="required"), Reason.NUMA, id="bridges across the nodes win"),
        pytest.param(_node(PAIRS), profile(3, numa="required"), Reason.NUMA, id="three of two and two"),
        pytest.param(_node(VM), profile(2, numa="required"), Reason.UNKNOWN_TOPOLOGY, id="the kernel says -1"),
        pytest.param(_node(VM), profile(1, numa="required"), None, id="one GPU is on one node"),
        pytest.param(_node(ACROSS), profile(2, numa="preferred"), None, id="preferred is not required"),
        # PCIe: bridged neighbours are near, the pairs are on different sockets.
        pytest.param(_node(PCIE), profile(2, max_pcie_distance="NODE"), None, id="PCIe: one socket"),
        pytest.param(_node(PCIE), profile(8, max_pcie_distance="NODE"), Reason.PCIE_DISTANCE, id="PCIe: two sockets"),
        pytest.param(_node(VM), profile(1, max_pcie_distance="PIX"), None, id="PCIe: one GPU has no distance"),
        pytest.param(
            _node(None), profile(2, max_pcie_distance="NODE"), Reason.UNKNOWN_TOPOLOGY, id="PCIe: labels only"
        ),
        # NIC: on the NUMA node of each GPU.
        pytest.param(_node(H100), profile(8, nic="required"), None, id="NIC: a card for each GPU"),
        pytest.param(_node(PCIE), profile(1, nic="required"), Reason.NIC, id="NIC: none"),
        pytest.param(_node(PCIE), profile(1, nic="preferred"), None, id="NIC: preferred"),
        pytest.param(_node(None), profile(1, nic="required"), Reason.UNKNOWN_TOPOLOGY, id="NIC: labels only"),
        pytest.param(_near_one_nic(), profile(1, nic="required"), Reason.NIC, id="NIC: the far GPU may come"),
        pytest.param(_near_one_nic(2, 3), profile(2, nic="required"), None, id="NIC: only the near GPUs are free"),
        pytest.param(_near_one_nic(0, 1), profile(1, nic="required"), Reason.NIC, id="NIC: only far GPUs are free"),
        pytest.param(_near_one_nic(2, 3, nic_holder="other"), profile(1, nic="required"), Reason.NIC, id="NIC: held"),
        pytest.param(
            _near_one_nic(2, 3, nic_holder="other", virtual_function="0000:0a:00.3"),
            profile(1, nic="required"),
            None,
            id="NIC: a virtual function does not take the card",
        ),
    ],
)
def test_rejection_reason(state: NodeState, asked: PodProfile, reason: Reason | None) -> None:
    assert _on(state, asked) is reason


def _parallel(gpus: int, degree: int) -> PodProfile:
    return PodProfile(profile(gpus).device_request, Constraints(parallel=degree))


@pytest.mark.parametrize(
    ("state", "asked", "reason"),
    [
        pytest.param(_node(PAIRS), _parallel(4, 2), None, id="two groups, a bridged pair each"),
        pytest.param(_node(ACROSS), _parallel(4, 2), Reason.ISLAND, id="neighbours by index are not the pairs"),
        pytest.param(_node(H100, 0, 1), _parallel(6, 2), None, id="one island has all groups"),
        pytest.param(_node(PCIE), _parallel(4, 2), Reason.ISLAND, id="no NVLink"),
        pytest.param(_node(UNKNOWN), _parallel(4, 2), Reason.UNKNOWN_TOPOLOGY, id="NVLink unknown"),
        pytest.param(_node(DGX2), _parallel(6, 2), None, id="sets too many to list, in one island"),
    ],
)
def test_tensor_parallel_groups(state: NodeState, asked: PodProfile, reason: Reason | None) -> None:
    assert _on(state, asked) is reason


def test_a_known_violation_outweighs_an_unknown_fact() -> None:
    """Of three GPUs two are known to be on different nodes; the node of the third is unknown."""
    gpus = tuple(
        msgspec.structs.replace(gpu, numa_node=node) for gpu, node in zip(H100.gpus, (0, 1, None), strict=False)
    )
    asked = profile(2, numa="required")

    assert _on(_node(NodeTopology(gpus=gpus, nvlink=Nvlink())), asked) is Reason.NUMA
    assert _on(_node(NodeTopology(gpus=gpus[:1] + gpus[2:], nvlink=Nvlink())), asked) is Reason.UNKNOWN_TOPOLOGY


def test_topology_manager_rejects_pods_that_span_numa_nodes() -> None:
    strict = _node(H100, 0, labels={"gputopo.io/topology-manager": "single-numa-node"})

    assert _on(strict, profile(4)) is None
    assert _on(strict, profile(5)) is Reason.NUMA


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"island": "required"}, Reason.ISLAND),
        ({"interconnect": "nvlink"}, Reason.INTERCONNECT),
        ({"min_bandwidth": "1"}, Reason.BANDWIDTH),
        ({"numa": "required"}, Reason.NUMA),
        ({"max_pcie_distance": "NODE"}, Reason.PCIE_DISTANCE),
        ({}, None),
    ],
    ids=["island", "interconnect", "bandwidth", "NUMA", "PCIe", "nothing required"],
)
def test_required_shape_is_not_left_to_a_plugin_that_may_crash(wish: dict[str, str], reason: Reason | None) -> None:
    """Bridge {0, 1} and three more, all in one loose island: three of five may crash it (see ``device_plugin``)."""
    links = [Link(a=0, b=1, lanes=12, gbps=600.0)]
    links += [Link(a=a, b=b, lanes=1, gbps=50.0) for a in range(5) for b in range(a + 1, 5) if (a, b) != (0, 1)]
    near = tuple(tuple(None if a == b else H100.pcie[0][1] for b in range(5)) for a in range(5))
    gpus = tuple(msgspec.structs.replace(gpu, numa_node=0) for gpu in H100.gpus[:5])
    ties = NodeTopology(gpus=gpus, nvlink=Nvlink(links=tuple(links)), pcie=near)

    assert _on(_node(ties), profile(3, **wish)) is reason


@pytest.mark.parametrize(
    ("nics", "pending", "reported", "reason"),
    [
        pytest.param(1, 1, False, Reason.NIC, id="the only card may be taken"),
        pytest.param(1, 1, True, None, id="the report names no card of the pod: it shares them"),
        pytest.param(2, 1, False, None, id="one of two is left"),
        pytest.param(2, 2, False, Reason.NIC, id="both may be taken"),
        pytest.param(1, 0, False, None, id="a pod without devices of other plugins"),
    ],
)
def test_nics_of_unreported_pods_count_as_taken(nics: int, pending: int, reported: bool, reason: Reason | None) -> None:
    near, far = PcieDistance.NODE, PcieDistance.SYS
    cards = tuple(Nic(name=f"mlx5_{at}", distances=(near, near, far, far)) for at in range(nics))
    topology = msgspec.structs.replace(PAIRS, nics=cards)
    far_gpus, new = occupant("far", 2), occupant("new", 1)
    request = new.profile.device_request._replace(other_devices=pending)
    new = new._replace(profile=new.profile._replace(device_request=request))
    held = {"far": (2, 3), "new": (1,)} if reported else {"far": (2, 3)}
    found = record(topology=topology, held=held, pods=[far_gpus, new])
    assert found.gpus is not None
    found = msgspec.structs.replace(found, gpus=msgspec.structs.replace(found.gpus, nics=()))

    assert _on(state_of(found, NOW, Policy()), profile(1, nic="required")) is reason


@pytest.mark.parametrize(
    ("busy", "asked", "reason"),
    [
        pytest.param((), profile(4, island="required"), Reason.ADMISSION, id="both ends are free"),
        pytest.param((), profile(8, numa="preferred", min_bandwidth="50"), Reason.ADMISSION, id="the whole machine"),
        pytest.param((0,), profile(4, island="required"), None, id="one end is in use"),
        pytest.param((), profile(1, island="required"), None, id="the plugin compares nothing for a single GPU"),
        pytest.param((), profile(4), None, id="nothing required"),
    ],
)
def test_a_required_shape_is_not_left_to_a_plugin_that_compares_the_ends_of_a_one_sided_link(
    busy: tuple[int, ...], asked: PodProfile, reason: Reason | None
) -> None:
    """A cube mesh: without the link between GPU 0 and GPU 1 it stays one island."""
    dgx1 = MACHINES["dgx1"]()
    assert dgx1.nvlink is not None
    broken = Link(a=0, b=1, lanes=0, expected_lanes=1, one_sided=True)
    links = tuple(broken if (each.a, each.b) == (0, 1) else each for each in dgx1.nvlink.links)
    node = _node(
        msgspec.structs.replace(dgx1, nvlink=Nvlink(links)), *busy, labels={"gputopo.io/topology-manager": "none"}
    )

    assert _on(node, asked) is reason


@pytest.mark.parametrize(
    ("full_cores", "asked", "reason"),
    [
        pytest.param(True, {}, Reason.ADMISSION, id="rejected in any case"),
        pytest.param(None, {}, None, id="unknown, nothing required"),
        pytest.param(None, {"island": "required"}, Reason.ADMISSION, id="unknown, a required shape"),
        pytest.param(False, {"island": "required"}, None, id="the option is off"),
    ],
)
def test_exclusive_cpus_that_do_not_fill_cores(
    full_cores: bool | None, asked: dict[str, str], reason: Reason | None
) -> None:
    observed = record(topology=PAIRS, held={})
    assert observed.gpus is not None
    facts = KubeletFacts("none", "container", False, True, False, full_physical_cores=full_cores, cpus_per_core=2)
    observed = msgspec.structs.replace(observed, gpus=msgspec.structs.replace(observed.gpus, kubelet=facts))
    wanted = profile(2, **asked)
    request = wanted.device_request._replace(aligned_steps=(ContainerStep(2, cpus=3),))

    assert _on(state_of(observed, NOW, Policy()), wanted._replace(device_request=request)) is reason


@pytest.mark.parametrize(
    ("policy", "asked", "used", "reason"),
    [
        pytest.param("restricted", 4, 0, None, id="one of two nodes has eight"),
        pytest.param("restricted", 4, 5, Reason.NUMA, id="of the eight, five may be in use on each"),
        pytest.param("single-numa-node", 9, 0, Reason.NUMA, id="more than a node has"),
        pytest.param("restricted", 1, 8, None, id="a single share is always aligned"),
        pytest.param("best-effort", 9, 5, None, id="best-effort rejects nothing"),
        pytest.param("none", 9, 5, None, id="no Topology Manager"),
    ],
)
def test_several_shares_must_surely_fit_on_a_numa_node(
    policy: str, asked: int, used: int, reason: Reason | None
) -> None:
    numa = tuple(msgspec.structs.replace(gpu, numa_node=gpu.index // 2) for gpu in PAIRS.gpus)
    labels = {"gputopo.io/topology-manager": policy, "nvidia.com/gpu.replicas": "4"}
    pods = [occupant("used", used)] if used else []
    observed = record(
        topology=msgspec.structs.replace(PAIRS, gpus=numa), pods=pods, labels=labels, allocatable={"nvidia.com/gpu": 16}
    )

    assert _on(state_of(observed, NOW, Policy()), profile(asked)) is reason


class TestMigAndShares:
    """Devices that are parts of GPUs."""

    def _state(self, resource: str) -> NodeState:
        return state_of(record(topology=MIG, allocatable={resource: 8, "nvidia.com/gpu": 5}), NOW, Policy())

    def _asked(self, resource: str, wishes: dict[str, str], count: int = 1) -> PodProfile:
        found = parse_request(pod("p", count, resource=resource, annotations=wishes, labels={"gpu-model": "A100"}))
        assert isinstance(found, PodRequest)
        return found.profile

    @pytest.mark.parametrize(
        ("resource", "wishes", "reason"),
        [
            pytest.param("nvidia.com/mig-1g.5gb", {"min-vram": "4Gi"}, None, id="4864 MiB in every one"),
            pytest.param("nvidia.com/mig-1g.5gb.shared", {"min-vram": "4Gi"}, None, id="shared MIG devices"),
            pytest.param("nvidia.com/mig-1g.5gb", {"min-vram": "5Gi"}, Reason.VRAM, id="less memory than in its name"),
            pytest.param("nvidia.com/mig-7g.40gb", {"min-vram": "4Gi"}, Reason.VRAM, id="unknown MIG profile"),
            pytest.param("nvidia.com/mig-7g.40gb", {}, None, id="unknown MIG profile, no memory required"),
            pytest.param("nvidia.com/gpu.shared", {"vram": "15Gi"}, None, id="a share of a whole GPU"),
            pytest.param("nvidia.com/gpu.a100", {}, None, id="renamed"),
            pytest.param("nvidia.com/gpu.shared", {"vram": "41Gi"}, Reason.VRAM, id="more memory than the GPU has"),
        ],
    )  # fmt: skip
    def test_memory(self, resource: str, wishes: dict[str, str], reason: Reason | None) -> None:
        assert _on(self._state(resource), self._asked(resource, wishes)) is reason

    def test_mig_devices_form_no_island(self) -> None:
        asked = self._asked("nvidia.com/mig-1g.5gb", {"island": "required"}, 2)

        assert _on(self._state("nvidia.com/mig-1g.5gb"), asked) is Reason.UNKNOWN_TOPOLOGY

    def test_shares_may_come_from_any_gpus(self) -> None:
        sliced = state_of(record(topology=PAIRS, allocatable={"nvidia.com/gpu": 16}), NOW, Policy())

        assert _on(sliced, profile(2, island="required")) is Reason.ISLAND
        assert _on(sliced, profile(16)) is None
        assert _on(sliced, profile(17)) is Reason.TOO_FEW_GPUS

    def test_shares_of_the_only_gpu_are_on_one_gpu(self) -> None:
        one = state_of(record(topology=MACHINES["wsl"](), allocatable={"nvidia.com/gpu": 4}), NOW, Policy())

        assert _on(one, profile(2, island="required", numa="required")) is None

    def test_node_labelled_by_hand_with_mig_devices(self) -> None:
        labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.count": "8"}
        state = state_of(record(labels=labels, allocatable={"nvidia.com/mig-1g.5gb": 7}), NOW, Policy())

        assert _on(state, self._asked("nvidia.com/mig-1g.5gb", {})) is None


class TestHealth:
    """The policy for degraded and stale nodes."""

    REFUSE = Policy(degraded=Handling.REFUSE, stale=Handling.REFUSE)

    def test_degraded_gpu_that_may_be_allocated(self) -> None:
        hurt = _node(MACHINES["h100_weak_uplink"]())  # GPU 3

        assert _on(hurt, profile(1), self.REFUSE) is Reason.DEGRADED
        assert _on(hurt, profile(1)) is None

    def test_degraded_gpu_that_is_busy_does_not_matter(self) -> None:
        assert _on(_node(MACHINES["h100_weak_uplink"](), 3), profile(4), self.REFUSE) is None

    def test_degraded_by_its_label_alone(self) -> None:
        labelled = _node(None, labels={"gputopo.io/degraded": "true", "nvidia.com/gpu.count": "4"})

        assert _on(labelled, profile(1), self.REFUSE) is Reason.DEGRADED
        assert may_be_degraded(profile(1), labelled)

    def test_degradation_without_a_gpu_concerns_all_gpus(self) -> None:
        whole = msgspec.structs.replace(H100, degraded=(MACHINES["h100_weak_uplink"]().degraded[0],))
        vague = msgspec.structs.replace(whole.degraded[0], what="fabric")
        unknown = msgspec.structs.replace(whole.degraded[0], what="gpu99")

        for each in (vague, unknown):
            hurt = _node(msgspec.structs.replace(whole, degraded=(each,)), 3)
            assert _on(hurt, profile(1), self.REFUSE) is Reason.DEGRADED

    def test_stale_node(self) -> None:
        old = state_of(record(topology=H100, held={}, observed="2026-11-01T00:00:00Z"), NOW, Policy())

        assert _on(old, profile(1)) is None
        assert _on(old, profile(2, island="required")) is Reason.UNKNOWN_TOPOLOGY
        assert _on(old, profile(1), self.REFUSE) is Reason.UNKNOWN_TOPOLOGY


_WISHES = st.fixed_dictionaries(
    {},
    optional={
        "island": st.just("required"),
        "numa": st.just("required"),
        "max_pcie_distance": st.sampled_from(("PIX", "PHB", "NODE")),
        "interconnect": st.just("nvlink"),
        "min_bandwidth": st.sampled_from(("25", "50", "600")),
    },
)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(most=5), st.data(), _WISHES)
def test_hard_constraints_hold_for_every_order_of_the_offer(
    bare: NodeTopology, data: st.DataObject, wishes: dict[str, str]
) -> None:
    """Passed if and only if every order in which the kubelet may offer the free GPUs satisfies the constraints."""
    assert bare.nvlink is not None
    links = tuple(msgspec.structs.replace(each, gbps=each.lanes * 50.0) for each in bare.nvlink.links)
    topology = msgspec.structs.replace(bare, nvlink=Nvlink(links=links))
    busy = data.draw(st.lists(st.integers(0, len(topology.gpus) - 1), unique=True, max_size=len(topology.gpus) - 1))
    free = [gpu.index for gpu in topology.gpus if gpu.index not in busy]
    size = data.draw(st.integers(1, len(free)))
    asked = profile(size, **wishes)

    found = _on(_node(topology, *busy, labels={"gputopo.io/topology-manager": "none"}), asked)

    scores = pair_scores(topology)
    held = True
    for order in permutations(free):
        try:
            held &= holds(topology, frozenset(best_effort(order, (), size, scores)), wishes)
        except PluginCrashError:
            held &= not asked.requires_shape
    if found is None:
        assert held
    elif held:  # rejected only because the plugin may crash
        assert preferred_sets(shape_of(topology), mask(*free), size).may_crash


def test_occupants_are_parsed_like_requests() -> None:
    assert parse_occupant(pod("a", 2)) == occupant("a", 2)
