"""Labels without the annotation: what they decide holds for every machine that has these labels."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from gputopo.labels import encode_topology
from gputopo.labels.reasons import Reason
from gputopo.model import Gpu, Health, Interconnect, Link, NodeTopology, Nvlink, PcieDistance, Uplink
from scheduler_core.allocation.gpu_sets import ExactSets, SomeSet, some_set, subsets
from scheduler_core.allocation.machine_shape import MachineShape, shape_of
from scheduler_core.cache.node import Node, parse_node
from scheduler_core.cache.node_record import NodeRecord
from scheduler_core.cache.node_state import state_of
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.evaluation.shape_rules import first_violation
from scheduler_core.policy.policy import Policy
from scheduler_core.request.device_request import WHOLE
from scheduler_core.request.pod_request import Constraints, Strength
from tests.machines import MACHINES
from tests.property.strategies import topologies
from tests.scheduler_core.builders import NOW, profile

REQUIRED: tuple[dict[str, Any], ...] = (
    {"island": Strength.REQUIRED},
    {"numa": Strength.REQUIRED},
    {"interconnect": Interconnect.NVLINK},
    {"interconnect": Interconnect.NVSWITCH},
    {"min_gbps": 50.0},
    {"min_gbps": 600.0},
    {"max_pcie_distance": PcieDistance.NODE},
    {"nic": Strength.REQUIRED},
    {"parallel": 2},
)
DEFINITE = {Reason.ISLAND, Reason.INTERCONNECT, Reason.NUMA}


def _labelled(topology: NodeTopology, *, mirrors_only: bool = False) -> MachineShape | None:
    """The machine as its labels describe it."""
    state = state_of(_record(topology, mirrors_only=mirrors_only, annotated=False), NOW, Policy())
    return state.shape


def _record(topology: NodeTopology, *, mirrors_only: bool, annotated: bool) -> NodeRecord:
    facts = encode_topology(topology)
    labels = facts.mirrors if mirrors_only else {**facts.labels, **facts.mirrors}
    whole = sum(gpu.mig_enabled is not True for gpu in topology.usable)
    node = {
        "metadata": {"name": "n", "labels": labels, "annotations": facts.annotations if annotated else {}},
        "status": {"allocatable": {WHOLE: str(whole)}},
    }
    machine = parse_node(msgspec.convert(node, Node))
    # An agent confirms the annotation; that is not what these tests are about.
    return NodeRecord("n", msgspec.structs.replace(machine, described=False) if annotated else machine)


@st.composite
def real_machines(draw: st.DrawFn) -> NodeTopology:
    """Machines whose labels say much: few products, memory sizes and NUMA nodes, complete islands."""
    size = draw(st.integers(1, 8))
    layout = draw(st.sampled_from(("switch", "two switches", "pair", "mesh", "none", "unknown")))
    numa = draw(st.sampled_from((1, 2, 3)))
    gpus = tuple(
        Gpu(
            index=index,
            product=draw(st.sampled_from(("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla V100"))),
            memory_mib=draw(st.sampled_from((40960, 81920))),
            numa_node=index * numa // size,
            mig_enabled=draw(st.sampled_from((False, False, False, False, True))),
            health=draw(st.sampled_from((Health.OK,) * 6 + (Health.LOST,))),
        )
        for index in range(size)
    )
    lanes = draw(st.sampled_from((4, 12)))
    bonds: dict[str, Any] = {"lanes": lanes, "gbps": draw(st.sampled_from((299.7, 600.0)))}
    links = {
        "pair": [(one, one + 1) for one in range(0, size - 1, 2)],
        "mesh": [(one, one + 1) for one in range(size - 1)],
    }.get(layout, [])
    fabrics = {"switch": 1, "two switches": 2}.get(layout, 0)
    nvlink = Nvlink(
        links=tuple(Link(a=a, b=b, **bonds) for a, b in links),
        uplinks=tuple(Uplink(gpu=g, fabric=g % fabrics, **bonds) for g in range(size) if fabrics),
    )
    return NodeTopology(gpus=gpus, nvlink=None if layout == "unknown" else nvlink)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    topology=real_machines() | topologies(),
    size=st.integers(1, 8),
    required=st.sampled_from(REQUIRED),
    mirrors_only=st.booleans(),
)
@example(topology=MACHINES["hgx_h100"](), size=8, required=REQUIRED[0], mirrors_only=False)
@example(topology=MACHINES["hgx_h100"](), size=4, required=REQUIRED[3], mirrors_only=False)
@example(topology=MACHINES["dgx1"](), size=2, required=REQUIRED[2], mirrors_only=False)
@example(topology=MACHINES["a100_bridged"](), size=2, required=REQUIRED[0], mirrors_only=False)
def test_decisions_by_labels_hold_for_every_set_of_the_machine(
    topology: NodeTopology, size: int, required: dict[str, Any], mirrors_only: bool
) -> None:
    labelled, full = _labelled(topology, mirrors_only=mirrors_only), shape_of(topology)
    assume(labelled is not None and size <= min(labelled.whole.bit_count(), full.whole.bit_count()))
    assume(full.whole.bit_count() <= 16)
    assert labelled is not None
    constraints = Constraints(**required)
    sets = [ExactSets((mask,)) for mask in subsets(full.whole, size)]

    for known in (some_set(labelled.whole, size), SomeSet(labelled.whole, size)):
        verdict = first_violation(constraints, labelled, known)
        real = {first_violation(constraints, full, each) for each in sets}

        assert verdict is not None or real == {None}
        # Where the sets are too many to list, every pair counts, also of full topologies: stricter than needed.
        assert verdict not in DEFINITE or None not in real or isinstance(known, SomeSet)


ASKED = (
    {"island": "required"}, {"numa": "required"}, {"interconnect": "nvswitch"}, {"interconnect": "nvlink"},
    {"min_bandwidth": "299.8"}, {"min_vram": "40Gi"}, {"min_vram": "80Gi"}, {"model": "A100"}, {"model": "V100"},
)  # fmt: skip


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(topology=real_machines() | topologies(), size=st.integers(1, 8), asked=st.sampled_from(ASKED))
def test_a_pod_that_fits_by_labels_fits_on_the_annotated_node(
    topology: NodeTopology, size: int, asked: dict[str, str]
) -> None:
    assume(sum(gpu.mig_enabled is not True for gpu in topology.usable) <= 16)
    pod, policy = profile(size, **asked), Policy()
    by_labels = state_of(_record(topology, mirrors_only=False, annotated=False), NOW, policy)
    annotated = state_of(_record(topology, mirrors_only=False, annotated=True), NOW, policy)
    if rejection_reason(pod, by_labels, policy) is not None:
        return
    shape = annotated.shape

    # Labels do not contain the PCIe distances, which decide whether the device plugin crashes on a size.
    assert rejection_reason(pod, annotated, policy) is None or (
        shape is not None
        and shape.whole.bit_count() % size
        and asked.keys() & {"island", "numa", "interconnect", "min_bandwidth"}
    )
