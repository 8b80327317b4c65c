"""Node labels of topology domains: clique (multi-node NVLink), rack, block and zone.

Cliques: gputopo's and NVIDIA's labels. Racks and blocks: the labels of Kueue's and KAI's examples, NVIDIA Topograph
(``accelerator.topograph.run/``, ``fabric.topograph.run/tier-N``, tier 0 nearest; before 2026 ``network.topology.``),
Google Cloud (``cloud.google.com/gce-topology-*``) and AWS (``topology.k8s.aws/network-node-layer-*``, of which layer 3
is the nearest to the instance). Zones: Kubernetes' own label.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gputopo.labels import keys
from gputopo.labels.aliases import is_domain

TOPOGRAPH_DOMAIN = "accelerator.topograph.run/domain"
TOPOGRAPH_SUB_DOMAIN = "accelerator.topograph.run/sub-domain"  # within that domain; GPUs of one are nearer
CLIQUE_LABELS = (
    keys.FABRIC.key,
    keys.NVIDIA_CLIQUE.key,
    TOPOGRAPH_DOMAIN,
    "network.topology.nvidia.com/accelerator",
    "nvlink-fabric-id",
)
RACK_LABELS = (
    "cloud.provider.com/topology-rack",
    "fabric.topograph.run/tier-0",
    "network.topology.nvidia.com/leaf",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
BLOCK_LABELS = (
    "cloud.provider.com/topology-block",
    "fabric.topograph.run/tier-1",
    "network.topology.nvidia.com/spine",
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-2",
)
ZONE_LABELS = ("topology.kubernetes.io/zone",)
DOMAIN_LABELS = (("clique", CLIQUE_LABELS), ("rack", RACK_LABELS), ("block", BLOCK_LABELS), ("zone", ZONE_LABELS))


def first_domain(labels: Mapping[str, str], label_keys: Iterable[str]) -> str | None:
    """Return the domain that the first of these labels names; None: none of them names one."""
    for key in label_keys:
        found = labels.get(key)
        if found is not None and is_domain(found):
            sub_domain = labels.get(TOPOGRAPH_SUB_DOMAIN) if key == TOPOGRAPH_DOMAIN else None
            return found if sub_domain is None else f"{found}/{sub_domain}"
    return None
