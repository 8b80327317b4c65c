"""The agent's status: one frozen value that the loop replaces and that metrics and probes read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agent.daemon.usage import LoadHistory
from agent.snapshot import Nvml
from gputopo.crd.nodegpus import DeviceAllocation
from gputopo.model import NodeTopology


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state after an iteration of the loop. Times are Unix seconds, except ``iterated_at``."""

    iterated_at: float  # the last iteration, monotonic: the loop hangs where it is older than some seconds
    observed: NodeTopology | None = None  # in the last pass
    nvml: Nvml | None = None  # as read in the last pass: error counters are not part of a topology
    load: LoadHistory = {}  # of the GPUs that were read in the last pass
    claims: Mapping[str, int] = {}  # percent of a GPU's memory that containers hold, by UUID
    failed_calls: Mapping[str, str] = {}  # NVML call -> its errors in the last pass
    published: NodeTopology | None = None  # as last confirmed by the publisher
    observed_at: float | None = None  # the last pass in which NVML answered
    failures: Mapping[str, str] = {}  # source -> its error in the last pass
    good_at: Mapping[str, float] = {}  # source -> its last success
    allocations: tuple[DeviceAllocation, ...] | None = None  # None: unknown
    podresources_error: str | None = None  # why the kubelet does not answer
    kept_by_others: tuple[str, ...] = ()  # keys that other field managers own
    pending: bool = True  # a change is not published yet
    unready_reason: str | None = "nothing is published yet"  # None: the agent is ready
