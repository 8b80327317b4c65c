"""Near misses: exact sentences on small fleets, and the law that every near miss is true."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputopo.crd.nodegpus import DeviceAllocation, KubeletFacts, NicAllocation, NumaResources, PodRef
from gputopo.labels.keys import TOPOLOGY_MANAGER
from gputopo.labels.reasons import Reason
from gputopo.model import Nic, NodeTopology, PcieDistance
from gputopo.quantities import parse_mib
from scheduler_core.cache.node_record import NodeRecord, parse_occupant, with_gpus, without_pod
from scheduler_core.cache.node_state import NodeState, state_of
from scheduler_core.cache.node_table import ClusterSnapshot, with_records
from scheduler_core.evaluation.evaluate import evaluate, evaluate_state
from scheduler_core.evaluation.score import Score
from scheduler_core.explain.evictions import MAX_TRIALS, smallest_eviction
from scheduler_core.explain.model import OBSTACLE, NearMiss
from scheduler_core.explain.near_misses import NearMissSearch
from scheduler_core.explain.requirements import WORDING
from scheduler_core.explain.what_if_changes import after_evictions, with_confirmation
from scheduler_core.request.device_request import ContainerStep
from scheduler_core.request.pod_request import PodRequest, Strength, parse_request
from tests.machines import MACHINES
from tests.scheduler_core.builders import NOW, OBSERVED, occupant, pod, record, request
from tests.scheduler_core.explain.crashing_machine import CRASHING
from tests.scheduler_core.explain.fleets import ACROSS, ALIKE, H100, MIG, MIXED, PAIRS, POLICY, QUADS, explained, fleet


def _busy(name: str, topology: NodeTopology, *, observed: str = OBSERVED, **held: Iterable[int]) -> NodeRecord:
    """A node on which these pods hold these GPUs."""
    mine = {pod.replace("_", "-"): list(gpus) for pod, gpus in held.items()}
    pods = [occupant(pod, len(gpus)) for pod, gpus in mine.items()]
    return record(name, topology, held=mine, pods=pods, observed=observed)


ALONE = {TOPOLOGY_MANAGER.key: "none"}
STRICT = {TOPOLOGY_MANAGER.key: "single-numa-node"}
ISLAND, NUMA = "gputopo.io/island: required", "gputopo.io/numa: required"


@pytest.mark.parametrize(
    ("asked", "records", "sentences"),
    [
        pytest.param(
            request(4, island="required"),
            [_busy("node-7", QUADS, train_3=[2, 3], a=[6], b=[7])],
            [
                "node-7 has 4 free GPUs but in islands 2+2; 4 in one island after pod team/train-3 ends",
                f"fits on node-7 without {ISLAND}",
            ],
            id="enough are free, in two islands",
        ),
        pytest.param(
            request(4),
            [_busy("node-1", PAIRS, a=[0], b=[1]), _busy("node-2", PAIRS, c=[0, 1, 2])],
            ["node-2 has 1 free GPU; 4 free after pod team/c ends"],
            id="one pod before two, though it holds more",
        ),
        pytest.param(
            request(4),
            [_busy("node-1", PAIRS, a=[0], b=[1])],
            ["node-1 has 2 free GPUs; 4 free after pods team/a and team/b end"],
            id="two pods",
        ),
        pytest.param(
            request(4),
            [_busy("node-1", PAIRS, a=[0], b=[1], c=[2])],
            ["node-1 has 1 free GPU; 4 free after pods team/a, team/b and team/c end"],
            id="all pods",
        ),
        pytest.param(
            request(2, numa="required"),
            [_busy("node-1", PAIRS, a=[0], b=[2])],
            [
                "node-1 has 2 free GPUs but on NUMA nodes 1+1; 2 on one NUMA node after pod team/a ends",
                f"fits on node-1 without {NUMA}",
            ],
            id="NUMA",
        ),
        pytest.param(
            request(2, numa="required"),
            [_busy("node-1", ACROSS, a=[2], b=[3], c=[1])],
            ["node-1 has 1 free GPU; 2 on one NUMA node after pod team/c ends"],
            id="a node that would not suit if it were empty",
        ),
        pytest.param(
            request(2, island="required", numa="required"),
            [*(record(name, ACROSS, held={}, labels=ALONE) for name in ("node-1", "node-2"))],
            [f"fits on 2 nodes without {NUMA}"],
            id="an impossible constraint",
        ),
        pytest.param(
            request(2, island="required"),
            [_busy("node-1", ACROSS, c=[3])],
            [
                f"fits on node-1 without {ISLAND}",
                (
                    "node-1 has GPU0,2 free, which satisfy the request, but its device plugin may take GPU0,1 instead, "
                    "and no setting of the pod decides that"
                ),
            ],
            id="an unknown policy of the Topology Manager: a bridge joins two NUMA nodes",
        ),
        pytest.param(
            request(4, island="required", numa="required"),
            [_busy("node-1", PAIRS)],
            [f"fits on node-1 without {ISLAND} and {NUMA}"],
            id="two wishes",
        ),
        pytest.param(
            request(2, interconnect="nvswitch", min_bandwidth="700"),
            [_busy("node-1", PAIRS)],
            ["fits on node-1 without gputopo.io/interconnect: nvswitch and gputopo.io/min-bandwidth: 700"],
            id="interconnect and bandwidth",
        ),
        pytest.param(
            request(1, model="A100-SXM4"),
            [_busy("node-1", PAIRS), _busy("node-2", H100)],
            ["fits on node-1 with accelerator.sched.io/gpu-model: NVIDIA-A100-80GB-PCIe"],
            id="the product most like the one asked for",
        ),
        pytest.param(request(9, model="A10"), [_busy("node-1", H100)], [], id="no node is large enough"),
        pytest.param(
            request(1, model="A10"),
            [_busy("node-1", MIXED)],
            [],
            id="of no product alone, since the kubelet may give another",
        ),
        pytest.param(
            request(1, min_vram="100Gi", vram="10Gi"),
            [_busy("node-1", PAIRS), _busy("node-2", H100)],
            ["fits on node-1 with gputopo.io/min-vram: 80Gi instead of 100Gi"],
            id="the most memory below what is asked for",
        ),
        pytest.param(
            request(1, min_vram="100Gi"),
            [_busy("node-1", MIXED)],
            ["fits on node-1 with gputopo.io/min-vram: 24Gi instead of 100Gi"],
            id="as much as the smallest GPU that may come has",
        ),
        pytest.param(
            request(1, min_vram="1Gi"),
            [record("node-1", allocatable={"nvidia.com/gpu": 8})],
            [],
            id="unknown memory",
        ),
        pytest.param(
            request(1, min_vram="100Gi", vram="90Gi"),
            [_busy("node-1", H100)],
            ["fits on node-1 with gputopo.io/min-vram: 81559Mi and gputopo.io/vram: 81559Mi instead of 100Gi and 90Gi"],
            id="both kinds of memory",
        ),
        pytest.param(
            request(2, island="required"),
            [
                _busy("node-1", PAIRS, observed="2026-11-18T08:00:00Z"),
                _busy("node-2", PAIRS, observed="2026-11-01T08:00:00Z"),
            ],
            [
                (
                    "fits on node-1 (and on 1 more node like it) if its agent still reports what it reported 3h ago: "
                    "start the agent, or check its log"
                ),
                f"fits on 2 nodes without {ISLAND}",
            ],
            id="an agent has fallen silent",
        ),
        pytest.param(
            request(2, island="required"),
            [_busy("node-1", PAIRS, observed="2026-11-18T10:31:00Z")],
            [
                "fits on node-1 if its agent still reports what it reported 35m ago: start the agent, or check its log",
                f"fits on node-1 without {ISLAND}",
            ],
            id="a short while ago",
        ),
        pytest.param(
            request(2, island="required"),
            [_busy("node-1", PAIRS, observed="soon")],
            [
                (
                    "fits on node-1 if its agent still reports what it reported at an invalid time: start the agent, "
                    "or check its log"
                ),
                f"fits on node-1 without {ISLAND}",
            ],
            id="at an unknown time",
        ),
        pytest.param(
            request(2, numa="required"),
            [_busy("node-1", ACROSS)],
            [
                f"fits on node-1 without {NUMA}",
                (
                    "node-1 has GPU0,1 free, which satisfy the request, but its device plugin may take GPU0,2 instead, "
                    "and no setting of the pod decides that"
                ),
            ],
            id="the device plugin takes another set",
        ),
        pytest.param(
            request(2, numa="required"),
            [_busy("node-1", ACROSS, a=[1], b=[2]), _busy("node-2", ACROSS, a=[1], b=[2])],
            [
                f"fits on 2 nodes without {NUMA}",
            ],
            id="no good set is free, on alike nodes",
        ),
        pytest.param(
            request(2, numa="required"),
            [record("node-1", PAIRS, allocatable={"nvidia.com/gpu": 8})],
            [f"fits on node-1 without {NUMA}"],
            id="shares of GPUs, with unknown free GPUs",
        ),
        pytest.param(
            request(3, island="required"),
            [record("node-1", H100, held={"a": [0, 1, 4, 5]}, pods=[occupant("a", 4)], labels=STRICT)],
            ["node-1 has 4 free GPUs but on NUMA nodes 2+2; 3 in one island after pod team/a ends"],
            id="the Topology Manager",
        ),
        pytest.param(
            request(3, island="required"),
            [_busy("node-1", CRASHING)],
            [
                f"fits on node-1 without {ISLAND}",
                (
                    "node-1 has GPU0-2 free, which satisfy the request, but its device plugin may crash on 3 of the "
                    "free GPUs (NVIDIA/go-gpuallocator#80)"
                ),
            ],
            id="the device plugin crashes",
        ),
        pytest.param(
            request(6, numa="required"),
            [_busy("node-1", ALIKE)],
            [
                f"fits on node-1 without {NUMA}",
                (
                    "node-1 has GPU0-5 free, which satisfy the request, but its device plugin may take any 6 of "
                    "GPU0-15 instead, and no setting of the pod decides that"
                ),
            ],
            id="too many sets to list",
        ),
    ],
)
def test_nearest_miss(asked: PodRequest, records: list[NodeRecord], sentences: list[str]) -> None:
    assert [change.text for change in explained(asked, *records).nearest] == sentences


def test_nothing_is_nearest_to_a_pod_that_fits() -> None:
    assert explained(request(1), _busy("node-1", PAIRS), _busy("node-2", PAIRS, a=[0, 1, 2, 3])).nearest == ()


def test_free_gpus_that_are_not_reported_yet() -> None:
    late = record("node-1", PAIRS, held={}, pods=[occupant("late-0", 1), occupant("late-1", 1)])

    (first, *_) = explained(request(2, island="required"), late).nearest

    assert first.text == (
        "node-1 has 2 free GPUs, but which of GPU0-3 is not reported yet; 2 in one island after pod team/late-0 ends"
    )


def test_devices_that_are_not_whole_gpus_are_called_by_their_resource() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    holder = parse_occupant(pod("a", 2, resource=resource))
    asked = parse_request(pod("new", 2, resource=resource))
    assert holder is not None
    assert isinstance(asked, PodRequest)

    (change,) = explained(asked, record("node-1", MIG, allocatable={resource: 3}, pods=[holder])).nearest

    assert change.text == f"node-1 has 1 free {resource}; 2 free after pod team/a ends"


def test_pods_of_one_name_differ_by_uid() -> None:
    """A pod of the same name was there before, and the kubelet still lists it: that one has ended already."""
    old = DeviceAllocation(gpu=PAIRS.gpus[0].uuid or "", pod=PodRef("team", "a", "c", uid="uid-of-the-old-one"))
    new = DeviceAllocation(gpu=PAIRS.gpus[1].uuid or "", pod=PodRef("team", "a", "c", uid="uid-a"))
    before = record("node-1", PAIRS, held={}, pods=[occupant("a", 1)])
    assert before.gpus is not None
    before = with_gpus(before, msgspec.structs.replace(before.gpus, allocations=(old, new)))

    ended = after_evictions(before, before.pods)

    assert (ended.pods, ended.gpus and ended.gpus.allocations) == ((), (old,))


def test_the_end_of_a_pod_frees_its_network_card() -> None:
    near, far = PcieDistance.NODE, PcieDistance.SYS
    topology = msgspec.structs.replace(PAIRS, nics=(Nic(name="mlx5_0", distances=(near, near, far, far)),))
    before = _busy("node-1", topology, a=[0], b=[2, 3])
    assert before.gpus is not None
    nic = NicAllocation("mlx5_0", PodRef("team", "a", "c"))
    before = msgspec.structs.replace(before, gpus=msgspec.structs.replace(before.gpus, nics=(nic,)))

    found = explained(request(1, nic="required"), before).nearest

    assert found[0].text == (
        "node-1 has 1 free GPU; 1 with a free network card on the NUMA node of each after pod team/a ends"
    )


def test_work_is_bounded() -> None:
    """For nodes that can never fit, only a few changes are tried."""
    pods = [occupant(name, 1) for name in "abc"]
    held = {"a": [0], "b": [1], "c": [2]}
    table = fleet(*(record(f"node-{at}", PAIRS, held=held, pods=pods) for at in range(30)))
    tried = []

    def judged(state: NodeState) -> bool:
        tried.append(state)
        return False

    found = smallest_eviction(
        request(2).profile, dict.fromkeys(table.records, Reason.TOO_FEW_GPUS), table, NOW, POLICY, judged
    )

    assert found is None
    # One machine, empty; then three ends and three pairs of ends on each node.
    assert len(tried) == 1 + min(30 * 3, MAX_TRIALS // 10) + min(30 * 3, MAX_TRIALS // 10)


_MACHINES = (
    "hgx_h100",
    "a100_bridged",
    "a100_bridged_across",
    "dgx1",
    "rtx4090",
    "cloud_vm",
    "mixed",
    "nvlink_unknown",
)
_TIMES = ("2026-11-18T11:00:00Z", "2026-11-18T11:00:00Z", "2026-11-17T11:00:00Z")


@st.composite
def tables(draw: st.DrawFn) -> ClusterSnapshot:
    """A few nodes, mostly full: pods with reported GPUs, and some without."""
    records = []
    for at in range(draw(st.integers(1, 4))):
        topology = MACHINES[draw(st.sampled_from(_MACHINES))]()
        left = draw(st.permutations([gpu.index for gpu in topology.usable]))
        held: dict[str, list[int]] = {}
        pods = []
        for number in range(draw(st.integers(0, 4))):
            taken, left = left[: draw(st.integers(1, 4))], left[draw(st.integers(1, 4)) :]
            if taken and not {index for each in held.values() for index in each} & set(taken):
                held[f"p{number}"] = taken
                pods.append(occupant(f"p{number}", len(taken)))
        pods += [occupant(f"late-{each}", 1, island="required") for each in range(draw(st.integers(0, 1)))]
        records.append(record(f"n{at}", topology, held=held, pods=pods, observed=draw(st.sampled_from(_TIMES))))
    return fleet(*records)


_WISHES: tuple[dict[str, str], ...] = (
    {},
    {"island": "required"},
    {"numa": "required"},
    {"island": "required", "numa": "required"},
    {"interconnect": "nvlink"},
    {"min_bandwidth": "300"},
    {"min_vram": "60Gi"},
    {"vram": "200Gi", "min_vram": "60Gi"},
    {"model": "A100"},
    {"model": "B300"},
)
_REQUESTS = st.builds(lambda gpus, wishes: request(gpus, **wishes), st.integers(1, 8), st.sampled_from(_WISHES))


def _as_told(asked: PodRequest, change: NearMiss) -> PodRequest:
    """The pod as it would be after the change."""
    wishes = asked.profile.constraints
    for field, said in WORDING.items():
        now = getattr(wishes, field)
        if said.key.key in change.keys:
            size = parse_mib(change.value or "")
            said_now: Any = Strength.PREFERRED if isinstance(now, Strength) else size or change.value
            wishes = wishes._replace(**{field: said_now})
    return asked._replace(profile=asked.profile._replace(constraints=wishes))


def _after(table: ClusterSnapshot, change: NearMiss) -> ClusterSnapshot:
    """The nodes as they would be after it, by the way that a watch would bring it."""
    changed = []
    for name in change.nodes:
        node = table.records[name]
        assert node.gpus is not None
        word = node.gpus
        if change.kind == "agent":
            word = msgspec.structs.replace(word, observed_at="2026-11-18T11:06:00Z")
        for pod_name in change.pods:
            node = without_pod(node, f"uid-{pod_name.removeprefix('team/')}")
            kept = tuple(each for each in word.allocations or () if f"team/{each.pod.name}" != pod_name)
            word = msgspec.structs.replace(word, allocations=kept)
        changed.append(with_gpus(node, word))
    return with_records(table, changed, NOW, POLICY)


@settings(deadline=None, max_examples=150)
@given(tables(), _REQUESTS)
def test_every_near_miss_is_true(table: ClusterSnapshot, asked: PodRequest) -> None:
    """Apply the change and decide anew: every node that was named suits."""
    refused = evaluate(asked, table, table.states, POLICY)
    changes = (
        () if refused.scores else NearMissSearch(asked.profile, refused.rejected, table, POLICY, NOW).find_near_misses()
    )

    for change in changes:
        if change.kind == OBSTACLE:
            continue
        anew = evaluate(_as_told(asked, change), _after(table, change), table.states, POLICY)
        assert set(change.nodes) <= set(anew.scores), change
        assert change.nodes


@settings(deadline=None, max_examples=100)
@given(tables(), _REQUESTS)
def test_no_smaller_number_of_pods_would_have_been_enough(table: ClusterSnapshot, asked: PodRequest) -> None:
    """On fleets so small that everything is tried."""
    refused = evaluate(asked, table, table.states, POLICY)
    if refused.scores:
        return
    changes = NearMissSearch(asked.profile, refused.rejected, table, POLICY, NOW).find_near_misses()
    told_ = next((len(change.pods) for change in changes if change.kind == "pods-end"), 99)

    for name, each in table.records.items():
        for ended in each.pods:
            fits = isinstance(
                evaluate_state(asked.profile, state_of(after_evictions(each, [ended]), NOW, POLICY), POLICY), Score
            )
            assert told_ == 1 or not fits, (name, ended)


def test_kubelet_stays_as_it_was_reported() -> None:
    """A node that reports again, or loses a pod, still has the policy of its kubelet."""
    facts = KubeletFacts("restricted", "pod", False, True, False, (NumaResources(0, 8, 2), NumaResources(1, 8, 8)))
    pinned = occupant("a", 1)
    request = pinned.profile.device_request._replace(aligned_steps=(ContainerStep(1, cpus=4),))
    pinned = pinned._replace(profile=pinned.profile._replace(device_request=request))
    before = record("n", H100, held={"a": [0], "b": [1]}, pods=[pinned, occupant("b", 1)])
    assert before.gpus is not None
    before = msgspec.structs.replace(before, gpus=msgspec.structs.replace(before.gpus, kubelet=facts))

    for after, known in (
        (with_confirmation(before, NOW), facts),
        (after_evictions(before, [before.pods[1]]), facts),
        (after_evictions(before, [before.pods[0]]), msgspec.structs.replace(facts, numa_nodes=None)),
    ):
        assert after.gpus is not None
        assert after.gpus.kubelet == known
