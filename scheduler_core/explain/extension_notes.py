"""Which filters of other packages reject nodes. Pure but for the calls of these filters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from gputopo.labels.reasons import Reason
from gputopo.render.report import listed
from scheduler_core.cache.node_state import NodeState
from scheduler_core.cache.node_table import ClusterSnapshot
from scheduler_core.evaluation.extensions import CALLS, failing_extensions, rejecting_filters
from scheduler_core.policy.extensions import FILTERS_GROUP
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile


def extension_notes(
    profile: PodProfile, refused: Mapping[str, Reason], table: ClusterSnapshot, policy: Policy
) -> Iterator[str]:
    """Yield each extension filter with the nodes that it rejects, of those that pass gputopo's own filters."""
    nodes_of: defaultdict[NodeState, list[str]] = defaultdict(list)
    for name in sorted(name for name, reason in refused.items() if reason is Reason.EXTENSION):
        nodes_of[table.states[name]].append(name)
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for state, nodes in nodes_of.items():
        for extension, _ in rejecting_filters(profile, state, policy):
            disabled = "; disabled after failures" if (FILTERS_GROUP, extension.name) in CALLS.disabled else ""
            groups[f"rejected by the filter {extension.name}: {extension.error or extension.measure}{disabled}"] += (
                nodes
            )
    for text, nodes in groups.items():
        yield f"{listed(sorted(nodes))}: {text}"
    yield from failing_extensions(policy)
