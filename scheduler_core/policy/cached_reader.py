"""Parsed requests of pods, cached by content: replicas have the same content, and a pod keeps it from event to event.

Parsing a pod takes 0.1 ms, most of it for detecting its workload type. A pod that waits, is ungated, bound and started
causes five events. The identity of the pod, the annotations of planners, and the labels and annotations of other
projects that nothing here reads are not part of the content: many of them differ from replica to replica, such as the
index of a Job's pod or its IP address.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import msgspec

from gputopo.labels.keys import WRITTEN_ON_PODS
from scheduler_core.policy.profiles import Policies
from scheduler_core.request.job_key import job_key
from scheduler_core.request.pod import Pod, has_soft_preferences
from scheduler_core.request.pod_request import InvalidRequest, PodExtras, PodProfile, PodRequest
from scheduler_core.request.unknown_keys import is_own_key
from scheduler_core.request.workload_type import RULE_LABELS

MAX_ENTRIES = 1024  # cached requests, of half a kilobyte each and their content: most share their profile
_DIGEST_BYTES = 16
_MAX_KEY_BYTES = 2048  # of a content that is kept as it is; its digest would take half as long as the content
_WRITTEN = frozenset(key.key for key in WRITTEN_ON_PODS)
_packed = msgspec.msgpack.Encoder().encode


class MemoizedParser:
    """Parses pods by the policies in use. For one thread."""

    def __init__(self, policies: Callable[[], Policies], most: int = MAX_ENTRIES) -> None:
        self._policies, self._most = policies, most
        self._parsed_by: Policies | None = None  # the policies of all cached requests
        self._cache: dict[bytes, PodRequest | InvalidRequest] = {}  # by content, or its digest
        self._profiles: dict[PodProfile, PodProfile] = {}  # of the cached requests

    def __call__(self, pod: Pod) -> PodRequest | InvalidRequest:
        """Parse a pod as ``Policies.parse_pod`` does."""
        policies = self._policies()
        key = _relevant_parts(pod, policies.extras_of(pod))
        if len(key) > _MAX_KEY_BYTES:
            key = blake2b(key, digest_size=_DIGEST_BYTES).digest()
        if policies is not self._parsed_by or len(self._cache) >= self._most:
            self._parsed_by, self._cache, self._profiles = policies, {}, {}
        found = self._cache.get(key)
        if found is None:
            found = policies.parse_pod(pod)
            if isinstance(found, PodRequest):
                found = found._replace(profile=self._profiles.setdefault(found.profile, found.profile))
            self._cache[key] = found
        if isinstance(found, InvalidRequest):
            return found
        metadata = pod.metadata
        owner = None if metadata.owner is None else metadata.owner.uid
        return PodRequest(  # in a fourth of the time of ``_replace``
            metadata.uid,
            found.namespace,
            metadata.name,
            found.scheduler,
            found.profile,
            found.has_soft_preferences,
            owner,
            found.detection,
            job_key(metadata),
        )


def _relevant_parts(pod: Pod, extras: PodExtras | None) -> bytes:
    """Return everything that ``parse_request``, profiles and extensions read, except pod, owner and job."""
    metadata, spec = pod.metadata, pod.spec
    owner = metadata.owner
    return _packed(
        (
            metadata.namespace,
            {key: text for key, text in (metadata.labels or {}).items() if key in RULE_LABELS or is_own_key(key)},
            {
                key: text
                for key, text in (metadata.annotations or {}).items()
                if is_own_key(key) and key not in _WRITTEN
            },
            None if owner is None else (owner.api_version, owner.kind),
            spec.containers,
            spec.init_containers,
            spec.resources is not None,
            spec.scheduler_name,
            spec.priority_class_name,
            has_soft_preferences(spec),
            extras,
        )
    )
