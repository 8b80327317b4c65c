"""The kubelet's configuration, and what it may allocate, as facts."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from agent.allocation.client import PodResourcesClient
from agent.allocation.kubelet_config import KubeletConfig, KubeletConfigError, read_kubelet_config
from agent.allocation.kubelet_facts import kubelet_facts
from agent.allocation.kubelet_reading import KubeletReading, read_kubelet
from agent.allocation.wire import AllocatableResources, MemoryBlock, PinnedResources, decode_allocatable, decode_pinned
from gputopo.crd.nodegpus import KubeletFacts, NumaResources
from gputopo.model import Gpu, Health, NodeTopology, NumaNode
from tests.agent.allocation.kubelet import kubelet, listing, memory, offer, pod

MACHINE = NodeTopology(
    gpus=tuple(Gpu(index=each, uuid=f"GPU-{each}") for each in range(3)),
    numa_nodes=(NumaNode(0, "0-3"), NumaNode(1, "4-7")),
)
NOTHING = PinnedResources()
OFFER = offer({"nvidia.com/gpu": ["GPU-0", "GPU-2"], "rdma/hca": ["a"]}, range(1, 8), [memory(100, 0), memory(200, 1)])


def test_allocatable_resources_are_decoded() -> None:
    found = decode_allocatable(OFFER)

    assert found.devices == {("nvidia.com/gpu", "GPU-0"), ("nvidia.com/gpu", "GPU-2"), ("rdma/hca", "a")}
    assert found.pinned == PinnedResources(
        frozenset(range(1, 8)), (MemoryBlock("memory", 100, (0,)), MemoryBlock("memory", 200, (1,)))
    )


def test_numbers_that_are_not_packed_are_decoded() -> None:
    assert decode_allocatable(b"\x10\x03\x10\x05").pinned.cpus == {3, 5}


def test_exclusive_cpus_and_memory_of_all_containers_are_decoded() -> None:
    found = decode_pinned(listing(pod("a", {}), pod("b", {})))

    assert found.cpus == {1, 300, 2**40}
    assert found.memory == (MemoryBlock("memory", 2**40, (1,)),) * 2


def _facts(held: PinnedResources = NOTHING, machine: NodeTopology = MACHINE) -> KubeletFacts:
    found = kubelet_facts(KubeletReading(None, None, decode_allocatable(OFFER), held), machine)
    assert found is not None
    return found


def test_gpus_that_the_plugin_does_not_offer_are_named() -> None:
    assert _facts().withdrawn == ("GPU-1",)


def test_lost_gpus_and_nodes_without_a_device_plugin_name_none() -> None:
    lost = NodeTopology(gpus=(*MACHINE.gpus[:1], Gpu(index=1, uuid="GPU-1", health=Health.LOST), MACHINE.gpus[2]))
    nothing = KubeletReading(None, None, AllocatableResources())

    assert _facts(machine=lost).withdrawn == ()
    assert (kubelet_facts(nothing, MACHINE) or KubeletFacts(withdrawn=())).withdrawn is None


def test_cpus_and_memory_of_each_numa_node() -> None:
    held = PinnedResources(
        frozenset({4, 5}), (MemoryBlock("memory", 150, (0, 1)), MemoryBlock("hugepages-2Mi", 9, (0,)))
    )

    assert _facts(held).numa_nodes == (NumaResources(0, 4, 3, 100, 0, (0, 1)), NumaResources(1, 4, 2, 200, 150, (0, 1)))
    assert (_facts(held).exclusive_cpus, _facts(held).pinned_memory) == (True, True)


def test_managers_without_a_policy_take_no_part() -> None:
    body = decode_allocatable(offer({"nvidia.com/gpu": ["GPU-0"]}))
    found = kubelet_facts(KubeletReading(None, None, body, PinnedResources()), MACHINE)

    assert found is not None
    assert (found.exclusive_cpus, found.pinned_memory, found.numa_nodes) == (False, False, None)


@pytest.mark.parametrize("cpus", ["", "0-3"], ids=["unknown CPUs", "CPUs of another machine"])
def test_numa_nodes_are_unknown_where_the_machine_is(cpus: str) -> None:
    machine = NodeTopology(gpus=MACHINE.gpus, numa_nodes=(NumaNode(0, cpus),))

    assert _facts(machine=machine).numa_nodes is None


def test_without_any_reading_nothing_is_published() -> None:
    assert kubelet_facts(KubeletReading(), MACHINE) is None


def test_configuration(tmp_path: Path) -> None:
    path, overrides = tmp_path / "config.yaml", tmp_path / "config.d"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ntopologyManagerPolicy: best-effort\n"
        "topologyManagerPolicyOptions:\n  prefer-closest-numa-nodes: 'true'\n  max-allowable-numa-nodes: '16'\n"
    )
    overrides.mkdir()
    (overrides / "90.conf").write_text(json.dumps({"topologyManagerScope": "pod"}))
    (overrides / "10.conf").write_text("topologyManagerPolicy: restricted\ntopologyManagerScope: container\n")
    (overrides / "notes.txt").write_text("topologyManagerPolicy: none\n")

    assert read_kubelet_config([path]) == KubeletConfig("best-effort", "container", True)
    assert read_kubelet_config([path, overrides]) == KubeletConfig("restricted", "pod", True)


def test_drop_in_files_of_subfolders_are_read_in_the_order_of_the_kubelet(tmp_path: Path) -> None:
    """``filepath.WalkDir`` visits the folder ``20`` before the file ``20.conf``."""
    for name, policy in (("20.conf", "restricted"), ("20/99.conf", "best-effort"), ("10/90.conf/a.conf", "none")):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"topologyManagerPolicy: {policy}\n")

    assert read_kubelet_config([tmp_path]).policy == "restricted"
    (tmp_path / "20.conf").unlink()
    assert read_kubelet_config([tmp_path]).policy == "best-effort"
    (tmp_path / "20/99.conf").unlink()
    assert read_kubelet_config([tmp_path]).policy == "none"


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        pytest.param(
            "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '16'}\n",
            KubeletConfig("restricted", "pod", True, True),
            id="an option more keeps the others",
        ),
        pytest.param(
            "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: null}\n",
            KubeletConfig("restricted", "pod", False, True),
            id="null removes an option",
        ),
        pytest.param(
            "topologyManagerPolicyOptions: null\ntopologyManagerPolicy: null\ncpuManagerPolicyOptions:\n",
            KubeletConfig("none", "pod", False, False),
            id="null gives the default",
        ),
        pytest.param(
            "cpuManagerPolicyOptions: {align-by-socket: 'true', full-pcpus-only: 'false'}\n",
            KubeletConfig("restricted", "pod", True, False, True),
            id="options of the CPU Manager",
        ),
    ],
)
def test_a_drop_in_file_is_a_json_merge_patch(tmp_path: Path, patch: str, expected: KubeletConfig) -> None:
    path, overrides = tmp_path / "config.yaml", tmp_path / "config.d"
    overrides.mkdir()
    path.write_text(
        "topologyManagerPolicy: restricted\ntopologyManagerScope: pod\n"
        "topologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}\n"
        "cpuManagerPolicyOptions: {full-pcpus-only: 'true'}\n"
    )
    (overrides / "10.conf").write_text(patch)

    assert read_kubelet_config([path, overrides]) == expected


def test_options_of_the_cpu_manager_and_threads_are_published() -> None:
    config = KubeletConfig("restricted", full_cores=True)

    found = kubelet_facts(KubeletReading(config, cpus_per_core=2), MACHINE)

    assert found == KubeletFacts(
        "restricted", "container", False, full_physical_cores=True, align_by_socket=False, cpus_per_core=2
    )


@pytest.mark.parametrize(
    ("siblings", "count"), [("0,64\n", 2), ("0\n", 1), ("0-7\n", 8), ("?\n", None), (None, None), ("0-500\n", 64)]
)
def test_threads_of_a_core(tmp_path: Path, siblings: str | None, count: int | None) -> None:
    if siblings is not None:
        folder = tmp_path / "devices/system/cpu/cpu0/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    with closing(PodResourcesClient(tmp_path / "no.sock", 1.0)) as client:
        assert read_kubelet(client, [], tmp_path).cpus_per_core == count


def test_configuration_of_the_cpu_manager(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "cpuManagerPolicyOptions: {full-pcpus-only: 'true', align-by-socket: 'T', strict-cpu-reservation: ''}\n"
    )

    found = read_kubelet_config([path])

    assert (found.full_cores, found.by_socket) == (True, True)


def test_configuration_without_the_settings_has_the_defaults_of_the_kubelet(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"kind": "KubeletConfiguration", "topologyManagerPolicy": null}')

    assert read_kubelet_config([path]) == KubeletConfig("none", "container", False)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param("a: [", "not YAML", id="not YAML"),
        pytest.param("", "expected a KubeletConfiguration, found 'None'", id="empty"),
        pytest.param("kind: Config\n", "expected a KubeletConfiguration, found", id="a kubeconfig"),
        pytest.param("# " + "x" * 300_000, "longer than 256 KiB", id="too long"),
        pytest.param("[" * 5_000, "not YAML", id="nested"),
        pytest.param("topologyManagerPolicy: off\n", "topologyManagerPolicy: 'False' is not a text", id="off"),
        pytest.param("topologyManagerPolicy: 0\n", "topologyManagerPolicy: '0' is not a text", id="zero"),
        pytest.param("topologyManagerPolicy: []\n", "topologyManagerPolicy: '[]' is not a text", id="list"),
        pytest.param("topologyManagerScope: {}\n", "topologyManagerScope: '{}' is not a text", id="scope"),
        pytest.param("topologyManagerPolicyOptions: 0\n", "'0' is not a mapping", id="options"),
        pytest.param("topologyManagerPolicyOptions: false\n", "'False' is not a mapping", id="options false"),
        pytest.param(
            "cpuManagerPolicyOptions: {full-pcpus-only: true}\n",
            "cpuManagerPolicyOptions: full-pcpus-only: 'True' is not a text",
            id="option",
        ),
    ],
)
def test_other_files_are_refused_with_their_name(tmp_path: Path, text: str, error: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)

    with pytest.raises(KubeletConfigError) as refused:
        read_kubelet_config([path])

    assert str(path) in str(refused.value)
    assert error in str(refused.value)


def test_a_file_that_was_replaced_on_the_host_is_not_used(tmp_path: Path) -> None:
    """A mounted file stays the old one: it has no name on the host any more."""
    path = tmp_path / "config.yaml"
    path.write_text("topologyManagerPolicy: restricted\n")
    with path.open() as mounted:
        path.unlink()
        with pytest.raises(KubeletConfigError, match="replaced on the host: restart the agent"):
            read_kubelet_config([Path(f"/proc/self/fd/{mounted.fileno()}")])


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """Without ``O_NONBLOCK``, opening a FIFO waits for a writer, for ever."""
    os.mkfifo(tmp_path / "10.conf")
    with pytest.raises(KubeletConfigError, match=r"10\.conf: not a regular file"):
        read_kubelet_config([tmp_path])
    (tmp_path / "10.conf").unlink()
    (tmp_path / "10.conf").symlink_to("/dev/zero")
    with pytest.raises(KubeletConfigError, match=r"10\.conf: not a regular file"):
        read_kubelet_config([tmp_path])
    (tmp_path / "10.conf").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "10.conf").symlink_to("folder")
    with pytest.raises(KubeletConfigError, match=r"10\.conf"):
        read_kubelet_config([tmp_path])


def test_files_of_a_directory_are_limited(tmp_path: Path) -> None:
    for each in range(65):
        (tmp_path / f"{each}.conf").write_text("topologyManagerPolicy: none\n")

    with pytest.raises(KubeletConfigError, match="more than 64 folders or files"):
        read_kubelet_config([tmp_path])


def test_folders_of_a_directory_are_limited(tmp_path: Path) -> None:
    for each in range(65):
        (tmp_path / str(each)).mkdir()

    with pytest.raises(KubeletConfigError, match="more than 64 folders"):
        read_kubelet_config([tmp_path])


def test_missing_file_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeletConfigError, match=r"no\.yaml: No such file or directory: mount"):
        read_kubelet_config([tmp_path / "no.yaml"])


def test_one_call_reads_everything(tmp_path: Path) -> None:
    path, config = tmp_path / "kubelet.sock", tmp_path / "config.yaml"
    config.write_text("topologyManagerPolicy: restricted\n")
    with (
        kubelet(path, lambda _: listing(pod("a", {})), lambda _: OFFER),
        closing(PodResourcesClient(path, 20.0)) as client,
    ):
        found = read_kubelet(client, [config])

    assert found.config == KubeletConfig("restricted")
    assert found.allocatable == decode_allocatable(OFFER)
    assert found.held is not None
    assert found.held.cpus == {1, 300, 2**40}


def test_kubelet_without_the_call_and_a_missing_file_leave_everything_unknown(tmp_path: Path) -> None:
    path = tmp_path / "kubelet.sock"
    with kubelet(path, lambda _: listing()), closing(PodResourcesClient(path, 20.0)) as client:
        found = read_kubelet(client, [tmp_path / "no.yaml"])

    assert (found.config, found.allocatable, found.held) == (None, None, None)
    assert found.config_error is not None


def test_numa_ids_beyond_any_machine_are_not_published() -> None:
    body = decode_allocatable(offer({"nvidia.com/gpu": ["GPU-0"]}, [1], [memory(5, 2**40)]))
    found = kubelet_facts(KubeletReading(None, None, body, PinnedResources()), MACHINE)

    assert found is not None
    assert found.numa_nodes is None


def _replicas(*devices: str, resource: str = "nvidia.com/gpu", machine: NodeTopology = MACHINE) -> int | None:
    allocatable = AllocatableResources(frozenset((resource, each) for each in devices))
    found = kubelet_facts(KubeletReading(None, None, allocatable), machine)
    assert found is not None
    return found.replicas


ALL = [f"GPU-{gpu}::{replica}" for gpu in range(3) for replica in range(4)]


@pytest.mark.parametrize(
    ("devices", "replicas"),
    [
        pytest.param(ALL, 4, id="all GPUs"),
        pytest.param([*ALL, "GPU-0::4"], None, id="one more of a GPU"),
        pytest.param(ALL[4:], None, id="a GPU is not healthy: it may have another number"),
        pytest.param(["GPU-0", "GPU-1", "GPU-2"], None, id="whole GPUs"),
        pytest.param([*ALL, "GPU-1"], None, id="whole and shared"),
        pytest.param([f"GPU-{gpu}::0" for gpu in range(3)], None, id="one replica is no share"),
        pytest.param([*ALL, "MIG-7::0"], None, id="a device that is no GPU of this machine"),
        pytest.param([], None, id="nothing"),
    ],
)
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_replicas_are_counted_by_the_ids_of_the_devices(
    devices: list[str], replicas: int | None, resource: str
) -> None:
    assert _replicas(*devices, resource=resource) == replicas
