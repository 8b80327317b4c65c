"""Node labels of topology domains: clique (multi-node NVLink), rack, block and zone.

Cliques: gputopo's and NVIDIA's labels. Racks and blocks: the labels of Kueue's and KAI's examples, NVIDIA Topograph,
Google Cloud (``cloud.google.com/gce-topology-*``) and AWS (``topology.k8s.aws/network-node-layer-*``, of which layer 3
is the nearest to the instance). Zones: Kubernetes' own label.
"""

from __future__ import annotations

from gputopo.labels import keys

CLIQUE_LABELS = (keys.FABRIC.key, keys.NVIDIA_CLIQUE.key, "network.topology.nvidia.com/accelerator")
RACK_LABELS = (
    "cloud.provider.com/topology-rack",
    "network.topology.nvidia.com/leaf",
    "cloud.google.com/gce-topology-subblock",
    "topology.k8s.aws/network-node-layer-3",
)
BLOCK_LABELS = (
    "cloud.provider.com/topology-block",
    "network.topology.nvidia.com/spine",
    "cloud.google.com/gce-topology-block",
    "topology.k8s.aws/network-node-layer-2",
)
ZONE_LABELS = ("topology.kubernetes.io/zone",)
