"""Damping: worse is published at once, better only after the hold-down, and nothing flaps."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from agent.daemon.damping import DampingHistory, damped_topology, history_from_published, record_observation
from gputopo.labels import EncodedTopology, encode_topology
from gputopo.model import Degradation, Gpu, Health, Link, NodeTopology, Nvlink, Problem, ProblemKind
from tests.machines import a100_mesh, hgx_h100, nvlink_unknown

HOLD_S = 300.0
HEALTHY = hgx_h100()
MESH = a100_mesh()
ALL = frozenset(range(8))


def history_of(
    *observations: tuple[float, NodeTopology], gpus_at_p0: frozenset[int] = ALL, history: DampingHistory | None = None
) -> DampingHistory:
    history = history or DampingHistory()
    for now, topology in observations:
        history = record_observation(history, topology, now, HOLD_S, gpus_at_p0)
    return history


def damped_after(*observations: tuple[float, NodeTopology]) -> NodeTopology:
    """The published topology after these observations."""
    return damped_topology(history_of(*observations))


def uplink_at(lanes: int, *found: Degradation) -> NodeTopology:
    """The H100 with that number of active NVLinks of GPU 3."""
    assert HEALTHY.nvlink is not None
    uplinks = tuple(
        msgspec.structs.replace(up, lanes=lanes, gbps=50.0 * lanes) if up.gpu == 3 else up
        for up in HEALTHY.nvlink.uplinks
    )
    why = [Degradation("gpu3.nvlink", f"{lanes} of 18 NVLinks active")] if lanes < 18 else []
    return msgspec.structs.replace(HEALTHY, nvlink=Nvlink(uplinks=uplinks), degraded=(*why, *found))


def link_at(lanes: int) -> NodeTopology:
    """The mesh with that number of active NVLinks between GPU 1 and GPU 2."""
    assert MESH.nvlink is not None
    links = tuple(
        msgspec.structs.replace(link, lanes=lanes, gbps=50.0 * lanes) if (link.a, link.b) == (1, 2) else link
        for link in MESH.nvlink.links
    )
    why = (Degradation("gpu1-gpu2", f"{lanes} of 4 NVLinks active"),) if lanes < 4 else ()
    return msgspec.structs.replace(MESH, nvlink=Nvlink(links=links), degraded=why)


def without(topology: NodeTopology, index: int) -> NodeTopology:
    """The machine without that GPU: the GPUs after it have lower indices."""
    gpus = tuple(
        msgspec.structs.replace(gpu, index=gpu.index - (gpu.index > index))
        for gpu in topology.gpus
        if gpu.index != index
    )
    assert topology.nvlink is not None
    uplinks = tuple(
        msgspec.structs.replace(up, gpu=up.gpu - (up.gpu > index)) for up in topology.nvlink.uplinks if up.gpu != index
    )
    places = [place for place in range(len(topology.gpus)) if place != index]
    return msgspec.structs.replace(
        topology,
        gpus=gpus,
        nvlink=Nvlink(uplinks=uplinks),
        pcie=tuple(tuple(topology.pcie[a][b] for b in places) for a in places),
        nics=tuple(
            msgspec.structs.replace(nic, distances=tuple(nic.distances[place] for place in places))
            for nic in topology.nics
        ),
    )


def lost(topology: NodeTopology, index: int, bus_id: str | None = None) -> NodeTopology:
    """The machine with a lost GPU whose UUID the driver does not report."""
    gpus = tuple(
        Gpu(index=index, bus_id=bus_id, health=Health.LOST) if gpu.index == index else gpu for gpu in topology.gpus
    )
    nvlink = topology.nvlink or Nvlink()
    uplinks = tuple(up for up in nvlink.uplinks if up.gpu != index)
    links = tuple(link for link in nvlink.links if index not in (link.a, link.b))
    size = range(len(gpus))
    return msgspec.structs.replace(
        topology,
        gpus=gpus,
        nvlink=Nvlink(links, uplinks),
        pcie=tuple(tuple(None if index in (a, b) else topology.pcie[a][b] for b in size) for a in size),
        nics=tuple(
            msgspec.structs.replace(
                nic, distances=tuple(None if place == index else nic.distances[place] for place in size)
            )
            for nic in topology.nics
        ),
        degraded=(Degradation(f"gpu{index}", "lost: the driver lists it and cannot talk to it"),),
    )


def writes(observations: Iterable[tuple[float, NodeTopology]]) -> list[tuple[float, EncodedTopology]]:
    """The times at which the Node would be written, and the published values."""
    history, written = DampingHistory(), list[tuple[float, EncodedTopology]]()
    for now, topology in observations:
        history = record_observation(history, topology, now, HOLD_S, ALL)
        facts = encode_topology(damped_topology(history))
        if not written or facts != written[-1][1]:
            written.append((now, facts))
    return written


def degraded_labels(written: list[tuple[float, EncodedTopology]]) -> list[tuple[float, str]]:
    return [(now, facts.labels["gputopo.io/degraded"]) for now, facts in written]


@pytest.mark.parametrize("machine", [HEALTHY, MESH, nvlink_unknown()], ids=["switched", "linked", "unknown"])
def test_a_healthy_topology_is_published_unchanged(machine: NodeTopology) -> None:
    assert damped_after((0.0, machine), (60.0, machine)) == machine


@pytest.mark.parametrize(
    ("well", "worse"),
    [pytest.param(HEALTHY, uplink_at(17), id="into a switch"), pytest.param(MESH, link_at(3), id="between two GPUs")],
)
def test_a_link_that_gets_worse_is_published_at_once_and_better_after_the_hold(
    well: NodeTopology, worse: NodeTopology
) -> None:
    assert damped_after((0.0, well), (60.0, worse)) == worse
    assert damped_after((0.0, worse), (60.0, well), (299.0, well)) == worse
    assert damped_after((0.0, worse), (60.0, well), (300.0, well)) == well


def test_a_link_that_flaps_for_an_hour_is_written_twice_and_once_more_when_it_stays() -> None:
    flapping = [(60.0 * minute, uplink_at(17 if minute % 2 else 18)) for minute in range(60)]
    staying = [(3600.0 + 60.0 * minute, HEALTHY) for minute in range(60)]

    assert degraded_labels(writes([*flapping, *staying])) == [(0.0, "false"), (60.0, "true"), (3840.0, "false")]


def test_a_link_that_flaps_at_varying_depths_is_published_at_its_worst() -> None:
    depths = [18, 16, 17, 15]
    observations = [(60.0 * minute, uplink_at(depths[minute % 4])) for minute in range(60)]

    assert [now for now, _ in writes(observations)] == [0.0, 60.0, 180.0]
    assert damped_after(*observations) == uplink_at(15)


def test_the_expectation_of_a_link_that_has_none_is_what_it_shows_at_its_best() -> None:
    assert MESH.nvlink is not None

    def bare(lanes: int) -> NodeTopology:
        link = Link(a=0, b=1, lanes=lanes, gbps=50.0 * lanes)
        return msgspec.structs.replace(MESH, nvlink=Nvlink(links=(link,)))

    assert damped_after((0.0, bare(2)), (60.0, bare(4))).nvlink == Nvlink(
        links=(Link(a=0, b=1, lanes=2, expected_lanes=4, gbps=100.0),)
    )


def test_a_lost_gpu_keeps_its_uuid_and_bus_id() -> None:
    damped = damped_after((0.0, HEALTHY), (60.0, lost(HEALTHY, 3)))

    assert damped.gpus[3] == msgspec.structs.replace(HEALTHY.gpus[3], health=Health.LOST)
    assert (damped.pcie, damped.nics) == (HEALTHY.pcie, HEALTHY.nics)
    assert [gpu.index for gpu in damped.usable] == [0, 1, 2, 4, 5, 6, 7]
    assert [each.what for each in damped.degraded] == ["gpu3"]


def test_a_lost_gpu_is_identified_by_its_bus_id() -> None:
    three, five = HEALTHY.gpus[3], HEALTHY.gpus[5]
    order = (*HEALTHY.gpus[:3], five, HEALTHY.gpus[4], three, *HEALTHY.gpus[6:])
    gpus = tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(order))
    moved = lost(msgspec.structs.replace(HEALTHY, gpus=gpus), 3, bus_id=five.bus_id)

    assert damped_after((0.0, HEALTHY), (60.0, moved)).gpus[3] == msgspec.structs.replace(
        five, index=3, health=Health.LOST
    )


def test_a_lost_gpu_that_never_worked_has_no_uuid() -> None:
    assert damped_after((0.0, lost(HEALTHY, 3))).gpus[3] == Gpu(index=3, health=Health.LOST)
    assert damped_after((0.0, lost(HEALTHY, 3)), (300.0, HEALTHY)) == HEALTHY


@pytest.mark.parametrize("machine", [HEALTHY, MESH], ids=["switched", "linked"])
def test_a_flapping_gpu_is_published_as_lost_once(machine: NodeTopology) -> None:
    flapping = [(60.0 * minute, lost(machine, 3) if minute % 2 else machine) for minute in range(60)]
    staying = [(3600.0 + 60.0 * minute, machine) for minute in range(10)]

    written = writes([*flapping, *staying])

    assert [(now, facts.labels["gputopo.io/gpus"]) for now, facts in written] == [
        (0.0, str(len(machine.gpus))),
        (60.0, str(len(machine.gpus) - 1)),
        (3840.0, str(len(machine.gpus))),
    ]


def test_a_gpu_that_is_not_listed_any_more_is_degraded() -> None:
    damped = damped_after((0.0, HEALTHY), (60.0, without(HEALTHY, 3)), (3600.0, without(HEALTHY, 3)))

    assert [gpu.uuid for gpu in damped.gpus] == [gpu.uuid for gpu in HEALTHY.gpus if gpu.index != 3]
    assert damped.degraded == (
        Degradation(
            HEALTHY.gpus[3].uuid or "",
            "missing: it worked earlier in this boot, and the driver does not list it any more",
        ),
    )


def test_a_gpu_that_was_missing_is_healthy_after_the_hold_down() -> None:
    back = damped_after((0.0, HEALTHY), (60.0, without(HEALTHY, 3)), (120.0, HEALTHY))

    assert back.gpus[3].health is Health.LOST
    assert [each.what for each in back.degraded] == ["gpu3"]
    assert damped_after((0.0, HEALTHY), (60.0, without(HEALTHY, 3)), (120.0, HEALTHY), (360.0, HEALTHY)) == HEALTHY


def test_degradations_are_reindexed_when_indices_change() -> None:
    worse = uplink_at(18, Degradation("gpu3.fabric", "route-unhealthy"), Degradation("gpu5.fabric", "route-unhealthy"))

    damped = damped_after((0.0, worse), (60.0, without(HEALTHY, 3)))

    assert damped.degraded[1:] == (Degradation("gpu4.fabric", "route-unhealthy"),)


def test_a_one_sided_link_stays_one_sided_during_the_hold() -> None:
    def bare(link: Link) -> NodeTopology:
        return msgspec.structs.replace(MESH, nvlink=Nvlink(links=(link,)))

    broken = Link(a=0, b=1, lanes=0, expected_lanes=2, one_sided=True)
    down = Link(a=0, b=1, lanes=0, expected_lanes=2)

    assert damped_after((0.0, bare(broken)), (60.0, bare(Link(a=0, b=1, lanes=2)))).nvlink == Nvlink(links=(broken,))
    assert damped_after((0.0, bare(broken)), (60.0, bare(down))).nvlink == Nvlink(links=(broken,))


def test_lanes_are_held_for_the_gpu_and_not_for_the_index() -> None:
    damped = damped_after((0.0, uplink_at(17)), (60.0, without(HEALTHY, 1)))

    assert damped.nvlink is not None
    assert [(up.gpu, up.lanes) for up in damped.nvlink.uplinks if up.lanes < 18] == [(2, 17)]


def test_links_are_held_when_indices_change_places() -> None:
    one, two = MESH.gpus[1], MESH.gpus[2]
    swapped = msgspec.structs.replace(
        MESH,
        gpus=(
            MESH.gpus[0],
            msgspec.structs.replace(two, index=1),
            msgspec.structs.replace(one, index=2),
            MESH.gpus[3],
        ),
    )
    damped = damped_after((0.0, link_at(3)), (60.0, swapped))

    assert damped.nvlink == link_at(3).nvlink


def test_a_slow_pcie_link_stays_degraded_until_it_is_judged_again() -> None:
    slow = uplink_at(18, Degradation("gpu3.pcie", "PCIe x8 of x16 under load"))
    history = history_of((0.0, slow))
    asleep = history_of((60.0, HEALTHY), (3600.0, HEALTHY), gpus_at_p0=ALL - {3}, history=history)
    gpus_at_p0 = history_of((3660.0, HEALTHY), (3899.0, HEALTHY), history=asleep)

    assert damped_topology(asleep) == slow
    assert damped_topology(gpus_at_p0) == slow
    assert damped_topology(history_of((3900.0, HEALTHY), history=gpus_at_p0)) == HEALTHY


def test_a_degradation_with_two_reasons_keeps_both() -> None:
    faults = [Degradation("gpu3.fabric", "route-unhealthy"), Degradation("gpu3.fabric", "degraded-bandwidth")]
    damped = damped_after(*((60.0 * n, uplink_at(18, fault)) for n, fault in enumerate(faults)))

    assert set(damped.degraded) == set(faults)


def test_a_flapping_nic_port_causes_no_write() -> None:
    def with_rate(rate: int | None) -> NodeTopology:
        return msgspec.structs.replace(
            HEALTHY, nics=(msgspec.structs.replace(HEALTHY.nics[0], rate_gbps=rate), *HEALTHY.nics[1:])
        )

    flapping = [(60.0 * n, with_rate((400, None)[n % 2])) for n in range(10)]

    assert [now for now, _ in writes(flapping)] == [0.0]


def test_a_problem_of_the_observation_causes_no_write() -> None:
    problem = Problem("gpus.0.numaNode", ProblemKind.CONFLICT, "sysfs says 0, nvml says 1")
    troubled = msgspec.structs.replace(HEALTHY, problems=(problem,))
    flapping = [(60.0 * n, (HEALTHY, troubled)[n % 2]) for n in range(10)]

    assert [now for now, _ in writes(flapping)] == [0.0]


def test_the_growing_memory_of_a_virtual_machine_causes_no_write() -> None:
    def with_memory(mib: int | None) -> NodeTopology:
        nodes = tuple(msgspec.structs.replace(each, memory_mib=mib) for each in HEALTHY.numa_nodes)
        return msgspec.structs.replace(HEALTHY, numa_nodes=nodes)

    assert HEALTHY.numa_nodes
    observations = [(0.0, None), (60.0, 4_699), (120.0, 6_349), (180.0, None), (500.0, 131_072)]
    written = writes((now, with_memory(mib)) for now, mib in observations)
    assert [now for now, _ in written] == [0.0, 60.0]  # known a minute later


def test_other_facts_are_published_unchanged() -> None:
    upgraded = msgspec.structs.replace(HEALTHY, driver_version="590.10")

    assert damped_after((0.0, HEALTHY), (60.0, upgraded)) == upgraded


def test_a_matrix_that_is_unknown_now_or_was_unknown_before_stays_so() -> None:
    blind = msgspec.structs.replace(HEALTHY, pcie=(), nics=())

    assert damped_after((0.0, HEALTHY), (60.0, blind)) == blind
    assert damped_after((0.0, blind), (60.0, HEALTHY)) == HEALTHY


def test_links_that_are_unknown_now_or_were_unknown_before_hold_nothing() -> None:
    unknown = msgspec.structs.replace(HEALTHY, nvlink=None)

    assert damped_after((0.0, uplink_at(17)), (60.0, unknown)).nvlink is None
    assert damped_after((0.0, unknown), (60.0, HEALTHY)) == HEALTHY


def test_a_link_that_is_new_is_published_at_once() -> None:
    assert MESH.nvlink is not None
    fewer = msgspec.structs.replace(MESH, nvlink=Nvlink(links=MESH.nvlink.links[:-1]))

    assert damped_after((0.0, fewer), (60.0, MESH)) == MESH
    assert damped_after((0.0, MESH), (60.0, fewer)) == fewer


def test_a_restarted_agent_reports_gpus_missing_since_the_previous_agent() -> None:
    history = history_from_published(HEALTHY)

    assert history.newest is None
    assert damped_topology(history_of((0.0, HEALTHY), history=history)) == HEALTHY
    assert damped_topology(history_of((0.0, lost(HEALTHY, 3)), history=history)).gpus[3].uuid == HEALTHY.gpus[3].uuid
    assert [
        each.what for each in damped_topology(history_of((0.0, without(HEALTHY, 3)), history=history)).degraded
    ] == [HEALTHY.gpus[3].uuid]


def test_without_hold_down_every_observation_is_published() -> None:
    history = record_observation(
        record_observation(DampingHistory(), uplink_at(17), 0.0, 0.0, ALL), HEALTHY, 1.0, 0.0, ALL
    )

    assert damped_topology(history) == HEALTHY


def test_the_history_does_not_grow_with_the_number_of_passes() -> None:
    history = history_of(*((float(n), uplink_at(17 + n % 2)) for n in range(299)))

    assert len(history.observations) == 2
    assert history.newest == uplink_at(17)
