"""The policy of the Topology Manager in ``NodeResourceTopology``, which Node Feature Discovery publishes for each node.

API: ``topology.node.k8s.io/v1alpha2``. The object of this node only, once in five minutes: it changes with every pod,
but the policy only when the kubelet restarts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from agent.allocation.kubelet_config import KubeletConfig
from gputopo.kube.errors import ForbiddenError, KubeError, NotFoundError, UnavailableError

REREAD_S = 300.0
TIMEOUT_S = 1.0  # it is read on the thread that polls the kubelet's allocations
_MAX_TEXT = 63
_KIND = "NodeResourceTopology"
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"  # names of attributes
# The values of the deprecated ``topologyPolicies``. A value without a level leaves the scope unknown.
_NAMED = {"BestEffort": "best-effort", "Restricted": "restricted", "SingleNUMANode": "single-numa-node"}
_SCOPES = {"": None, "ContainerLevel": "container", "PodLevel": "pod"}
_DEPRECATED = {"None": KubeletConfig("none", None, None, None, None)} | {
    name + level: KubeletConfig(policy, scope, None, None, None)
    for name, policy in _NAMED.items()
    for level, scope in _SCOPES.items()
}


class TopologyAttribute(msgspec.Struct, frozen=True):
    """``AttributeInfo``."""

    name: str = ""
    value: str = ""


class NodeResourceTopology(msgspec.Struct, frozen=True, rename="camel"):
    """The part of the object that is about the Topology Manager; the zones are not decoded."""

    attributes: list[TopologyAttribute] | None = None
    topology_policies: list[str] | None = None


class PolicyReading(NamedTuple):
    """The settings, or the error for which they are unknown."""

    config: KubeletConfig | None = None
    error: str | None = None


class NodeResourceTopologyReader:
    """Reads the object of one node at most every ``REREAD_S`` seconds. Without an answer, the last one counts.

    ``read_object`` raises ``KubeError``.
    """

    def __init__(
        self, read_object: Callable[[], NodeResourceTopology], node: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._read_object = read_object
        self._node = node
        self._clock = clock
        self._last = PolicyReading()
        self._next_at = float("-inf")

    def read_policy(self) -> PolicyReading:
        """Return the last reading."""
        now = self._clock()
        if now >= self._next_at:
            self._next_at = now + REREAD_S
            self._last = self._read_policy()
        return self._last

    def _read_policy(self) -> PolicyReading:
        try:
            found = self._read_object()
        except NotFoundError:
            return PolicyReading(
                None, f"the cluster has no {_KIND} {self._node!r}: run the topology updater of Node Feature Discovery"
            )
        except ForbiddenError as error:
            return PolicyReading(None, f"{error}: apply the component node-resource-topology")
        except UnavailableError as error:
            return PolicyReading(self._last.config, str(error))
        except KubeError as error:
            return PolicyReading(None, str(error))
        if (config := topology_manager_settings(found)) is None:
            return PolicyReading(None, f"{_KIND} {self._node!r} has no attribute {_POLICY}")
        return PolicyReading(config)


def topology_manager_settings(found: NodeResourceTopology) -> KubeletConfig | None:
    """Return policy and scope; None if there is no policy. The options are never published."""
    attributes = {each.name: each.value[:_MAX_TEXT] for each in found.attributes or ()}
    if attributes.get(_POLICY):
        return KubeletConfig(attributes[_POLICY], attributes.get(_SCOPE) or None, None, None, None)
    named = [_DEPRECATED.get(each) for each in found.topology_policies or ()]
    return named[0] if len(named) == 1 else None
