"""Several sources together: precedence, completion, and the effect of a failed source."""

import msgspec
import pytest

from agent.discover import discover
from agent.snapshot import Host, Nvml, NvmlFabric, NvmlGpu, NvmlLink, NvmlMigDevice, NvmlPair, Output, Snapshot, Sysfs
from gputopo.model import (
    FactGroup,
    Gpu,
    Health,
    Link,
    MigDevice,
    Nic,
    NodeTopology,
    NumaNode,
    Nvlink,
    Pcie,
    PcieDistance,
    Problem,
    ProblemKind,
    Uplink,
)

TOPO = """\
\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV4\tPIX\t0-15\t0
GPU1\tNV4\t X \tSYS\t16-31\t1
NIC0\tPIX\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""
UUIDS = ("GPU-00000000-0000-0000-0000-00000000000a", "GPU-00000000-0000-0000-0000-00000000000b")
MIG_UUID = "MIG-00000000-0000-0000-0000-00000000000c"
LISTING = "".join(f"GPU {index}: NVIDIA A40 (UUID: {uuid})\n" for index, uuid in enumerate(UUIDS))


def smi(**outputs: str) -> dict[str, Output]:
    names = {"topo": "topo -m", "listing": "-L", "query": "-q -x", "links": "nvlink -s", "p2p": "topo -p2p n"}
    return {names[name]: Output(text) for name, text in outputs.items()}


def whats(topology: NodeTopology) -> list[str]:
    return [problem.what for problem in topology.problems]


def test_an_empty_snapshot_gives_an_empty_machine() -> None:
    assert discover(Snapshot()) == NodeTopology(nvlink=Nvlink())


def test_a_pasted_matrix_gives_links_locality_and_problems_for_missing_facts() -> None:
    topology = discover(Snapshot(smi=smi(topo=TOPO)))

    assert topology.gpus == (
        Gpu(index=0, numa_node=0, numa_affinity="0", cpu_affinity="0-15"),
        Gpu(index=1, numa_node=1, numa_affinity="1", cpu_affinity="16-31"),
    )
    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=4),))
    assert topology.pcie == ()
    assert topology.nics == (Nic(name="mlx5_0", distances=(PcieDistance.PIX, PcieDistance.SYS)),)
    assert [str(each.why) for each in topology.problems if each.what == "nvlink"] == [
        "the bandwidth is not shown by nvidia-smi topo -m; `nvidia-smi nvlink -s` shows it"
    ]
    assert whats(topology) == ["gpus.product", "gpus.memoryMiB", "nvlink"]


def test_the_bandwidth_of_links_is_asked_for_only_where_no_output_has_it() -> None:
    named = "\n".join(f"GPU {at}: {{}} (UUID: GPU-11111111-2222-3333-4444-55555555555{at})" for at in (0, 1))
    rates = "\n".join(
        f"GPU {at}: NVIDIA New (UUID: GPU-11111111-2222-3333-4444-55555555555{at})\n" + "\t Link 0: 25 GB/s\n" * 4
        for at in (0, 1)
    )
    known = discover(Snapshot(smi={**smi(topo=TOPO), "-L": Output(named.replace("{}", "NVIDIA A100-SXM4-40GB"))}))
    new = discover(Snapshot(smi={**smi(topo=TOPO), "-L": Output(named.replace("{}", "NVIDIA New"))}))
    printed = discover(Snapshot(smi={**smi(topo=TOPO), "nvlink -s": Output(rates)}))

    assert ["nvlink" in whats(each) for each in (known, new, printed)] == [False, True, False]


def test_a_matrix_that_may_hide_nvlinks_does_not_show_that_there_are_none() -> None:
    """Without a legend, a matrix of ``topo -mp`` looks like one of ``topo -m`` of GPUs without NVLinks."""
    bare = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n"
    legend = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    hidden, shown = discover(Snapshot(smi=smi(topo=bare))), discover(Snapshot(smi=smi(topo=bare + legend)))

    assert (hidden.nvlink, hidden.islands) == (None, None)
    assert FactGroup.NVLINK in hidden.uncertain
    assert (shown.nvlink, shown.uncertain) == (Nvlink(), ())


def test_a_cut_list_of_products_is_not_asked_for_as_if_it_were_missing() -> None:
    listed = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-11111111-2222-3333-4444-555555555550)\n"
    topology = discover(Snapshot(smi={**smi(topo=TOPO), "-L": Output(listed)}))
    why = {each.what: each.why for each in topology.problems if each.kind is ProblemKind.UNKNOWN}

    assert why["gpus.product"].endswith("for GPU 1; its output may be cut: print all of it")
    assert why["gpus.memoryMiB"].endswith("`nvidia-smi -q` shows it")
    assert whats(topology).count("gpus.product") == 1
    assert FactGroup.PRODUCTS in topology.uncertain


def test_the_display_board_of_a_dgx_station_is_not_a_gpu() -> None:
    topo = """\
