"""The page docs/labels.md, generated from the keys."""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.crd.nodegpus import KIND, VERSION
from gputopo.labels import annotation, keys
from gputopo.labels.aliases import ALIASES
from gputopo.labels.capacity import INSTANCE_TYPE_LABELS, SPOT_LABELS
from gputopo.labels.domains import DOMAIN_LABELS, TOPOGRAPH_DOMAIN, TOPOGRAPH_SUB_DOMAIN
from gputopo.labels.reasons import Reason

_INTRODUCTION = f"""# Labels, annotations and reasons

This page is generated from `gputopo/labels/`; `make docs` rewrites it.

Contract version {keys.SCHEMA_VERSION}. A key keeps its meaning once it is released. Every value is a valid label value
by construction: white space becomes `-`. If more has to change (a character is dropped, or the text is cut to 63
characters), the last eight characters are a hash of the original. An unknown fact has no label, instead of a wrong or
empty value. Labels contain slowly changing facts only: the agent writes nothing while the hardware does not change.
"""


def labels_page() -> str:
    """Return the page as Markdown."""
    parts = [
        _INTRODUCTION,
        _section(
            "Node labels",
            "Written by the agent, for people, node selectors and other schedulers. The agent restores them if another "
            "client changes them.",
            keys.NODE_LABELS,
        ),
        _section(
            "Node annotation",
            f"At most {annotation.BYTES_FOR_16} bytes for up to 16 GPUs. Lists are stored by column, and "
            "readers ignore columns that they do not know. A link with `one_sided` is reported by only one GPU. "
            "Parts that do not fit are left out, the least important first, and named in `left_out`.",
            keys.NODE_ANNOTATIONS,
        ),
        _section(
            "Mirrors",
            "In GPU Feature Discovery's formats, so that existing selectors keep working. Applied with a field manager "
            f"of their own (`{keys.MIRROR_FIELD_MANAGER}`) and never by force: gputopo does not overwrite a key that "
            "another client owns.",
            keys.MIRRORS,
        ),
        _section(
            "Node labels set by operators",
            "gputopo reads these labels and never writes them. They contain facts that a node cannot report itself.",
            keys.NODE_KEYS_READ,
        ),
        _aliases(),
        _domains(),
        _capacity(),
        _section(
            "Pod annotations and labels",
            "Annotations, except the GPU model, which is a label. A pod with an unknown or malformed value is rejected "
            "with a reason that quotes the value.",
            keys.POD_KEYS,
        ),
        _reasons(),
    ]
    return "\n".join(parts)


def _section(title: str, text: str, rows: Iterable[keys.LabelKey]) -> str:
    table = "\n".join(f"| `{row.key}` | `{row.example}` | {row.meaning} |" for row in rows)
    return f"## {title}\n\n{text}\n\n| key | example | meaning |\n|---|---|---|\n{table}\n"


def _aliases() -> str:
    rows = "\n".join(
        f"| `{each.key}` | `{each.example}` | {_values(key.key for key in each.replaces)} | {each.meaning} |"
        for each in ALIASES
    )
    instance = _values(INSTANCE_TYPE_LABELS)
    topograph = _values((TOPOGRAPH_DOMAIN, "fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"))
    rows += (
        f"\n| {instance} | `p5.48xlarge-spot` | the labels of [spot capacity](#spot-and-preemptible-capacity) | "
        "The node is spot capacity: the word `spot` in the name of the instance type. |"
        f"\n| {topograph} | `nvl72-a` | `gputopo.io/fabric` and the labels of [racks and blocks](#topology-domains) | "
        "Labels of NVIDIA Topograph: the multi-node NVLink domain, the rack and the block of the node. |"
    )
    return (
        "## Labels of other tools\n\nRead in place of gputopo's labels where these are absent, on nodes that no "
        "annotation describes; the cost and the NVLink domain on all nodes. A value that cannot be understood is "
        "ignored: `gputopo why pod` and `gputopo show --node` name it.\n\n"
        f"| key | example | in place of | meaning |\n|---|---|---|---|\n{rows}\n"
    )


def _domains() -> str:
    rows = "\n".join(f"| `{level}` | {', '.join(f'`{key}`' for key in found)} |" for level, found in DOMAIN_LABELS)
    return (
        "## Topology domains\n\nThe first of these labels that a node has names its domain of a level. Of "
        f"`{TOPOGRAPH_DOMAIN}` with `{TOPOGRAPH_SUB_DOMAIN}`, both together.\n\n"
        f"| level | labels |\n|---|---|\n{rows}\n"
    )


def _capacity() -> str:
    rows = "\n".join(f"| `{key}` | {_values(values)} | {source} |" for key, values, source in SPOT_LABELS)
    instance = _values(INSTANCE_TYPE_LABELS)
    return (
        "## Spot and preemptible capacity\n\nThe cloud may remove a node with one of these labels at any time. "
        f"Values are compared without case. The word `spot` in {instance} "
        f"counts where none of them is set.\n\n| key | value | set by |\n|---|---|---|\n{rows}\n"
    )


def _values(values: Iterable[str]) -> str:
    return " or ".join(f"`{value}`" for value in values)


def _reasons() -> str:
    lines = "\n".join(f"- `{reason.name}`: {reason.value}" for reason in Reason)
    return f"""## The custom resource `{KIND}`

`{keys.API_GROUP}/{VERSION}`, cluster-scoped, one object per node and named like it: `observedAt` (when the agent wrote
this content; the Lease of the node in the namespace `gputopo-node-lease` says when it last confirmed it),
`contentHash`, `agentVersion`, `allocations` (which pod holds which GPU), `nics` (which pod holds which RDMA network
card, or a virtual function of it), `nicRates` (the rate of each RDMA network card, Gbit/s) and `kubelet` (settings of
the Topology Manager, exclusive CPUs and memory of each NUMA node, and the GPUs that the device plugin does not offer).
It changes often, so it is not part of the Node.

## Rejection reasons

The reasons for which the extender rejects a node. The list is closed and the texts are byte-stable, so that
kube-scheduler does not retry a waiting pod in a loop. `gputopo why pod` explains the details.

{lines}
"""
