"""What the agent says of itself: one frozen value that the loop swaps and that metrics and probes read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gputopo.crd.nodegpus import Allocation
from gputopo.model import NodeTopology


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state after a turn of the loop. Times are Unix seconds, but for ``turned_at``."""

    turned_at: float  # when the loop last turned, monotonic: it turns every few seconds, or it hangs
    observed: NodeTopology | None = None  # as last seen
    published: NodeTopology | None = None  # as last confirmed by whoever it is published to
    observed_at: float | None = None  # the last look in which NVML answered
    failures: Mapping[str, str] = {}  # source -> why it failed in the last look
    good_at: Mapping[str, float] = {}  # source -> when it last was good
    allocations: tuple[Allocation, ...] | None = None  # None: not known
    podresources: str | None = None  # why the kubelet does not tell
    kept_by_others: tuple[str, ...] = ()  # keys that others own
    behind: bool = True  # something is not published yet
    unready: str | None = "nothing is published yet"  # why the agent is not ready; None: it is
