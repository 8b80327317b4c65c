"""The NVLinks in drawings: captions and states."""

from gputopo.model import Gpu, Link, NodeTopology, Nvlink, Uplink
from gputopo.render.edges import DrawnEdge, drawn_edges, fabrics
from tests.machines import cloud_vm, hgx_h100, nvlink_unknown


def test_edges_have_captions_and_a_condition() -> None:
    machine = NodeTopology(
        gpus=tuple(Gpu(index=i) for i in range(4)),
        nvlink=Nvlink(
            links=(
                Link(a=0, b=1, lanes=12, expected_lanes=12, gbps=600.0),
                Link(a=0, b=2, lanes=3, expected_lanes=4, gbps=84.375),
                Link(a=0, b=3, lanes=0, expected_lanes=4, gbps=0.0),
            ),
            uplinks=(Uplink(gpu=3, fabric=1, lanes=2),),
        ),
    )

    assert drawn_edges(machine) == (
        DrawnEdge(gpu=3, peer=None, fabric=1, lanes=2, caption="NV2", degraded=False),
        DrawnEdge(gpu=0, peer=1, fabric=None, lanes=12, caption="NV12 600 GB/s", degraded=False),
        DrawnEdge(gpu=0, peer=2, fabric=None, lanes=3, caption="NV3/4 84.4 GB/s", degraded=True),
        DrawnEdge(gpu=0, peer=3, fabric=None, lanes=0, caption="NV0/4", degraded=True),
    )


def test_fabrics_are_numbered_where_there_are_several() -> None:
    uplinks = (Uplink(gpu=0, fabric=4, lanes=1), Uplink(gpu=1, fabric=2, lanes=1, assumed=True))
    two = NodeTopology(gpus=(Gpu(index=0), Gpu(index=1)), nvlink=Nvlink(uplinks=uplinks))

    assert fabrics(two) == {2: "NVSwitch 2 (assumed)", 4: "NVSwitch 4"}
    assert fabrics(hgx_h100()) == {0: "NVSwitch"}
    assert fabrics(cloud_vm()) == {0: "NVSwitch (assumed)"}


def test_where_nvlink_is_unknown_there_is_nothing_to_draw() -> None:
    assert (drawn_edges(nvlink_unknown()), fabrics(nvlink_unknown())) == ((), {})
