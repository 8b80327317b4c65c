"""NodeTopology -> labels and annotations of a Node. Pure.

Only slowly changing facts are published, because a changed label makes kube-scheduler retry every pod that an extender
rejected. An unknown fact has no label, instead of a wrong or empty value. Facts that a damaged input leaves open
(``NodeTopology.uncertain``) are unknown here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from gputopo.labels import annotation, keys
from gputopo.labels.values import gfd_value, label_value
from gputopo.model import FactGroup, Gpu, Interconnect, Island, NodeTopology

T = TypeVar("T")


class EncodedTopology(NamedTuple):
    """The published labels and annotations of a node. All values are valid for Kubernetes by construction."""

    labels: dict[str, str]  # under gputopo.io/
    annotations: dict[str, str]
    mirrors: dict[str, str]  # labels under nvidia.com/, applied separately because other clients may own them


def encode_topology(topology: NodeTopology) -> EncodedTopology:
    """Return the labels and annotations of a topology. Raises ``annotation.EncodeError``.

    They are empty if it is uncertain which GPUs the machine has.
    """
    if FactGroup.GPUS in topology.uncertain:
        return EncodedTopology({}, {}, {})
    topology = _certain_facts(topology)
    return EncodedTopology(
        labels=_labels(topology),
        annotations={keys.TOPOLOGY.key: annotation.encode_annotation(topology)},
        mirrors=_mirrors(topology),
    )


def _certain_facts(topology: NodeTopology) -> NodeTopology:
    """Return the topology with uncertain facts as unknown facts."""
    if FactGroup.NVLINK in topology.uncertain:
        topology = msgspec.structs.replace(topology, nvlink=None)
    if FactGroup.NUMA in topology.uncertain:
        gpus = (msgspec.structs.replace(gpu, numa_node=None, numa_affinity=None) for gpu in topology.gpus)
        topology = msgspec.structs.replace(topology, gpus=tuple(gpus))
    if FactGroup.PRODUCTS in topology.uncertain:
        unnamed = (
            msgspec.structs.replace(gpu, product=None, architecture=None, memory_mib=None) for gpu in topology.gpus
        )
        topology = msgspec.structs.replace(topology, gpus=tuple(unnamed))
    return topology


def _labels(topology: NodeTopology) -> dict[str, str]:
    usable = topology.usable
    labels = {
        keys.SCHEMA.key: str(keys.SCHEMA_VERSION),
        keys.GPUS.key: str(len(usable)),
    }
    links_known = topology.nvlink is not None and not topology.nvlink.unknown
    if topology.degraded or (links_known and None not in {gpu.product for gpu in usable}):
        # Degradation is found by comparing the links of GPUs of one product: without them nothing is called healthy.
        labels[keys.DEGRADED.key] = "true" if topology.degraded else "false"
    products = _all_known(gpu.product for gpu in usable) or ()  # one unknown product makes every count wrong
    for product, count in Counter(product for product in products if product.strip()).items():
        key = keys.PRODUCT_PREFIX + label_value(product)
        labels[key] = str(int(labels.get(key, "0")) + count)
    labels |= _island_labels(topology)
    if numa := _all_known(gpu.numa_node for gpu in usable):
        labels[keys.NUMA_LAYOUT.key] = label_value("-".join(str(n) for _, n in sorted(Counter(numa).items())))
    if memory := _all_known(gpu.memory_mib for gpu in usable):
        labels[keys.VRAM_MIB.key] = str(min(memory))
    if fabric := fabric_value(topology):
        labels[keys.FABRIC.key] = fabric
    return labels


def _island_labels(topology: NodeTopology) -> dict[str, str]:
    islands = known_islands(topology)
    if islands is None:
        return {}
    labels = {keys.INTERCONNECT.key: island_interconnect(islands).value}
    if not islands:
        return labels
    sizes = sorted((island.size for island in islands), reverse=True)
    labels[keys.ISLANDS.key] = label_value("-".join(map(str, sizes)))
    labels[keys.LARGEST_ISLAND.key] = str(sizes[0])
    largest = largest_island(islands)
    if largest.gbps is not None and topology.nvlink is not None and not topology.nvlink.unknown:
        labels[keys.ISLAND_BANDWIDTH.key] = str(int(largest.gbps))  # rounded down: a bound that a reader can trust
    return labels


def known_islands(topology: NodeTopology) -> tuple[Island, ...] | None:
    """Return the islands; None if an unknown link could make an island larger, because a label cannot express that."""
    return None if topology.uncertain_gpus else topology.islands


def largest_island(islands: tuple[Island, ...]) -> Island:
    """Return the island that the labels describe: most GPUs, then most GB/s, then the lowest index."""
    return max(islands, key=lambda island: (island.size, island.gbps or 0, -island.gpus[0]))


def island_interconnect(islands: tuple[Island, ...]) -> Interconnect:
    """Return the interconnect of the largest island; PCIe if several GPUs have no NVLink."""
    if sum(island.size for island in islands) < 2:
        return Interconnect.NONE
    largest = largest_island(islands)
    return largest.interconnect if largest.size > 1 else Interconnect.PCIE


def fabric_value(topology: NodeTopology) -> str | None:
    """Return ``<cluster uuid>.<clique>`` if every usable GPU is registered in that domain, else None."""
    fabric = topology.fabric
    return None if fabric is None else label_value(f"{fabric.cluster_uuid}.{fabric.clique}")


def _all_known(values: Iterable[T | None]) -> list[T] | None:
    """Return the values, or None if one of them is unknown."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return known if len(known) == len(listed) else None


