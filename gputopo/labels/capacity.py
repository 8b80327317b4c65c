"""Labels of clouds and provisioners on nodes that they may remove at any time. Read, never written.

Sources: karpenter.sh/docs/reference/labels (well-known labels), EKS managed node groups, GKE Spot VMs and preemptible
VMs, AKS spot node pools, OKE preemptible node pools, Spot Ocean, and the customary label of
Terraform modules and kOps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

SPOT_LABELS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("karpenter.sh/capacity-type", ("spot",), "Karpenter, of every cloud"),
    ("eks.amazonaws.com/capacityType", ("spot",), "EKS managed node groups"),
    ("cloud.google.com/gke-spot", ("true",), "GKE Spot VMs"),
    ("cloud.google.com/gke-preemptible", ("true",), "GKE preemptible VMs"),
    ("cloud.google.com/gke-provisioning", ("spot", "preemptible"), "GKE"),
    ("kubernetes.azure.com/scalesetpriority", ("spot",), "AKS spot node pools"),
    ("oci.oraclecloud.com/oke-is-preemptible", ("true",), "OKE preemptible node pools"),
    ("spotinst.io/node-lifecycle", ("spot",), "Spot Ocean"),
    ("node.kubernetes.io/lifecycle", ("spot",), "nodes that join by Terraform modules or by hand"),
)


_SPOT_KEYS = frozenset(key for key, _, _ in SPOT_LABELS)
INSTANCE_TYPE_LABELS = ("instance-type", "node.kubernetes.io/instance-type")
_SPOT_WORD = re.compile(r"(?:^|[-_.])spot(?:$|[-_.])", re.IGNORECASE)


def is_spot(labels: Mapping[str, str]) -> bool:
    """Return whether a label says that the node may be removed at any time.

    The word "spot" in the name of the instance type counts only where no label of ``SPOT_LABELS`` is set.
    """
    if not _SPOT_KEYS.isdisjoint(labels):
        return any(labels[key].lower() in values for key, values, _ in SPOT_LABELS if key in labels)
    return any(_SPOT_WORD.search(labels[key]) for key in INSTANCE_TYPE_LABELS if key in labels)
