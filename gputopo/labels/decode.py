"""Labels and annotations of a Node -> NodeTopology. Facts that they do not contain stay unknown.

gputopo.labels.annotation.AnnotationError   the topology annotation exists but cannot be decoded
NoTopologyError(ValueError)                 no annotation or label describes GPUs
"""

from __future__ import annotations

from collections.abc import Mapping

from gputopo.labels import annotation, keys
from gputopo.labels.aliases import with_aliases
from gputopo.labels.label_summary import plain_number, summarize_labels
from gputopo.model import MAX_GPUS, Gpu, NodeTopology, Problem, ProblemKind


class NoTopologyError(ValueError):
    """No annotation or label of the node describes GPUs."""


def decode_topology(labels: Mapping[str, str], annotations: Mapping[str, str]) -> NodeTopology:
    """Return the topology that a node's labels and annotations describe.

    The topology annotation contains everything (``decode(*encode(t)) == t.stable_facts()``). Labels alone, of any
    client, give the number of GPUs, their product, memory and NUMA node, but not which of them are linked: ``nvlink``
    is None, the problems quote the labels, and ``summary`` has what holds for all GPUs together.
    """
    text = annotations.get(keys.TOPOLOGY.key)
    if text is None:
        return _from_labels(labels)
    topology = annotation.decode_annotation(text)
    if not topology.gpus and _number(labels, keys.GPUS):
        conflict = f"the topology annotation lists no GPU, but the label {keys.GPUS.key} is {labels[keys.GPUS.key]}"
        raise annotation.AnnotationError(f"{conflict}: one of the two was edited; a running agent restores both")
    return topology


def _from_labels(on_node: Mapping[str, str]) -> NodeTopology:
    aliased = with_aliases(on_node)
    labels = aliased.labels
    count = _number(labels, keys.GPUS, keys.NVIDIA_COUNT)
    if count is None or count > MAX_GPUS:
        found = ", ".join(f"{key}={labels[key]}" for key in sorted(labels) if "gpu" in key) or "none about GPUs"
        raise NoTopologyError(
            f"the node has no annotation {keys.TOPOLOGY.key} and no usable label {keys.GPUS.key} or "
            f"{keys.NVIDIA_COUNT.key} (its labels: {found}); run the agent on it, or label it by hand"
        )
    product = labels.get(keys.NVIDIA_PRODUCT.key, "")
    if "-MIG-" in product and keys.GPUS.key not in labels:
        raise NoTopologyError(
            f"the labels count MIG devices, not GPUs ({keys.NVIDIA_PRODUCT.key}={product}); run the agent on the node"
        )
    numa = labels.get(keys.NVIDIA_NUMA.key)
    uniform = _is_uniform(labels, count)
    gpus = [
        Gpu(
            index=index,
            product=_product(labels) if uniform else None,
            architecture=labels.get(keys.NVIDIA_FAMILY.key) if uniform else None,
            memory_mib=_number(labels, keys.VRAM_MIB, keys.NVIDIA_MEMORY) or None if uniform else None,
            numa_node=_number(labels, keys.NVIDIA_NUMA),
            numa_affinity=None if numa is None else numa.replace("_", ","),
        )
        for index in range(count)
    ]
    summary, contradictions = summarize_labels(aliased, count)
    faults = (Problem("labels", ProblemKind.UNKNOWN, fault) for fault in aliased.faults)
    return NodeTopology(gpus=tuple(gpus), problems=(_unknown(on_node), *contradictions, *faults), summary=summary)


def _number(labels: Mapping[str, str], *sources: keys.LabelKey) -> int | None:
    """Return the value of the first of these labels that is a plain number."""
    return next((value for each in sources if (value := plain_number(labels.get(each.key, ""))) is not None), None)


def _is_uniform(labels: Mapping[str, str], count: int) -> bool:
    """Return whether the labels of a product and its memory describe all GPUs.

    gputopo leaves out the counters of products if the product of a GPU is unknown.
    """
    counters = [value for key, value in labels.items() if key.startswith(keys.PRODUCT_PREFIX)]
    return counters == [str(count)] if counters else keys.SCHEMA.key not in labels


def _product(labels: Mapping[str, str]) -> str | None:
    named = labels.get(keys.NVIDIA_PRODUCT.key, "").removesuffix("-SHARED")
    counted = (key.removeprefix(keys.PRODUCT_PREFIX) for key in labels if key.startswith(keys.PRODUCT_PREFIX))
    return named or next(counted, None)


def _unknown(labels: Mapping[str, str]) -> Problem:
    labelled = [f"{key.key}={labels[key.key]}" for key in _SHAPE if key.key in labels]
    hint = f"; the labels say {', '.join(labelled)}, but not which GPUs" if labelled else ""
    return Problem("nvlink", ProblemKind.UNKNOWN, f"the node has no annotation {keys.TOPOLOGY.key}{hint}")


_SHAPE = (keys.INTERCONNECT, keys.ISLANDS, keys.NVIDIA_TOPOLOGY)