def _mirrors(topology: NodeTopology) -> dict[str, str]:
    usable = topology.usable
    mirrors: dict[str, str | None] = {keys.NVIDIA_CLIQUE.key: fabric_value(topology)}
    if (islands := known_islands(topology)) is not None:
        mirrors[keys.NVIDIA_TOPOLOGY.key] = island_interconnect(islands).value
    group = _main_product(usable)
    # The count is the GPUs of the product, as in GPU Feature Discovery: an unknown product would make it wrong.
    if not any(gpu.mig_enabled or not (gpu.product or "").strip() for gpu in usable):
        mirrors[keys.NVIDIA_COUNT.key] = str(len(group))
    mirrors |= _numa_mirror(usable)
    if group:
        mirrors |= _product_mirrors(group)
    return {key: value for key, value in mirrors.items() if value is not None}


def _numa_mirror(usable: tuple[Gpu, ...]) -> dict[str, str | None]:
    nodes = _all_known(gpu.numa_node for gpu in usable)
    return {keys.NVIDIA_NUMA.key: label_value("_".join(map(str, sorted(set(nodes)))))} if nodes else {}


def _main_product(usable: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """Return the GPUs of the most frequent product; on a tie the first by name, so that the result is stable."""
    counts = Counter(gpu.product for gpu in usable if gpu.product and gpu.product.strip())
    if not counts:
        return ()
    product = min(counts, key=lambda name: (-counts[name], name))
    return tuple(gpu for gpu in usable if gpu.product == product)


def _product_mirrors(group: tuple[Gpu, ...]) -> dict[str, str | None]:
    first = group[0]
    memory = None if any(gpu.mig_enabled for gpu in group) else _all_known(gpu.memory_mib for gpu in group)
    mirrors: dict[str, str | None] = {
        keys.NVIDIA_PRODUCT.key: gfd_value(first.product or ""),
        keys.NVIDIA_MEMORY.key: str(min(memory)) if memory else None,
        keys.NVIDIA_FAMILY.key: gfd_value(first.architecture or ""),
    }
    if first.compute_capability is not None:
        major, minor = first.compute_capability
        mirrors |= {keys.NVIDIA_COMPUTE_MAJOR.key: str(major), keys.NVIDIA_COMPUTE_MINOR.key: str(minor)}
    return mirrors
