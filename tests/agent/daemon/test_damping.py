"""What is published while things come and go: worse at once, better only after a while, and never to and fro."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from agent.daemon.damping import Held, published, recalled, update
from gputopo.labels import NodeFacts, encode
from gputopo.model import Degradation, Gpu, Health, Link, NodeTopology, Nvlink, Problem, ProblemKind
from tests.machines import a100_mesh, hgx_h100, nvlink_unknown

HOLD_S = 300.0
WELL = hgx_h100()
MESH = a100_mesh()
ALL = frozenset(range(8))


def watched(*seen: tuple[float, NodeTopology], awake: frozenset[int] = ALL, held: Held | None = None) -> Held:
    held = held or Held()
    for now, topology in seen:
        held = update(held, topology, now, HOLD_S, awake)
    return held


def after(*seen: tuple[float, NodeTopology]) -> NodeTopology:
    """What is published after these observations."""
    return published(watched(*seen))


def uplink_at(lanes: int, *found: Degradation) -> NodeTopology:
    """The H100 with so many NVLinks of GPU 3 active."""
    assert WELL.nvlink is not None
    uplinks = tuple(
        msgspec.structs.replace(up, lanes=lanes, gbps=50.0 * lanes) if up.gpu == 3 else up for up in WELL.nvlink.uplinks
    )
    why = [Degradation("gpu3.nvlink", f"{lanes} of 18 NVLinks active")] if lanes < 18 else []
    return msgspec.structs.replace(WELL, nvlink=Nvlink(uplinks=uplinks), degraded=(*why, *found))


def link_at(lanes: int) -> NodeTopology:
    """The mesh with so many NVLinks between GPU 1 and GPU 2 active."""
    assert MESH.nvlink is not None
    links = tuple(
        msgspec.structs.replace(link, lanes=lanes, gbps=50.0 * lanes) if (link.a, link.b) == (1, 2) else link
        for link in MESH.nvlink.links
    )
    why = (Degradation("gpu1-gpu2", f"{lanes} of 4 NVLinks active"),) if lanes < 4 else ()
    return msgspec.structs.replace(MESH, nvlink=Nvlink(links=links), degraded=why)


def without(topology: NodeTopology, index: int) -> NodeTopology:
    """The machine after that GPU left every list: those after it move up."""
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
    """The machine whose driver does not even tell which GPU it is that it cannot talk to."""
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


def writes(seen: Iterable[tuple[float, NodeTopology]]) -> list[tuple[float, NodeFacts]]:
    """When a Node would be written, and with what."""
    held, written = Held(), list[tuple[float, NodeFacts]]()
    for now, topology in seen:
        held = update(held, topology, now, HOLD_S, ALL)
        facts = encode(published(held))
        if not written or facts != written[-1][1]:
            written.append((now, facts))
    return written


def degraded_labels(written: list[tuple[float, NodeFacts]]) -> list[tuple[float, str]]:
    return [(now, facts.labels["gputopo.io/degraded"]) for now, facts in written]


@pytest.mark.parametrize("machine", [WELL, MESH, nvlink_unknown()], ids=["switched", "linked", "unknown"])
def test_what_is_well_is_published_as_it_is(machine: NodeTopology) -> None:
    assert after((0.0, machine), (60.0, machine)) == machine


@pytest.mark.parametrize(
    ("well", "worse"),
    [pytest.param(WELL, uplink_at(17), id="into a switch"), pytest.param(MESH, link_at(3), id="between two GPUs")],
)
def test_a_link_that_gets_worse_is_published_at_once_and_better_after_the_hold(
    well: NodeTopology, worse: NodeTopology
) -> None:
    assert after((0.0, well), (60.0, worse)) == worse
    assert after((0.0, worse), (60.0, well), (299.0, well)) == worse
    assert after((0.0, worse), (60.0, well), (300.0, well)) == well


def test_a_link_that_flaps_for_an_hour_is_written_twice_and_once_more_when_it_stays() -> None:
    flapping = [(60.0 * minute, uplink_at(17 if minute % 2 else 18)) for minute in range(60)]
    staying = [(3600.0 + 60.0 * minute, WELL) for minute in range(60)]

    assert degraded_labels(writes([*flapping, *staying])) == [(0.0, "false"), (60.0, "true"), (3840.0, "false")]


def test_a_link_that_flaps_at_varying_depths_is_published_at_its_worst() -> None:
    depths = [18, 16, 17, 15]
    seen = [(60.0 * minute, uplink_at(depths[minute % 4])) for minute in range(60)]

    assert [now for now, _ in writes(seen)] == [0.0, 60.0, 180.0]
    assert after(*seen) == uplink_at(15)


def test_the_expectation_of_a_link_that_has_none_is_what_it_shows_at_its_best() -> None:
    assert MESH.nvlink is not None

    def bare(lanes: int) -> NodeTopology:
        link = Link(a=0, b=1, lanes=lanes, gbps=50.0 * lanes)
        return msgspec.structs.replace(MESH, nvlink=Nvlink(links=(link,)))

    assert after((0.0, bare(2)), (60.0, bare(4))).nvlink == Nvlink(
        links=(Link(a=0, b=1, lanes=2, expected_lanes=4, gbps=100.0),)
    )


def test_a_lost_gpu_keeps_its_name_and_its_place() -> None:
    seen = after((0.0, WELL), (60.0, lost(WELL, 3)))

    assert seen.gpus[3] == msgspec.structs.replace(WELL.gpus[3], health=Health.LOST)
    assert (seen.pcie, seen.nics) == (WELL.pcie, WELL.nics)
    assert [gpu.index for gpu in seen.usable] == [0, 1, 2, 4, 5, 6, 7]
    assert [each.what for each in seen.degraded] == ["gpu3"]


def test_a_lost_gpu_is_known_by_its_place_on_the_bus() -> None:
    three, five = WELL.gpus[3], WELL.gpus[5]
    order = (*WELL.gpus[:3], five, WELL.gpus[4], three, *WELL.gpus[6:])
    gpus = tuple(msgspec.structs.replace(gpu, index=index) for index, gpu in enumerate(order))
    moved = lost(msgspec.structs.replace(WELL, gpus=gpus), 3, bus_id=five.bus_id)

    assert after((0.0, WELL), (60.0, moved)).gpus[3] == msgspec.structs.replace(five, index=3, health=Health.LOST)


def test_a_lost_gpu_that_was_never_seen_well_is_nobody() -> None:
    assert after((0.0, lost(WELL, 3))).gpus[3] == Gpu(index=3, health=Health.LOST)
    assert after((0.0, lost(WELL, 3)), (300.0, WELL)) == WELL


@pytest.mark.parametrize("machine", [WELL, MESH], ids=["switched", "linked"])
def test_a_gpu_that_comes_and_goes_is_lost_and_written_as_such_once(machine: NodeTopology) -> None:
    flapping = [(60.0 * minute, lost(machine, 3) if minute % 2 else machine) for minute in range(60)]
    staying = [(3600.0 + 60.0 * minute, machine) for minute in range(10)]

    written = writes([*flapping, *staying])

    assert [(now, facts.labels["gputopo.io/gpus"]) for now, facts in written] == [
        (0.0, str(len(machine.gpus))),
        (60.0, str(len(machine.gpus) - 1)),
        (3840.0, str(len(machine.gpus))),
    ]


def test_a_gpu_that_is_on_no_list_any_more_is_missed() -> None:
    seen = after((0.0, WELL), (60.0, without(WELL, 3)), (3600.0, without(WELL, 3)))

    assert [gpu.uuid for gpu in seen.gpus] == [gpu.uuid for gpu in WELL.gpus if gpu.index != 3]
    assert seen.degraded == (
        Degradation(WELL.gpus[3].uuid or "", "gone: it was here since this machine booted and is on no list any more"),
    )


def test_a_gpu_that_was_gone_is_trusted_again_after_the_hold() -> None:
    back = after((0.0, WELL), (60.0, without(WELL, 3)), (120.0, WELL))

    assert back.gpus[3].health is Health.LOST
    assert [each.what for each in back.degraded] == ["gpu3"]
    assert after((0.0, WELL), (60.0, without(WELL, 3)), (120.0, WELL), (360.0, WELL)) == WELL


def test_what_was_degraded_before_indices_moved_is_told_by_the_new_ones() -> None:
    worse = uplink_at(18, Degradation("gpu3.fabric", "route-unhealthy"), Degradation("gpu5.fabric", "route-unhealthy"))

    seen = after((0.0, worse), (60.0, without(WELL, 3)))

    assert seen.degraded[1:] == (Degradation("gpu4.fabric", "route-unhealthy"),)


def test_lanes_are_held_for_the_gpu_and_not_for_the_index() -> None:
    seen = after((0.0, uplink_at(17)), (60.0, without(WELL, 1)))

    assert seen.nvlink is not None
    assert [(up.gpu, up.lanes) for up in seen.nvlink.uplinks if up.lanes < 18] == [(2, 17)]


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
    seen = after((0.0, link_at(3)), (60.0, swapped))

    assert seen.nvlink == link_at(3).nvlink


def test_a_slow_pcie_link_stays_slow_until_it_is_judged_again() -> None:
    slow = uplink_at(18, Degradation("gpu3.pcie", "PCIe x8 of x16 under load"))
    held = watched((0.0, slow))
    asleep = watched((60.0, WELL), (3600.0, WELL), awake=ALL - {3}, held=held)
    awake = watched((3660.0, WELL), (3899.0, WELL), held=asleep)

    assert published(asleep) == slow
    assert published(awake) == slow
    assert published(watched((3900.0, WELL), held=awake)) == WELL


def test_a_fault_that_is_told_in_two_ways_is_held_in_both() -> None:
    faults = [Degradation("gpu3.fabric", "route-unhealthy"), Degradation("gpu3.fabric", "degraded-bandwidth")]
    seen = after(*((60.0 * n, uplink_at(18, fault)) for n, fault in enumerate(faults)))

    assert set(seen.degraded) == set(faults)


def test_a_port_of_a_network_card_that_flaps_is_nothing_to_write() -> None:
    def with_rate(rate: int | None) -> NodeTopology:
        return msgspec.structs.replace(
            WELL, nics=(msgspec.structs.replace(WELL.nics[0], rate_gbps=rate), *WELL.nics[1:])
        )

    flapping = [(60.0 * n, with_rate((400, None)[n % 2])) for n in range(10)]

    assert [now for now, _ in writes(flapping)] == [0.0]


def test_a_problem_of_the_observation_is_nothing_to_publish() -> None:
    problem = Problem("gpus.0.numaNode", ProblemKind.CONFLICT, "sysfs says 0, nvml says 1")
    troubled = msgspec.structs.replace(WELL, problems=(problem,))
    flapping = [(60.0 * n, (WELL, troubled)[n % 2]) for n in range(10)]

    assert [now for now, _ in writes(flapping)] == [0.0]


def test_facts_that_are_no_health_are_published_as_they_are() -> None:
    upgraded = msgspec.structs.replace(WELL, driver_version="590.10")

    assert after((0.0, WELL), (60.0, upgraded)) == upgraded


def test_a_matrix_that_is_unknown_now_or_was_unknown_before_stays_so() -> None:
    blind = msgspec.structs.replace(WELL, pcie=(), nics=())

    assert after((0.0, WELL), (60.0, blind)) == blind
    assert after((0.0, blind), (60.0, WELL)) == WELL


def test_links_that_are_unknown_now_or_were_unknown_before_hold_nothing() -> None:
    unknown = msgspec.structs.replace(WELL, nvlink=None)

    assert after((0.0, uplink_at(17)), (60.0, unknown)).nvlink is None
    assert after((0.0, unknown), (60.0, WELL)) == WELL


def test_a_link_that_is_new_is_published_at_once() -> None:
    assert MESH.nvlink is not None
    fewer = msgspec.structs.replace(MESH, nvlink=Nvlink(links=MESH.nvlink.links[:-1]))

    assert after((0.0, fewer), (60.0, MESH)) == MESH
    assert after((0.0, MESH), (60.0, fewer)) == fewer


def test_an_agent_that_starts_anew_misses_what_the_one_before_it_published() -> None:
    held = recalled(WELL)

    assert held.newest is None
    assert published(watched((0.0, WELL), held=held)) == WELL
    assert published(watched((0.0, lost(WELL, 3)), held=held)).gpus[3].uuid == WELL.gpus[3].uuid
    assert [each.what for each in published(watched((0.0, without(WELL, 3)), held=held)).degraded] == [
        WELL.gpus[3].uuid
    ]


def test_without_a_hold_everything_is_published_as_it_is_seen() -> None:
    held = update(update(Held(), uplink_at(17), 0.0, 0.0, ALL), WELL, 1.0, 0.0, ALL)

    assert published(held) == WELL


def test_what_is_remembered_does_not_grow_with_the_number_of_looks() -> None:
    held = watched(*((float(n), uplink_at(17 + n % 2)) for n in range(299)))

    assert len(held.seen) == 2
    assert held.newest == uplink_at(17)
