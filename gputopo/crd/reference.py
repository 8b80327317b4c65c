"""The page docs/labels.md, made from the keys themselves so that it cannot say anything else."""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.crd.nodegpus import KIND, VERSION
from gputopo.labels import annotation, keys
from gputopo.labels.capacity import SPOT
from gputopo.labels.reasons import Reason

_INTRODUCTION = f"""# Labels, annotations and reasons

This page is generated from `gputopo/labels/`; `make docs` rewrites it.

Contract version {keys.SCHEMA_VERSION}. A key keeps its meaning once it is released. Every value is a valid label value
by construction: white space becomes `-`, and where more had to change (a character dropped, the text cut to 63), the
last eight characters are a hash of the original. An unknown fact has no label, rather than a wrong or an empty one.
A node carries slow facts only: while nothing about the hardware changes, nothing is written.
"""


def labels_page() -> str:
    """The whole page, as Markdown."""
    parts = [
        _INTRODUCTION,
        _section(
            "Node labels", "Written by the agent, for people, node selectors and other schedulers.", keys.NODE_LABELS
        ),
        _section(
            "Node annotation",
            f"At most {annotation.BYTES_FOR_16} bytes for up to 16 GPUs. Lists are stored by column; what does not fit "
            "is left out, least important first, and named in `left_out`.",
            keys.NODE_ANNOTATIONS,
        ),
        _section(
            "Mirrors",
            "In GPU Feature Discovery's formats, so that what already selects on them keeps working. Applied with a "
            f"field manager of their own (`{keys.MIRROR_FIELD_MANAGER}`) and never by force: a key that somebody else "
            "owns stays theirs.",
            keys.MIRRORS,
        ),
        _section(
            "What an operator may say of a node",
            "Labels that gputopo reads and never writes, for what no node tells by itself.",
            keys.NODE_KEYS_READ,
        ),
        _capacity(),
        _section(
            "What a pod may ask",
            "Annotations, but for the model, which is a label. An unknown or malformed value refuses the pod with a "
            "reason that quotes it.",
            keys.POD_KEYS,
        ),
        _reasons(),
    ]
    return "\n".join(parts)


def _section(title: str, text: str, rows: Iterable[keys.Key]) -> str:
    table = "\n".join(f"| `{row.key}` | `{row.example}` | {row.meaning} |" for row in rows)
    return f"## {title}\n\n{text}\n\n| key | example | meaning |\n|---|---|---|\n{table}\n"


def _capacity() -> str:
    rows = "\n".join(f"| `{key}` | {_values(values)} | {who} |" for key, values, who in SPOT)
    return (
        "## Spot and preemptible capacity\n\nA node with one of these labels may be taken away by its cloud any time. "
        f"Case does not matter.\n\n| key | value | set by |\n|---|---|---|\n{rows}\n"
    )


def _values(values: Iterable[str]) -> str:
    return " or ".join(f"`{value}`" for value in values)


def _reasons() -> str:
    lines = "\n".join(f"- `{reason.name}`: {reason.value}" for reason in Reason)
    return f"""## The custom resource `{KIND}`

`{keys.API_GROUP}/{VERSION}`, cluster-scoped, one object per node and named like it: `observedAt` (the heartbeat),
`contentHash`, `agentVersion` and `allocations` (which pod holds which GPU). It moves all the time, so it is kept off
the Node.

## Reasons for refusing a node

A closed list of byte-stable texts, so that a waiting pod is not retried in a loop; `gputopo why pod` tells the rest.

{lines}
"""
