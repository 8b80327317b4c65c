"""The differences between two machines, even if indices changed."""

from msgspec.structs import replace

from gputopo.model import Degradation, Gpu, Link, Nic, NodeTopology, Nvlink, Pcie, PcieDistance, Uplink
from gputopo.render.topology_diff import render_changes
from gputopo.topology_diff import TopologyChange, topology_changes

PAIR = NodeTopology(
    gpus=(Gpu(index=0, uuid="GPU-a", pcie=Pcie(1, 16, 4, 16)), Gpu(index=1, uuid="GPU-b", memory_mib=100)),
    nvlink=Nvlink(links=(Link(a=0, b=1, lanes=4, gbps=112.5),)),
    pcie=((None, PcieDistance.PIX), (PcieDistance.PIX, None)),
    nics=(Nic(name="mlx5_0", rate_gbps=400, distances=(PcieDistance.PIX, None)),),
    driver_version="550.1",
)


def test_a_machine_does_not_differ_from_itself_nor_by_its_idle_links() -> None:
    busy = replace(PAIR, gpus=(replace(PAIR.gpus[0], pcie=Pcie(4, 16, 4, 16)), PAIR.gpus[1]))

    assert topology_changes(PAIR, busy) == ()


def test_a_port_that_lost_its_link_is_a_change() -> None:
    after = replace(PAIR, nics=(replace(PAIR.nics[0], rate_gbps=None),))

    assert topology_changes(PAIR, after) == (TopologyChange("nic mlx5_0", '{"rate_gbps":400}', "{}"),)


def test_facts_links_and_faults_that_changed() -> None:
    after = replace(
        PAIR,
        gpus=(PAIR.gpus[0], replace(PAIR.gpus[1], memory_mib=200)),
        nvlink=Nvlink(links=(Link(a=0, b=1, lanes=3, gbps=84.375),)),
        pcie=(),
        nics=(),
        driver_version="580.1",
        degraded=(Degradation("gpu0-gpu1", "3 of 4"),),
    )

    assert topology_changes(PAIR, after) == (
        TopologyChange("gpu GPU-b memory_mib", "100", "200"),
        TopologyChange("nvlink GPU-a - GPU-b", "4 lanes, 112.5 GB/s", "3 lanes, 84.375 GB/s"),
        TopologyChange("pcie GPU-a - GPU-b", "PIX", None),
        TopologyChange("nic mlx5_0", '{"rate_gbps":400}', None),
        TopologyChange("driver_version", "550.1", "580.1"),
        TopologyChange("degraded gpu0-gpu1", None, "3 of 4"),
    )


def test_a_card_that_was_taken_out_does_not_make_the_others_look_changed() -> None:
    three = NodeTopology(gpus=tuple(Gpu(index=i, uuid=f"GPU-{i}", minor=i) for i in range(3)), nvlink=Nvlink())
    two = NodeTopology(gpus=(Gpu(index=0, uuid="GPU-0", minor=0), Gpu(index=1, uuid="GPU-2", minor=2)), nvlink=Nvlink())

    assert [change.what for change in topology_changes(three, two)] == [
        "gpu GPU-1",
        "gpu GPU-2 index",
        "islands",
    ]


def test_machines_without_a_common_card_are_compared_by_place_then_by_index() -> None:
    one = NodeTopology(gpus=(Gpu(index=0, uuid="GPU-0", bus_id="0000:01:00.0"),))
    other = NodeTopology(gpus=(Gpu(index=0, uuid="GPU-9", bus_id="0000:01:00.0"),))
    paste = NodeTopology(gpus=(Gpu(index=0),), nvlink=Nvlink(uplinks=(Uplink(gpu=0, fabric=0, lanes=18),)))

    assert topology_changes(one, other) == ()
    assert topology_changes(one, paste) == (
        TopologyChange("nvlink 0 - nvswitch 0", None, "18 lanes"),
        TopologyChange("islands", None, "0"),
    )


def test_a_difference_is_shown_as_a_difference() -> None:
    found = (TopologyChange("a", "1", "2"), TopologyChange("b", None, "3"), TopologyChange("c\x1b", "4", None))

    assert render_changes(found) == "- a: 1\n+ a: 2\n+ b: 3\n- c\\x1b: 4\n"
    assert render_changes(()) == "no difference\n"


def test_the_boot_id_is_compared_for_one_host_only() -> None:
    booted = replace(PAIR, boot_id="before")
    again = replace(PAIR, boot_id="after")
    other = replace(again, gpus=(replace(PAIR.gpus[0], uuid="GPU-c"), replace(PAIR.gpus[1], uuid="GPU-d")))
    nameless = replace(again, gpus=tuple(replace(gpu, uuid=None) for gpu in PAIR.gpus))

    assert topology_changes(booted, again) == (TopologyChange("boot_id", "before", "after"),)
    assert topology_changes(booted, other) == ()
    assert [each.what for each in topology_changes(booted, nameless)] == ["boot_id"]
