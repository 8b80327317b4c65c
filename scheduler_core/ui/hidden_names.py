"""Removes the names of pods and gangs of hidden namespaces from documents and texts. Pure."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from scheduler_core.explain.model import ReservedGpus
from scheduler_core.ui.model import Overview
from scheduler_core.ui.rows_html import Viewer

ANOTHER = "(another namespace)"
PARTLY_READ = "a part of the cluster cannot be read, so this may be incomplete; the log of gputopo ui-server says why"
# NAMESPACE/NAME, also within a sentence. A path or a label key has more before the slash, as in nvidia.com/gpu.
_NAME = re.compile(r"(?<![\w./-])([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/[^\s,;)\]'\"]*")
_WHOLE = re.compile(r"(?:pod )?([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)/")
T = TypeVar("T")


def without_hidden_names(document: T, viewer: Viewer) -> T:
    """Return the document with ``NAMESPACE/NAME`` of hidden namespaces replaced, in every text of it."""
    return document if viewer.namespaces is None else _replaced(document, viewer)


def _replaced(value: Any, viewer: Viewer) -> Any:
    if isinstance(value, str):
        return _text(value, viewer)
    if isinstance(value, msgspec.Struct):
        fields = {name: _replaced(getattr(value, name), viewer) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple):
        found = [_replaced(each, viewer) for each in value]
        return value._make(found) if hasattr(value, "_make") else tuple(found)
    return value


def _text(words: str, viewer: Viewer) -> str:
    whole = _WHOLE.match(words)
    if whole is not None and whole[1] in viewer.hidden:
        return ANOTHER
    return _NAME.sub(lambda found: ANOTHER if found[1] in viewer.hidden else found[0], words)


def visible_overview(found: Overview, viewer: Viewer) -> Overview:
    """Return the overview without hidden names in texts. Pods and gangs remain: pages count the hidden ones."""
    if viewer.namespaces is None:
        return found
    return found._replace(
        gangs=tuple(
            without_hidden_names(each, viewer) if viewer.shown(each.namespace) else each for each in found.gangs
        ),
        reserved=tuple(_visible_reservation(each, viewer) for each in found.reserved),
        # Of a gang in a hidden namespace, the page shows the numbers only.
        preemptions=tuple(
            msgspec.structs.replace(without_hidden_names(each, viewer), namespace=each.namespace)
            for each in found.preemptions
        ),
        troubles=(PARTLY_READ,) if found.troubles else (),
    )


def _visible_reservation(found: ReservedGpus, viewer: Viewer) -> ReservedGpus:
    if viewer.shown(found.reservation.partition("/")[0]):
        return without_hidden_names(found, viewer)
    return msgspec.structs.replace(found, gang=None, reservation="", until=None)
