"""Identities of a machine are removed from its snapshot, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.recording.scrub import scrub_snapshot
from agent.snapshot import Host, Nvml, NvmlFabric, NvmlGpu, NvmlPlatform, Output, Snapshot, Sysfs

ALWAYS = ("hostname", "processes", "serial")
UUIDS = (*ALWAYS, "uuid")
A, B = "31515c3d-1414-7c2c-004a-f86a898946ac", "72d87681-01db-370e-567d-41afcf20fad0"
ONE, TWO = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


def test_the_serial_number_of_the_chassis_is_removed_and_the_place_in_it_stays() -> None:
    gpus = (NvmlGpu(index=0, platform=NvmlPlatform("1820325190001", slot=24, tray=5)), NvmlGpu(index=1))

    nvml = scrub_snapshot(Snapshot(nvml=Nvml(gpus=gpus))).nvml

    assert nvml == Nvml(gpus=(NvmlGpu(index=0, platform=NvmlPlatform(slot=24, tray=5)), NvmlGpu(index=1)))


def printed(text: str, host: Host | None = None) -> str:
    """The scrubbed text of an nvidia-smi output."""
    smi = scrub_snapshot(Snapshot(host=host, smi={"-q -x": Output(text)})).smi
    assert smi is not None
    return smi["-q -x"].stdout


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("<serial>1564720004631</serial>", "<serial>N/A</serial>", id="GPU"),
        pytest.param(
            "<chassis_serial_number>18</chassis_serial_number>",
            "<chassis_serial_number>N/A</chassis_serial_number>",
            id="chassis",
        ),
        pytest.param("<board_id>0x6800</board_id>", "<board_id>N/A</board_id>", id="board"),
        pytest.param("<pdi>0x4fd3c5f2e1</pdi>", "<pdi>N/A</pdi>", id="device identity"),
        pytest.param(
            "<gpu_fabric_guid>0x2f8c</gpu_fabric_guid>", "<gpu_fabric_guid>N/A</gpu_fabric_guid>", id="fabric GUID"
        ),
        pytest.param("    Serial Number       : 156\nx : 1\n", "    Serial Number       : N/A\nx : 1\n", id="as text"),
        pytest.param("  Chassis Serial Number : 18\n", "  Chassis Serial Number : N/A\n", id="chassis as text"),
        pytest.param("    GPU PDI  : 0x4fd3\n", "    GPU PDI  : N/A\n", id="device identity as text"),
        pytest.param(
            "<processes><process_info><process_name>/home/jo/x</process_name></process_info>\n</processes>",
            "<processes></processes>",
            id="processes",
        ),
        pytest.param('<cpu host_hash="0xa1b2" numaid="0">', '<cpu host_hash="0x0" numaid="0">', id="NCCL"),
        pytest.param("<uuid>GPU-1</uuid><minor_number>3</minor_number>", None, id="nothing else"),
        pytest.param("GPU 0: NVIDIA L4 (UUID: GPU-1)\n", None, id="a listing"),
        pytest.param("<module_id>7</module_id><serial></serial_of>", None, id="broken XML"),
    ],
)
def test_identities_are_removed_from_nvidia_smi_output(text: str, expected: str | None) -> None:
    assert printed(text) == (text if expected is None else expected)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        pytest.param("node1", "on node1: ok", "on host: ok", id="a name"),
        pytest.param("node1", "node12 my-node1 node1-ib", "node12 my-node1 node1-ib", id="other names that contain it"),
        pytest.param("node1.example.com", "node1.example.com node1", "host host", id="with domain, and short"),
        pytest.param("node.1", "nodeX1", "nodeX1", id="a dot is a dot"),
        pytest.param("gpu", "gpu 0", "gpu 0", id="a name that is a word"),
    ],
)
def test_the_host_name_is_removed_from_texts(name: str, text: str, expected: str) -> None:
    assert printed(text, Host(name=name)) == expected


def test_host_name_is_removed_and_the_rest_stays() -> None:
    snapshot = Snapshot(
        recorder="gputopo 0.1.0",
        host=Host(name="node1", kernel="6.8.0", boot_id=A, visible_devices="all"),
        nvml=Nvml(gpus=(NvmlGpu(index=0, uuid=f"GPU-{A}", compute_capability=(9, 0)),)),
        smi={"-L": Output("node1\n", 9, "node1: failed\n")},
        sysfs=Sysfs(
            files={
                "class/dmi/id/product_name": "DGXH100\n",
                "class/dmi/id/board_name": "of node1\n",
                "class/dmi/id/product_serial": "1\n",
                "class/dmi/id/product_uuid": "1\n",
                "class/dmi/id/chassis_asset_tag": "1\n",
                "class/infiniband/mlx5_0/node_guid": "1\n",
            },
            links={"bus/pci/devices/a": "devices/a"},
        ),
        nccl='<cpu host_hash="0xa1"/>',
    )

    assert scrub_snapshot(snapshot) == Snapshot(
        recorder="gputopo 0.1.0",
        scrubbed=ALWAYS,
        host=Host(kernel="6.8.0", boot_id=A, visible_devices="all"),
        nvml=snapshot.nvml,
        smi={"-L": Output("host\n", 9, "host: failed\n")},
        sysfs=Sysfs(
            files={"class/dmi/id/product_name": "DGXH100\n", "class/dmi/id/board_name": "of host\n"},
            links={"bus/pci/devices/a": "devices/a"},
        ),
        nccl='<cpu host_hash="0x0"/>',
    )


def test_an_empty_snapshot_stays_empty() -> None:
    assert scrub_snapshot(Snapshot()) == Snapshot(scrubbed=ALWAYS)


def test_a_uuid_is_replaced_by_the_same_uuid_everywhere() -> None:
    snapshot = Snapshot(
        host=Host(visible_devices=f"GPU-{B}"),
        nvml=Nvml(
            gpus=(
                NvmlGpu(index=0, uuid=f"GPU-{A}", fabric=NvmlFabric(state=3, cluster_uuid="0" * 8 + ONE[8:-1] + "0")),
                NvmlGpu(index=1, uuid=f"GPU-{B}"),
            )
        ),
        smi={"-L": Output(f"GPU 0: X (UUID: GPU-{A.upper()})\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-{B}/7/0)\n")},
    )

    assert scrub_snapshot(snapshot, uuids=True) == Snapshot(
        scrubbed=UUIDS,
        host=Host(visible_devices=f"GPU-{ONE}"),
        nvml=Nvml(
            gpus=(
                NvmlGpu(index=0, uuid=f"GPU-{TWO}", fabric=NvmlFabric(state=3, cluster_uuid=ONE[:-1] + "0")),
                NvmlGpu(index=1, uuid=f"GPU-{ONE}"),
            )
        ),
        smi={"-L": Output(f"GPU 0: X (UUID: GPU-{TWO})\n  MIG 1g.5gb Device 0: (UUID: MIG-GPU-{ONE}/7/0)\n")},
    )


@given(st.text(), st.none() | st.text(max_size=8), st.booleans())
def test_scrubbing_twice_changes_nothing(text: str, name: str | None, uuids: bool) -> None:
    snapshot = Snapshot(host=Host(name=name, boot_id=A), smi={"-L": Output(text)}, nccl=f"{B} {A}")
    once = scrub_snapshot(snapshot, uuids=uuids)

    assert scrub_snapshot(once, uuids=uuids) == once
    assert scrub_snapshot(once) == once
