"""What one field manager has to write, given what the Node says now. Pure.

Server-side apply takes the whole of what a manager wants to own: what it leaves out of its next apply is removed, or
stays with whoever else owns it. So a write always carries everything, and there is none where everything is so already.
"""

from __future__ import annotations

from typing import NamedTuple

from gputopo.kube.objects import ManagedMetadata
from gputopo.kube.ownership import Field, owned, owners, values
from gputopo.labels import NodeFacts
from gputopo.labels.keys import FIELD_MANAGER, MIRROR_FIELD_MANAGER

Facts = dict[Field, str]


class Plan(NamedTuple):
    """What to do about one manager's facts."""

    apply: Facts | None  # all that the manager is to own from now on; None: it is so already
    others: dict[Field, tuple[str, ...]]  # what it wants and others own, with their names: it stays theirs


def by_manager(facts: NodeFacts) -> dict[str, Facts]:
    """The facts that each of our field managers wants on the Node."""
    own = {Field("labels", key): value for key, value in facts.labels.items()}
    own |= {Field("annotations", key): value for key, value in facts.annotations.items()}
    return {FIELD_MANAGER: own, MIRROR_FIELD_MANAGER: {Field("labels", key): v for key, v in facts.mirrors.items()}}


def plan(metadata: ManagedMetadata, manager: str, wanted: Facts) -> Plan:
    """What ``manager`` has to write so that the object carries what it wants, as far as nobody else owns that."""
    mine, live = owned(metadata, manager), values(metadata)
    theirs = owners(metadata, besides=manager)
    # What is theirs alone stays so even where we would say the same: owning it too would only make us a party to the
    # next change. What was ours too is given up as soon as we would say something else, for that would be a conflict.
    kept = {
        field: theirs[field]
        for field, value in wanted.items()
        if field in theirs and (field not in mine or live.get(field) != value)
    }
    apply = {field: value for field, value in wanted.items() if field not in kept}
    done = mine == set(apply) and all(live.get(field) == value for field, value in apply.items())
    return Plan(None if done else apply, kept)
