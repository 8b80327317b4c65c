"""Which gang a pod belongs to: by our annotations, or by how the controllers that people have mark their pods. Pure."""

from __future__ import annotations

from scheduler_core.gangs.member import GangName, Wanted
from scheduler_core.pods import Metadata
from scheduler_core.request import Refused


def read_wanted(metadata: Metadata, scheduling_group: str | None = None) -> Wanted | Refused | None:
    """What a pod says of its gang. None: it belongs to none. ``scheduling_group``: spec.schedulingGroup.podGroupName.

    Names of gangs are names of objects: plain where an annotation gives them; ``jobset.train`` where a convention
    does; ``pod.<uid>`` for a pod that is to be placed on its own.
    """
    raise NotImplementedError


def alone(metadata: Metadata, by: str) -> Wanted:
    """A pod that is to be placed on its own: a gang of one."""
    raise NotImplementedError


def is_alone(name: GangName) -> bool:
    """Whether that is a single pod's."""
    raise NotImplementedError
