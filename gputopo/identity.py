"""Values that caches compare by identity. Pure."""

from __future__ import annotations

from operator import is_
from typing import Any

import msgspec


class SameObjects(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A cache key of objects, equal to a key of the same objects only: to hash their contents would cost more.

    Machines of one model share most parts of their topologies as objects.
    """

    objects: tuple[Any, ...]

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.objects)))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SameObjects)
            and len(self.objects) == len(other.objects)
            and all(map(is_, self.objects, other.objects))
        )
