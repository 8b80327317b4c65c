"""Requests of single pods that did not fit: only nodes that changed since then are tried again. Pure.

So a pod that waits costs little, however many nodes there are and however many different requests wait. The reason of a
result is not found again then, and may be out of date: the caller decides when to find it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

import msgspec

from gputopo.labels.reasons import Reason
from gputopo.recent_results import add_bounded
from scheduler_core.cache.change_log import ChangeLog
from scheduler_core.evaluation.filters import rejection_reason
from scheduler_core.planner.packing.free_resources import free_resources
from scheduler_core.planner.packing.model import NodeView, RequestId
from scheduler_core.policy.policy import Policy
from scheduler_core.request.node_load import NO_LOAD, NodeLoad
from scheduler_core.request.pod_request import PodProfile

_MAX_REQUESTS = 1 << 12  # those that were tried last
_OUTDATED_SHARE = 1 / 16  # changes of nodes, as a share of all nodes, until a reason is out of date


class SingleRequest(NamedTuple):
    """All of a pod that decides where it fits, if it has neither placed siblings nor anti-affinity."""

    rules: bytes | None  # ``SchedulingRules.key``
    profile: PodProfile
    policy: Policy
    load: NodeLoad


class UnfitRequest(msgspec.Struct):
    """A request that did not fit. Marks are positions in the log of changed nodes."""

    request_id: RequestId
    reason: Reason | str
    reason_mark: int  # ``reason`` knows of the changes until then
    mark: int  # changes until then are tried


class UnfitRequests:
    """The requests that did not fit, from one view of the nodes to the next. For one thread."""

    def __init__(self) -> None:
        self._view: NodeView | None = None
        self._log = ChangeLog()
        self._known: dict[tuple[SingleRequest, frozenset[str]], UnfitRequest] = {}  # by ignored holds, too

    def see_view(self, view: NodeView, changed: Iterable[str]) -> None:
        """Go on to another view. ``changed``: all nodes that may differ from the last one."""
        self._view = view
        self._log.add_names(changed)

    def find_request(self, request: SingleRequest, allowed: Container[str]) -> UnfitRequest | None:
        """Return the result of a request that still fits on none of the allowed nodes; None: it may fit, or is new."""
        assert self._view is not None
        key = request, self._view.ignored_holds
        known = self._known.get(key)
        changed = None if known is None else self._log.names_since(known.mark)
        if known is None or changed is None or any(name in allowed and self._suits(name, request) for name in changed):
            return None
        known.mark = self._log.mark
        self._known[key] = self._known.pop(key)
        return known

    def record(self, request: SingleRequest, reason: Reason | str) -> RequestId:
        """Record that a request fits on no node, and why. Return its ID."""
        assert self._view is not None
        ignored, mark = self._view.ignored_holds, self._log.mark
        before = self._known.pop((request, ignored), None)
        request_id = RequestId(ignored) if before is None else before.request_id
        add_bounded(self._known, (request, ignored), UnfitRequest(request_id, reason, mark, mark), _MAX_REQUESTS)
        return request_id

    def is_reason_outdated(self, known: UnfitRequest) -> bool:
        """Return whether nodes changed so often that the most frequent reason may be another one."""
        assert self._view is not None
        return self._log.mark - known.reason_mark > _OUTDATED_SHARE * len(self._view.table.states)

    def _suits(self, name: str, request: SingleRequest) -> bool:
        assert self._view is not None
        table, profile = self._view.table, request.profile
        state = table.states.get(name)
        if state is None or any(
            state.free_devices(resource) < wanted for resource, wanted in profile.device_request.totals
        ):
            return False
        free = free_resources(table.records[name], self._view.others.get(name, NO_LOAD))
        return free.shortage(request.load) is None and rejection_reason(profile, state, request.policy) is None
