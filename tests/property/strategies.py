"""Hypothesis strategies for valid topologies: every optional field, every kind of fabric, hostile text.

Use ``topologies()``; ``texts`` are possible product and NIC names, including hostile ones.
"""

from typing import Any

from hypothesis import strategies as st

from gputopo.model import (
    Degradation,
    FabricState,
    Gpu,
    GpuFabric,
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

HOSTILE = (
    "",
    " ",
    "?",
    "A \"quoted\" 'card'",
    "back\\slash \\n \\",
    "two\nlines\r\nand\ttabs",
    "\x00\x07\x1b[31mred\x1b[0m\x7f\x9b",
    "<script>alert(1)</script> & </svg> &#0; ]]> --> <!--",
    "[bold red]rich[/] {graph} %s %(x)s ${x} `id`",
    "end\nsubgraph x\nclick a href",
    "- yaml: [1, 2]\n---\n!!python/object:os.system",
    "GPU0\tGPU1\tX\tNV4",
    "\u202eright to left\u2066 \u2028line\u2029 \u0085next",
    "\ufeffbom \ufffe \uffff",
    "null",
    "0x10",
    "é ü 中 🂡 e\u0301",
)
"""Texts that break a format which does not escape."""

texts = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=24)
"""Any text that UTF-8 can carry (no lone surrogates)."""

