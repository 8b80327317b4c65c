"""Controllers that create members only after others run, while the planner waits for all of them. Pure.

Such a gang waits for ever: its controller waits for a pod that the gate holds, and the planner for pods that the
controller has not created.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gputopo.labels import workloads
from gputopo.labels.keys import POD_GANG_REQUIRED
from scheduler_core.planner.gang.gang import Gang, GangPhase
from scheduler_core.planner.gang.member import Member

_INSTEAD = f"remove it, and use {POD_GANG_REQUIRED.key} in the pod template in place of it"


def blocked_creations(gang: Gang, members: Iterable[Member]) -> Iterator[str]:
    """Yield why the missing members of a gang will not be created, with what to do. ``members``: all that exist."""
    if gang.phase is not GangPhase.WAITING_FOR_MEMBERS:
        return
    found = [each for each in members if not each.is_terminating]
    for key, project, waits in _EXCLUSIVE:
        if any(key in each.markers for each in found):
            yield f"{project} creates {waits} ({key}), and the planner waits for all members: {_INSTEAD}"
    if found and all(each.owner_kind == "apps/StatefulSet" for each in found):
        yield (
            "a StatefulSet creates its pods one after another, each after the pod before it runs, unless it has "
            "podManagementPolicy: Parallel; the planner waits for all members"
        )


_EXCLUSIVE = (
    (workloads.JOBSET_EXCLUSIVE, "JobSet", "the other pods of a Job only after its first pod has a node"),
    (workloads.LWS_EXCLUSIVE, "LeaderWorkerSet", "workers only after their leader has a node"),
    (workloads.LWS_SUBGROUP_EXCLUSIVE, "LeaderWorkerSet", "workers only after their leader has a node"),
)
EXCLUSIVE_KEYS = tuple(key for key, _, _ in _EXCLUSIVE)


def exclusive_markers(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the annotations of a pod that make its controller wait before it creates further members."""
    return tuple(key for key in EXCLUSIVE_KEYS if key in annotations)