\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tSYS\tNV4\tPIX\t0-15\t0
GPU1\tSYS\t X \tSYS\tPHB\t0-15\t0
GPU2\tNV4\tSYS\t X \tSYS\t0-15\t0
NIC0\tPIX\tPHB\tSYS\t X

NIC Legend:

  NIC0: mlx5_0
"""
    listing = "GPU 0: NVIDIA A40\nGPU 1: NVIDIA DGX Display\nGPU 2: NVIDIA A40\n"

    topology = discover(Snapshot(smi=smi(topo=topo, listing=listing)))

    assert [gpu.index for gpu in topology.gpus] == [0, 2]
    assert topology.nvlink == Nvlink(links=(Link(a=0, b=2, lanes=4, gbps=112.5),))
    assert topology.nics == (Nic(name="mlx5_0", distances=(PcieDistance.PIX, PcieDistance.SYS)),)
    assert not topology.partial


def test_a_list_beside_the_matrix_names_the_products_and_with_them_the_bandwidth() -> None:
    topology = discover(Snapshot(smi=smi(topo=TOPO, listing=LISTING)))

    assert [(gpu.product, gpu.uuid) for gpu in topology.gpus] == [("NVIDIA A40", uuid) for uuid in UUIDS]
    # 4 lanes of 28.125 GB/s
    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=4, gbps=112.5),))


def test_the_rate_of_nvidia_smi_has_precedence_over_the_product_table() -> None:
    rates = "".join(f"GPU {i}: NVIDIA A40 (UUID: {UUIDS[i]})\n\t Link 0: 20.000 GB/s\n" for i in range(2))

    topology = discover(Snapshot(smi=smi(topo=TOPO, links=rates)))

    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=4, gbps=160.0),))


def test_a_matrix_without_nvlinks_leaves_them_unknown() -> None:
    text = (
        "nvidia-smi topo -mp\n\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0\t0\nGPU1\tSYS\t X \t1\t1\n"
    )

    topology = discover(Snapshot(smi=smi(topo=text)))

    assert topology.nvlink is None
    assert "nvlink" in whats(topology)


def test_a_pair_missing_from_the_matrix_is_unknown_and_so_are_the_islands() -> None:
    rows = "GPU0\t X \tNV4\tSYS\tSYS\t0-15\t0\nGPU1\tNV4\t X \tSYS\tSYS\t0-15\t0\n"

    topology = discover(Snapshot(smi=smi(topo="\tGPU0\tGPU1\tGPU2\tGPU3\tCPU Affinity\tNUMA Affinity\n" + rows)))

    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=4),), unknown=((2, 3),))
    assert topology.uncertain_gpus == {2, 3}


def nvml_gpu(index: int, **facts: object) -> NvmlGpu:
    known = {
        "uuid": f"GPU-{index}",
        "bus_id": f"00000000:{index:02X}:00.0",
        "name": "NVIDIA A40",
        "memory_bytes": 48305799168,
        "compute_capability": (8, 6),
    }
    return NvmlGpu(index=index, **(known | facts))  # type: ignore[arg-type]


def test_nvml_has_precedence_over_nvidia_smi_and_the_conflict_is_a_problem() -> None:
    nvml = Nvml(
        driver_version="550.1",
        cuda_version=12040,
        gpus=(nvml_gpu(0), nvml_gpu(1)),
        pairs=(NvmlPair(0, 1, ancestor=50, p2p_nvlink=5),),
    )
    matrix = TOPO.replace("NV4", "PHB")

    topology = discover(Snapshot(nvml=nvml, smi=smi(topo=matrix)))

    assert (topology.driver_version, topology.cuda_version) == ("550.1", "12.4")
    assert topology.distance(0, 1) is PcieDistance.SYS
    assert topology.problems == (Problem("pcie.0-1", ProblemKind.CONFLICT, "nvml says SYS and is used; smi says PHB"),)
    assert topology.gpus[0].memory_mib == 46068
    assert topology.gpus[0].architecture == "ampere"


def test_a_gpu_whose_links_nvml_cannot_read_is_taken_from_the_matrix() -> None:
    up = tuple(NvmlLink(i, active=True, remote_type="gpu", remote_bus_id="00000000:01:00.0") for i in range(4))
    gpus = (nvml_gpu(0, nvlinks=up), nvml_gpu(1, errors={"nvmlDeviceGetNvLinkState": "UNKNOWN"}))

    whole = discover(Snapshot(nvml=Nvml(gpus=gpus), smi=smi(topo=TOPO)))
    alone = discover(Snapshot(nvml=Nvml(gpus=gpus)))

    assert whole.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=4, gbps=112.5),))
    assert alone.nvlink == Nvlink(unknown=((0, 1),))
    assert alone.problems[0] == Problem("gpus.1.nvlink", ProblemKind.UNKNOWN, "no source could read its NVLinks")


def printed_lanes(word: str, gpus: int) -> str:
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [f"{a}\t" + "\t".join(" X " if a == b else word for b in names) + "\t0-15\t0" for a in names]
    return "\t" + "\t".join((*names, "CPU Affinity", "NUMA Affinity")) + "\n" + "\n".join(rows) + "\n"


LANES = {
    "the same": (4, "NV18", []),
    "of one pair": (
        2,
        "SYS",
        ["nvidia-smi prints other lanes than NVML, which is used (GPU0-GPU1: 18, not 0)"],
    ),
    "of all six pairs of four": (
        4,
        "NV17",
        [
            (
                "nvidia-smi prints other lanes than NVML, which is used (GPU0-GPU1: 18, not 17; "
                "GPU0-GPU2: 18, not 17; GPU0-GPU3: 18, not 17; GPU1-GPU2: 18, not 17 and 2 more)"
            )
        ],
    ),
}


@pytest.mark.parametrize(("gpus", "word", "whys"), LANES.values(), ids=LANES)
def test_lanes_that_differ_in_nvidia_smi_are_a_problem(gpus: int, word: str, whys: list[str]) -> None:
    up = tuple(NvmlLink(i, active=True, remote_type="switch", speed_mbps=26562) for i in range(18))
    nvml = Nvml(gpus=tuple(nvml_gpu(i, nvlinks=up) for i in range(gpus)))

    topology = discover(Snapshot(nvml=nvml, smi=smi(topo=printed_lanes(word, gpus))))

    assert [island.size for island in topology.islands or ()] == [gpus]
    assert [each.why for each in topology.problems if each.kind is ProblemKind.CONFLICT] == whys


def test_a_gpu_with_unread_links_is_not_degraded() -> None:
    up = tuple(NvmlLink(i, active=True, remote_type="switch", speed_mbps=26562) for i in range(18))
    gpus = tuple(nvml_gpu(i, nvlinks=up) for i in range(3))
    unread = nvml_gpu(2, errors={"nvmlDeviceGetNvLinkState": "TIMEOUT"})

    topology = discover(Snapshot(nvml=Nvml(gpus=(*gpus[:2], unread))), discover(Snapshot(nvml=Nvml(gpus=gpus))))

    assert topology.degraded == ()
    assert whats(topology) == ["gpus.2.nvlink", "gpus.numaNode", "nvml"]


def test_a_neighbour_in_mig_mode_is_not_a_link_that_is_down() -> None:
    def to(*peers: int) -> tuple[NvmlLink, ...]:
        buses = [f"00000000:{peer:02X}:00.0" for peer in peers]
        return tuple(NvmlLink(i, active=True, remote_type="gpu", remote_bus_id=bus) for i, bus in enumerate(buses))

    mig = nvml_gpu(0, mig_mode=1, errors={"nvmlDeviceGetNvLinkState": "NOT_SUPPORTED"})
    gpus = (mig, nvml_gpu(1, nvlinks=to(0, 2, 2, 2, 2)), nvml_gpu(2, nvlinks=to(1, 1, 1, 1, 0)))

    topology = discover(Snapshot(nvml=Nvml(gpus=gpus)))

    assert topology.nvlink == Nvlink(links=(Link(a=1, b=2, lanes=4, gbps=112.5),))
    assert topology.degraded == ()


def test_peer_access_as_nvidia_smi_prints_it_distinguishes_fabrics() -> None:
    up = tuple(NvmlLink(i, active=True, remote_type="switch", speed_mbps=26562) for i in range(18))
    gpus = tuple(nvml_gpu(i, nvlinks=up) for i in range(4))
    yes = {(0, 1), (1, 0), (2, 3), (3, 2)}
    rows = [["X" if a == b else "OK" if (a, b) in yes else "NS" for b in range(4)] for a in range(4)]
    matrix = "\tGPU0\tGPU1\tGPU2\tGPU3\n" + "".join(f"GPU{a}\t" + "\t".join(row) + "\n" for a, row in enumerate(rows))

    topology = discover(Snapshot(nvml=Nvml(gpus=gpus), smi=smi(p2p=matrix)))

    assert topology.nvlink == Nvlink(
        uplinks=tuple(Uplink(gpu=i, fabric=i // 2, lanes=18, gbps=900.0) for i in range(4))
    )


def test_gpus_of_different_cliques_are_on_different_fabrics() -> None:
    up = (NvmlLink(0, active=True, remote_type="switch", speed_mbps=53125),)
    uuid = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31"
    gpus = tuple(nvml_gpu(i, nvlinks=up, fabric=NvmlFabric(3, 0, uuid, i)) for i in range(2))

    topology = discover(Snapshot(nvml=Nvml(gpus=gpus)))

    assert [up.fabric for up in (topology.nvlink or Nvlink()).uplinks] == [0, 1]


SWITCH = "/bridge0"


def sysfs(*cards: tuple[str, int], nodes: dict[int, str] | None = None) -> Sysfs:
    files = {"class/dmi/id/product_name": "Machine\n"}
    links = {}
    for bus_id, numa in cards:
        base = f"bus/pci/devices/{bus_id}"
        files |= {f"{base}/vendor": "0x10de\n", f"{base}/class": "0x030200\n", f"{base}/numa_node": f"{numa}\n"}
        files |= {f"{base}/local_cpulist": "0-15\n"}
        links[base] = f"devices/pci0000:0{numa}/0000:0{numa}:01.0/{bus_id}"
    for node, cpus in (nodes or {}).items():
        files[f"devices/system/node/node{node}/cpulist"] = f"{cpus}\n"
    return Sysfs(files=files, links=links)


def test_the_kernel_has_precedence_for_locality_and_a_cpuset_is_not_a_conflict() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0, cpu_affinity="0-3", memory_affinity="0"),))

    topology = discover(Snapshot(nvml=nvml, sysfs=sysfs(("0000:00:00.0", 0), nodes={0: "0-15"})))

    assert topology.machine == "Machine"
    assert topology.numa_nodes == (NumaNode(0, "0-15"),)
    assert topology.gpus[0].numa_node == 0
    assert topology.gpus[0].cpu_affinity == "0-15"
    assert topology.problems == ()


def test_cpus_unknown_to_the_kernel_are_a_conflict() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0, cpu_affinity="16-31"),))

    topology = discover(Snapshot(nvml=nvml, sysfs=sysfs(("0000:00:00.0", 0))))

    assert topology.problems == (
        Problem(
            "gpus.0.cpuAffinity",
            ProblemKind.CONFLICT,
            "sysfs says 0-15 and is used; the driver says 16-31",
        ),
    )


def test_a_numa_node_without_cpus_is_the_gpus_memory_and_not_its_numa_node() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0, memory_affinity="0,4-5", numa_node_id=4),))

    topology = discover(Snapshot(nvml=nvml, sysfs=sysfs(("0000:00:00.0", 4), nodes={0: "0-71", 4: "", 5: ""})))

    assert topology.gpus[0].numa_node == 0
    assert topology.gpus[0].numa_affinity == "0,4-5"
    assert topology.gpus[0].memory_numa_node == 4


def test_cards_that_the_driver_does_not_show_make_the_machine_partial() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0),))

    topology = discover(Snapshot(nvml=nvml, sysfs=sysfs(("0000:00:00.0", 0), ("0000:09:00.0", 0))))

    assert topology.partial
    assert topology.problems[0].why == "1 cards on the bus are not visible to the driver here (0000:09:00.0)"


def test_a_lost_gpu_gets_the_only_card_left_over() -> None:
    lost = NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex_v2": "GPU_IS_LOST"})

    topology = discover(
        Snapshot(nvml=Nvml(gpus=(nvml_gpu(0), lost)), sysfs=sysfs(("0000:00:00.0", 0), ("0000:09:00.0", 0)))
    )

    assert (topology.gpus[1].health, topology.gpus[1].bus_id, topology.partial) == (Health.LOST, "0000:09:00.0", False)


def test_a_gpu_without_permission_is_not_lost() -> None:
    theirs = NvmlGpu(index=1, errors={"nvmlDeviceGetHandleByIndex_v2": "NO_PERMISSION"})

    topology = discover(Snapshot(nvml=Nvml(gpus=(nvml_gpu(0), theirs))))

    assert ([gpu.index for gpu in topology.gpus], topology.degraded, topology.partial) == ([0], (), True)
    assert topology.problems[0].why == "GPU 1 may not be opened by this process (NO_PERMISSION)"


@pytest.mark.parametrize(("state", "words"), [(1, "not-started"), (2, "in-progress")])
def test_a_registration_that_is_not_complete_is_reported(state: int, words: str) -> None:
    waiting = msgspec.structs.replace(nvml_gpu(1), fabric=NvmlFabric(state=state, status=0))

    topology = discover(Snapshot(nvml=Nvml(gpus=(nvml_gpu(0), waiting))))

    (why,) = [each.why for each in topology.problems if each.what == "fabric"]
    assert why == (
        f"the registration of GPU 1 is {words}: CUDA cannot use NVLink until it completes; if this lasts, check "
        "nvidia-fabricmanager"
    )


def test_gaps_in_the_indices_make_the_machine_partial() -> None:
    assert discover(Snapshot(smi=smi(topo=TOPO.replace("GPU1", "GPU3")))).partial


@pytest.mark.parametrize(
    ("second", "uncertain"),
    [
        ("NVIDIA L4", ()),
        ("NVIDIA A10", ()),
        ("NVIDIA A100-SXM4-4GB", (FactGroup.PRODUCTS,)),
        ("NVIDIAA100-SXM4-40GB", (FactGroup.PRODUCTS,)),
        ("A100-SXM4-40GB NVIDIA", (FactGroup.PRODUCTS,)),
        ("NVIDIA A100-SXM4-80GB", ()),
        ("NVIDIA H100-SXM4-40GB", ()),
        ("NVIDIA A1O0-SXM4-40GB", (FactGroup.PRODUCTS,)),
        ("NVIDIA A1?0-SXM4-40GB", (FactGroup.PRODUCTS,)),
        ("NVIDIA A100-SXN4-40GB", (FactGroup.PRODUCTS,)),
        ("NVJDIA A100-SXM4-40GB", (FactGroup.PRODUCTS,)),
    ],
)
def test_products_that_differ_as_by_a_damaged_character_are_uncertain(second: str, uncertain: tuple[FactGroup]) -> None:
    listing = f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {UUIDS[0]})\nGPU 1: {second} (UUID: {UUIDS[1]})\n"

    assert discover(Snapshot(smi={"-L": Output(listing)})).uncertain == uncertain


@pytest.mark.parametrize(
    "product", ["NVIDIA H1O0 80GB HBM3", "NVIDIA A100-SXM4-8OGB", "NVIDIA L4O", "GeForce RTX 409O"]
)
def test_a_known_product_with_letters_for_digits_is_uncertain(product: str) -> None:
    topology = discover(Snapshot(smi={"-L": Output(f"GPU 0: {product} (UUID: {UUIDS[0]})\n")}))

    assert topology.uncertain == (FactGroup.PRODUCTS,)
    assert [each.why for each in topology.problems if f"{product!r} is no known product" in each.why]


def test_a_product_that_no_table_has_is_certain() -> None:
    listing = f"GPU 0: NVIDIA Z900 128GB (UUID: {UUIDS[0]})\n"

    assert discover(Snapshot(smi={"-L": Output(listing)})).uncertain == ()


def _four_gpus(product: str) -> NodeTopology:
    """GPUs 0 to 2 are linked with each other, GPU 3 with none, as a listing and a matrix show it."""
    listing = "".join(f"GPU {index}: NVIDIA {product}\n" for index in range(4))
    rows = [["X" if a == b else "SYS" if 3 in (a, b) else "NV4" for b in range(4)] for a in range(4)]
    matrix = "\t".join(["", *(f"GPU{index}" for index in range(4)), "CPU Affinity"]) + "\n"
    matrix += "".join("\t".join([f"GPU{index}", *row, "0-15"]) + "\n" for index, row in enumerate(rows))
    return discover(Snapshot(smi={"-L": Output(listing), "topo -m": Output(matrix)}))


def test_a_listing_and_a_matrix_suffice_for_a_gpu_of_a_board_that_lost_all_links() -> None:
    found = [f"{each.what}: {each.why}" for each in _four_gpus("A100-SXM4-40GB").degraded]

    assert found == [
        "gpu3.nvlink: 0 of 8 NVLinks active; a sibling has 8 (or it is in MIG mode: `nvidia-smi -q` shows it)"
    ]


def test_sources_that_list_other_gpus_leave_open_which_gpus_there_are() -> None:
    listing = f"GPU 0: NVIDIA L4 (UUID: {UUIDS[0]})\n"
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-15\nGPU1\tSYS\t X \t0-15\n"

    topology = discover(Snapshot(smi={"-L": Output(listing), "topo -m": Output(matrix)}))

    assert FactGroup.GPUS in topology.uncertain
    assert any("nvidia-smi -L has GPU 0, the other sources have GPU 0, 1" in each.why for each in topology.problems)


def test_mig_devices_prove_the_mode_and_a_mode_that_one_gpu_lacks_is_uncertain() -> None:
    lost = QUERIED_MIG.format(uuid=UUIDS[0]).replace("<current_mig>Enabled</current_mig>", "")
    second = '<gpu id="00000000:08:00.0"><product_name>NVIDIA A100</product_name></gpu>'
    both = lost.replace("</gpu>", f"</gpu>{second}").replace("attached_gpus>1<", "attached_gpus>2<")

    (gpu,) = discover(Snapshot(smi={"-q -x": Output(lost)})).gpus

    assert gpu.mig_enabled
    assert discover(Snapshot(smi={"-q -x": Output(both)})).uncertain == (FactGroup.PRODUCTS,)


def test_a_recording_with_fewer_gpus_than_nvml_counts_is_uncertain() -> None:
    topology = discover(Snapshot(nvml=Nvml(device_count=2, gpus=(nvml_gpu(0),))))

    assert topology.uncertain == (FactGroup.GPUS,)


def test_uneven_nvlinks_into_nvswitches_of_a_file_are_uncertain_and_not_degraded() -> None:
    gpus = "".join(
        f'<pci busid="0000:0{i}:00.0" class="0x03"><gpu dev="{i}" sm="80">'
        f'<nvlink target="fffffff:ffff:ff" count="{lanes}" tclass="0x068000"/></gpu></pci>'
        for i, lanes in enumerate((12, 12, 1))
    )

    topology = discover(Snapshot(nccl=f'<system version="1"><cpu numaid="0">{gpus}</cpu></system>'))

    assert topology.uncertain == (FactGroup.NVLINK,)
    assert topology.degraded == ()


LISTED_MIG = f"GPU 0: NVIDIA A100 (UUID: {UUIDS[0]})\n  MIG 3g.20gb     Device  0: (UUID: {MIG_UUID})\n"
QUERIED_MIG = """<?xml version="1.0" ?><nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id="00000000:07:00.0">
<product_name>NVIDIA A100</product_name><uuid>{uuid}</uuid><mig_mode><current_mig>Enabled</current_mig></mig_mode>
<mig_devices><mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id>
<fb_memory_usage><total>19968 MiB</total></fb_memory_usage></mig_device></mig_devices></gpu></nvidia_smi_log>"""


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        pytest.param({"-L": LISTED_MIG}, MigDevice("3g.20gb", MIG_UUID), id="-L"),
        pytest.param({"-q -x": QUERIED_MIG.format(uuid=UUIDS[0])}, MigDevice(None, None, 19968), id="-q -x"),
        pytest.param(
            {"-L": LISTED_MIG, "-q -x": QUERIED_MIG.format(uuid=UUIDS[0])},
            MigDevice("3g.20gb", MIG_UUID, 19968),
            id="both",
        ),
    ],
)
def test_mig_devices_of_nvidia_smi_are_kept(outputs: dict[str, str], expected: MigDevice) -> None:
    (gpu,) = discover(Snapshot(smi={command: Output(text) for command, text in outputs.items()})).gpus

    assert (gpu.mig_enabled, gpu.mig_devices) == (True, (expected,))


def test_mig_devices_have_the_profile_that_ends_their_name() -> None:
    devices = (
        NvmlMigDevice(0, uuid="MIG-1", name="NVIDIA A100 MIG 1g.5gb", memory_bytes=4864 << 20),
        NvmlMigDevice(1, errors={"nvmlDeviceGetMigDeviceHandleByIndex": "UNKNOWN"}),
    )

    topology = discover(Snapshot(nvml=Nvml(gpus=(nvml_gpu(0, mig_mode=1, mig_devices=devices),))))

    assert topology.gpus[0].mig_devices == (MigDevice("1g.5gb", "MIG-1", 4864),)


def test_mig_devices_are_known_from_the_list_alone() -> None:
    text = f"GPU 0: NVIDIA A100 (UUID: {UUIDS[0]})\n  MIG 1g.5gb     Device  0: (UUID: {MIG_UUID})\n"

    topology = discover(Snapshot(nvml=Nvml(gpus=(nvml_gpu(0, mig_mode=1),)), smi=smi(listing=text)))

    assert topology.gpus[0].mig_devices == (MigDevice("1g.5gb", MIG_UUID),)


QUERY = """<?xml version="1.0" ?>
<nvidia_smi_log><driver_version>550.1</driver_version><cuda_version>12.4</cuda_version><attached_gpus>1</attached_gpus>
<gpu id="00000000:00:00.0"><product_name>NVIDIA L4</product_name><uuid>{uuid}</uuid>
<minor_number>3</minor_number><fb_memory_usage><total>23034 MiB</total></fb_memory_usage>
<pci><pci_bus_id>00000000:00:00.0</pci_bus_id></pci></gpu></nvidia_smi_log>
"""


def test_a_queried_machine_needs_no_other_source() -> None:
    topology = discover(Snapshot(smi=smi(query=QUERY.format(uuid=UUIDS[0]))))

    assert (topology.driver_version, topology.cuda_version) == ("550.1", "12.4")
    gpu = topology.gpus[0]
    assert (gpu.product, gpu.minor, gpu.memory_mib, gpu.bus_id) == ("NVIDIA L4", 3, 23034, "0000:00:00.0")


def test_a_queried_gpu_is_matched_by_its_uuid() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0), NvmlGpu(index=1, uuid=UUIDS[0])))

    topology = discover(Snapshot(nvml=nvml, smi=smi(query=QUERY.format(uuid=UUIDS[0]))))

    assert (topology.gpus[1].memory_mib, topology.gpus[1].minor) == (23034, 3)


def test_a_query_of_some_gpus_shows_them_and_leaves_open_which_gpus_there_are() -> None:
    two_attached = QUERY.format(uuid=UUIDS[0]).replace("<attached_gpus>1<", "<attached_gpus>2<")

    topology = discover(Snapshot(smi=smi(query=two_attached)))

    assert [gpu.product for gpu in topology.gpus] == ["NVIDIA L4"]
    assert topology.uncertain == (FactGroup.GPUS,)
    assert any("the driver has 2 GPUs, and 1 are described" in problem.why for problem in topology.problems)


NCCL = """<system version="1">
<cpu numaid="0" affinity="0000ffff" arch="x86_64">
<pci busid="0000:02:00.0" class="0x060400">
<pci busid="0000:03:00.0" class="0x030200"><gpu dev="0" sm="90">
<nvlink target="0000:04:00.0" count="2" tclass="0x030200"/><nvlink target="0000:99:00.0" count="1" tclass="0x030200"/>
<nvlink target="0000:98:00.0" count="1" tclass="0x068001"/></gpu></pci>
<pci busid="0000:04:00.0" class="0x030200"><gpu dev="1" sm="90">
<nvlink target="0000:03:00.0" count="2" tclass="0x030200"/></gpu></pci>
<pci busid="0000:05:00.0" class="0x020000"><nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci>
</pci></cpu>
<cpu numaid="1" affinity="ffff0000" arch="x86_64"><pci busid="0000:06:00.0" class="0x030200"><gpu dev="2" sm="90">
<nvlink target="0" count="3" tclass="0x068000"/></gpu></pci>
</cpu></system>
"""


def test_an_nccl_topology_gives_links_places_and_nics() -> None:
    topology = discover(Snapshot(nccl=NCCL))

    assert [(gpu.bus_id, gpu.numa_node, gpu.architecture) for gpu in topology.gpus] == [
        ("0000:03:00.0", 0, "hopper"),
        ("0000:04:00.0", 0, "hopper"),
        ("0000:06:00.0", 1, "hopper"),
    ]
    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=2),), uplinks=(Uplink(gpu=2, fabric=0, lanes=3),))
    assert topology.distance(0, 1) is PcieDistance.PIX
    assert topology.numa_nodes == (NumaNode(0, "0-15"), NumaNode(1, "16-31"))
    assert topology.nics == (
        Nic(
            name="mlx5_0",
            bus_id="0000:05:00.0",
            numa_node=0,
            rate_gbps=400,
            distances=(PcieDistance.PIX, PcieDistance.PIX, PcieDistance.SYS),
        ),
    )
    assert topology.partial  # a link of GPU 0 leads to a GPU that is not in the file


LSTOPO = """<topology version="3.0"><object type="Machine">
<object type="Package" nodeset="0x00000001">
<object type="PCIDev" gp_index="1" pci_busid="0000:03:00.0" pci_type="0302 [10de:15f9]">
<object type="OSDev" gp_index="10" name="nvml0"><info name="GPUModel" value="{product}"/></object></object>
<object type="PCIDev" gp_index="2" pci_busid="0000:04:00.0" pci_type="0302 [10de:15f9]">
<object type="OSDev" gp_index="20" name="nvml1"><info name="GPUModel" value="{product}"/></object></object>
</object></object>
<distances2 type="OSDev" nbobjs="2" kind="1" name="NVLinkBandwidth" indexing="gp"><indexes length="5">10 20</indexes>
<u64values length="20">1000000 40000 40000 1000000</u64values></distances2></topology>
"""


def test_an_hwloc_topology_gives_products_places_and_links_but_no_distances() -> None:
    topology = discover(Snapshot(lstopo=LSTOPO.format(product="Tesla P100-SXM2-16GB")))

    assert [(gpu.product, gpu.numa_node, gpu.bus_id) for gpu in topology.gpus] == [
        ("Tesla P100-SXM2-16GB", 0, "0000:03:00.0"),
        ("Tesla P100-SXM2-16GB", 0, "0000:04:00.0"),
    ]
    # 40000 MB/s one way are 80 GB/s both ways: two lanes of 40
    assert topology.nvlink == Nvlink(links=(Link(a=0, b=1, lanes=2, gbps=80.0),))
    assert topology.pcie == ()


def test_bandwidths_of_a_product_that_is_not_known_make_no_lanes() -> None:
    assert discover(Snapshot(lstopo=LSTOPO.format(product="Tesla X"))).nvlink is None


def test_a_gpu_that_nvidia_smi_cannot_reach_is_lost() -> None:
    text = LISTING.splitlines()[0] + "\nUnable to determine the device handle for GPU1: 0000:34:00.0: GPU is lost\n"

    topology = discover(Snapshot(smi=smi(listing=text)))

    assert [gpu.health for gpu in topology.gpus] == [Health.OK, Health.LOST]


FAILED = {
    "a damaged hwloc file": (Snapshot(smi=smi(topo=TOPO), lstopo="<topology"), "lstopo", ""),
    "NVML": (
        Snapshot(nvml=Nvml(error="nvmlInit_v2: DRIVER_NOT_LOADED"), smi=smi(topo=TOPO)),
        "nvml",
        "nvmlInit_v2: DRIVER_NOT_LOADED: the NVIDIA kernel driver is not loaded",
    ),
    "a surprise": (Snapshot(errors={"sysfs": "TypeError: odd"}, smi=smi(topo=TOPO)), "sysfs", "TypeError: odd"),
    "nvidia-smi": (
        Snapshot(nvml=Nvml(gpus=(nvml_gpu(0), nvml_gpu(1))), smi={"topo -m": Output("No devices were found\n", 6)}),
        "nvidia-smi topo -m",
        "the NVIDIA driver runs and sees no GPU",
    ),
    "a damaged NCCL file": (
        Snapshot(smi=smi(topo=TOPO), nccl="<system"),
        "nccl",
        "",
    ),
}


@pytest.mark.parametrize(("snapshot", "what", "why"), FAILED.values(), ids=FAILED)
def test_a_failed_source_is_a_problem_and_does_not_affect_the_others(snapshot: Snapshot, what: str, why: str) -> None:
    topology = discover(snapshot)

    assert len(topology.gpus) == 2
    assert [problem.why for problem in topology.problems if problem.what == what and why in problem.why]


def test_unknown_output_is_quoted() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0),))

    topology = discover(Snapshot(nvml=nvml, smi={"-L": Output("what is this\n"), "of no interest": Output("x")}))

    assert "'what is this'" in topology.problems[0].why


def test_the_topology_has_the_boot_id_and_not_the_host_name() -> None:
    assert discover(Snapshot(host=Host(name="secret", boot_id="b-1"))) == NodeTopology(nvlink=Nvlink(), boot_id="b-1")


def test_links_of_the_previous_topology_are_expected() -> None:
    before = discover(Snapshot(smi=smi(topo=TOPO, listing=LISTING)))

    now = discover(Snapshot(smi=smi(topo="topo -m\n" + TOPO.replace("NV4", "SYS"), listing=LISTING)), before)

    assert [each.why for each in now.degraded] == ["0 of 4 NVLinks active"]


def test_the_current_pcie_link_comes_from_the_first_source_that_has_it() -> None:
    nvml = Nvml(gpus=(nvml_gpu(0, pcie_generation=1, pcie_max_generation=4, pcie_max_width=16),))
    machine = sysfs(("0000:00:00.0", 0))
    machine.files["bus/pci/devices/0000:00:00.0/current_link_width"] = "8\n"

    assert discover(Snapshot(nvml=nvml, sysfs=machine)).gpus[0].pcie == Pcie(1, 8, 4, 16)


def test_nics_come_from_the_kernel_with_distances_of_nvidia_smi() -> None:
    machine = sysfs(("0000:00:00.0", 0))
    for name, bus_id in (("mlx5_0", "0000:0a:00.0"), ("mlx5_1", "0000:0b:00.0")):
        machine.files[f"class/infiniband/{name}/ports/1/rate"] = "400 Gb/sec (4X NDR)\n"
        machine.files[f"bus/pci/devices/{bus_id}/numa_node"] = "0\n"
        machine.links[f"class/infiniband/{name}/device"] = f"devices/pci0000:00/0000:00:01.0/{bus_id}"
        machine.links[f"bus/pci/devices/{bus_id}"] = f"devices/pci0000:00/0000:00:01.0/{bus_id}"
    header = "\tGPU0\tmlx5_1\tmlx5_7\tCPU Affinity\n"
    matrix = header + "GPU0\t X \tSYS\tNODE\t0-15\nmlx5_1\tSYS\t X \tPIX\nmlx5_7\tNODE\tPIX\t X\n"

    topology = discover(Snapshot(nvml=Nvml(gpus=(nvml_gpu(0),)), sysfs=machine, smi=smi(topo=matrix)))

    assert [(nic.name, nic.rate_gbps, nic.numa_node, nic.distances) for nic in topology.nics] == [
        ("mlx5_0", 400, 0, (PcieDistance.PIX,)),  # from the kernel's tree
        ("mlx5_1", 400, 0, (PcieDistance.SYS,)),  # printed
        ("mlx5_7", None, None, (PcieDistance.NODE,)),  # printed only
    ]