bus_ids = st.from_regex(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", fullmatch=True)
cpulists = st.sampled_from(("0-63", "0-31,64-95", "0", "", "0-0,8-8,16-16"))
numa_ids = st.integers(0, 24)
distances = st.sampled_from(PcieDistance)
rates = st.floats(0, 4096, allow_nan=False) | st.sampled_from((50.0, 600.0, 900.0, 1800.0))
sizes_mib = st.integers(1, 2**40)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The values of ``strategy``, or unknown."""
    return st.none() | strategy


pcie_links = st.builds(
    Pcie,
    generation=optional(st.integers(1, 7)),
    width=optional(st.sampled_from((1, 2, 4, 8, 16))),
    max_generation=optional(st.integers(1, 7)),
    max_width=optional(st.sampled_from((1, 2, 4, 8, 16))),
)
mig_devices = st.builds(MigDevice, profile=texts, uuid=optional(texts), memory_mib=optional(sizes_mib))
gpu_fabrics = st.builds(
    GpuFabric,
    state=st.sampled_from(FabricState),
    cluster_uuid=optional(texts),
    clique=optional(st.integers(0, 2**32 - 1)),
    status=optional(texts),
    unhealthy=st.lists(texts, max_size=3).map(tuple),
)
problems = st.builds(Problem, what=texts, kind=st.sampled_from(ProblemKind), why=texts)
degradations = st.builds(Degradation, what=texts, why=texts)
numa_nodes = st.builds(NumaNode, id=numa_ids, cpus=optional(cpulists | texts), memory_mib=optional(sizes_mib))


@st.composite
def gpus(draw: st.DrawFn, index: int) -> Gpu:
    """One GPU of that index."""
    mig = draw(st.sampled_from((None, False, False, True)))
    return Gpu(
        index=index,
        uuid=draw(optional(texts)),
        bus_id=draw(optional(bus_ids)),
        minor=draw(optional(st.integers(0, 255))),
        product=draw(optional(texts | st.sampled_from(("NVIDIA H100 80GB HBM3", "NVIDIA A40")))),
        architecture=draw(optional(st.sampled_from(("hopper", "ampere", "ada-lovelace")) | texts)),
        compute_capability=draw(optional(st.tuples(st.integers(0, 20), st.integers(0, 9)))),
        memory_mib=draw(optional(sizes_mib)),
        numa_node=draw(optional(numa_ids)),
        numa_affinity=draw(optional(st.sampled_from(("0", "0-1", "0,5-11", "")) | texts)),
        memory_numa_node=draw(optional(numa_ids)),
        cpu_affinity=draw(optional(cpulists | texts)),
        pcie=draw(pcie_links),
        mig_enabled=mig,
        mig_devices=tuple(draw(st.lists(mig_devices, max_size=3))) if mig else (),
        fabric=draw(optional(gpu_fabrics)),
        health=draw(st.sampled_from((Health.OK, Health.OK, Health.OK, Health.LOST))),
    )


@st.composite
def edges(draw: st.DrawFn) -> dict[str, Any]:
    """The fields that a link and an uplink share: lanes, expected lanes, GB/s."""
    lanes = draw(st.integers(0, 36))
    more = st.integers(lanes, 36)
    return {
        "lanes": lanes,
        "expected_lanes": draw(more if lanes == 0 else optional(more)),
        "gbps": draw(optional(rates)),
    }


@st.composite
def links(draw: st.DrawFn, a: int, b: int) -> Link:
    """A link between two GPUs; without lanes it may be one-sided."""
    edge = draw(edges())
    return Link(a=a, b=b, **edge, one_sided=not edge["lanes"] and draw(st.booleans()))


@st.composite
def nvlinks(draw: st.DrawFn, indices: list[int]) -> Nvlink:
    """A graph of NVLinks among those GPUs: meshes, fabrics, both, links that are down."""
    if not indices:
        return Nvlink()
    pairs = [(a, b) for a in indices for b in indices if a < b]
    shape = draw(st.sampled_from(("mesh", "switched", "both")))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)) if pairs and shape != "switched" else []
    switched = draw(st.lists(st.sampled_from(indices), unique=True)) if shape != "mesh" else []
    unread = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=3)) if pairs else []
    return Nvlink(
        unknown=tuple(sorted(set(unread) - set(chosen))),
        links=tuple(draw(links(a, b)) for a, b in sorted(chosen)),
        uplinks=tuple(
            Uplink(gpu=gpu, fabric=draw(st.integers(0, 2)), assumed=draw(st.booleans()), **draw(edges()))
            for gpu in sorted(switched)
        ),
    )


@st.composite
def matrices(draw: st.DrawFn, size: int) -> tuple[tuple[PcieDistance | None, ...], ...]:
    """A symmetric matrix of PCIe distances with an empty diagonal, or no matrix."""
    if draw(st.booleans()):
        return ()
    cells = {(i, j): draw(optional(distances)) for i in range(size) for j in range(i)}
    return tuple(tuple(None if i == j else cells[(max(i, j), min(i, j))] for j in range(size)) for i in range(size))


@st.composite
def nics(draw: st.DrawFn, size: int) -> Nic:
    """A NIC on a machine of ``size`` GPUs."""
    return Nic(
        name=draw(texts | st.sampled_from(("mlx5_0", "mlx5_bond_0"))),
        bus_id=draw(optional(bus_ids)),
        numa_node=draw(optional(numa_ids)),
        rate_gbps=draw(optional(st.integers(0, 1600))),
        distances=tuple(draw(optional(distances)) for _ in range(size)),
    )


@st.composite
def topologies(draw: st.DrawFn, max_gpus: int = 6) -> NodeTopology:
    """A valid ``NodeTopology`` of up to ``max_gpus`` GPUs with any field known or unknown."""
    indices = sorted(draw(st.lists(st.integers(0, 20) | st.just(999), unique=True, max_size=max_gpus)))
    return NodeTopology(
        gpus=tuple(draw(gpus(index)) for index in indices),
        nvlink=draw(optional(nvlinks(indices))),
        pcie=draw(matrices(len(indices))),
        nics=tuple(draw(st.lists(nics(len(indices)), max_size=3))),
        numa_nodes=tuple(draw(st.lists(numa_nodes, max_size=4))),
        machine=draw(optional(texts)),
        driver_version=draw(optional(texts | st.just("580.95.05"))),
        cuda_version=draw(optional(texts | st.just("13.0"))),
        boot_id=draw(optional(texts)),
        partial=draw(st.booleans()),
        degraded=tuple(draw(st.lists(degradations, max_size=3))),
        problems=tuple(draw(st.lists(problems, max_size=3))),
    )
