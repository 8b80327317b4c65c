"""What pods ask for, read once of all that say the same: replicas do, and so does one pod from event to event.

To read a pod takes 0.1 ms, most of it for what it is recognised by; a pod that waits, is let go, bound and started
shows up five times. Which pod it is, and what planners write on it, is no part of what it says.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from gputopo.labels.keys import WRITTEN_ON_PODS
from scheduler_core.policy.profiles import Policies
from scheduler_core.request.pod import Pod, has_soft_preferences
from scheduler_core.request.pod_request import InvalidRequest, PodRequest

MAX_ENTRIES = 4096  # readings that are kept, of a kilobyte or two each
_WRITTEN = frozenset(key.key for key in WRITTEN_ON_PODS)
_packed = msgspec.msgpack.Encoder().encode


class MemoizedParser:
    """Reads pods by the policies that are in force. For one thread."""

    def __init__(self, policies: Callable[[], Policies], most: int = MAX_ENTRIES) -> None:
        self._policies, self._most = policies, most
        self._of: Policies | None = None  # by which all that is kept was read
        self._known: dict[bytes, PodRequest | InvalidRequest] = {}

    def __call__(self, pod: Pod) -> PodRequest | InvalidRequest:
        """As ``Policies.read``."""
        policies, said = self._policies(), _relevant_parts(pod)
        if policies is not self._of or len(self._known) >= self._most:
            self._of, self._known = policies, {}
        found = self._known.get(said)
        if found is None:
            found = self._known[said] = policies.parse_pod(pod)
        if isinstance(found, InvalidRequest):
            return found
        metadata = pod.metadata
        owner = None if metadata.owner is None else metadata.owner.uid
        return found._replace(uid=metadata.uid, name=metadata.name, owner=owner)


def _relevant_parts(pod: Pod) -> bytes:
    """All that ``read_request`` and profiles of a policy look at, but which pod it is, and which owner."""
    metadata, spec = pod.metadata, pod.spec
    owner = metadata.owner
    return _packed(
        (
            metadata.namespace,
            metadata.labels,
            {key: text for key, text in (metadata.annotations or {}).items() if key not in _WRITTEN},
            None if owner is None else (owner.api_version, owner.kind),
            spec.containers,
            spec.init_containers,
            spec.scheduler_name,
            spec.priority_class_name,
            has_soft_preferences(spec),
        )
    )
