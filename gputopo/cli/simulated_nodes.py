"""The nodes of ``gputopo simulate``, from all values of ``--cluster``. Heavy imports in the functions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputopo.cli.output import print_unreadable
from gputopo.cli.progress import input_progress
from gputopo.cli.terminal import decode_utf8, exit_with_error, read_packed

if TYPE_CHECKING:
    from scheduler_core.cache.list_once import ListedCluster
    from scheduler_core.simulation.hosts import IdleNodes, SimulatedNode

_CLUSTER = "nodes in CSV, or the output of `kubectl get nodes -o json`"
_MANY = re.compile(r"(?P<machine>.+)\*(?P<count>\d+)")
_MAX_NODES = 99_999  # of one --cluster
_QUOTED = 60  # characters of a value that is refused
_ONE_MACHINE = "for a file that describes one machine: --cluster '{}*1'"


class SimulatedNodes(NamedTuple):
    """The nodes of a simulation."""

    specs: list[SimulatedNode]
    caveats: list[str]  # nodes that are left out, and missing facts


def read_simulated_nodes(sources: Sequence[str]) -> SimulatedNodes:
    """Return the nodes of all ``--cluster``, with assumed facts where a simulation can assume them."""
    from scheduler_core.simulation.hosts import completed_nodes  # noqa: PLC0415  start-up of all other commands

    specs: list[SimulatedNode] = []
    left_out: dict[str, str] = {}
    for source in sources:
        found = _nodes(source, len(specs))
        specs += found.nodes
        left_out |= found.left_out
    completed = completed_nodes(specs)
    return SimulatedNodes(completed, [*_left_out_nodes(left_out), *_missing_facts(completed)])


def _nodes(source: str, first: int) -> IdleNodes:
    """Return the nodes of a value of ``--cluster``. ``first``: the number of its first machine."""
    from gputopo.cli.source import topology_of  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.simulation.hosts import ClusterError, IdleNodes, SimulatedNode, idle_nodes, read_nodes  # noqa: PLC0415

    many = _MANY.fullmatch(source)
    # A file without a number of machines is a cluster.
    if many is not None or (source != "-" and not os.path.exists(source)):  # noqa: PTH110  as in ``topology_of``
        name, count = (source, "1") if many is None else many.group("machine", "count")
        if len(count) > len(str(_MAX_NODES)):
            exit_with_error(f"--cluster {source[:_QUOTED]!r}: expected at most {_MAX_NODES:,} machines")
        machine = topology_of(name)
        # The extender orders equal nodes by their names, so the names must not contain the source.
        numbers = range(first, first + int(count))
        return IdleNodes([SimulatedNode(f"simulated-{number:05}", machine) for number in numbers], {})
    text = read_packed(source)
    if text.lstrip().startswith(b"{"):
        return idle_nodes(_listed_file(source, text))
    try:
        return IdleNodes(read_nodes(decode_utf8(text, source, _CLUSTER)), {})
    except ClusterError as error:
        exit_with_error(f"{source}: {error}; {_ONE_MACHINE.format(source)}")


def _left_out_nodes(reasons: Mapping[str, str]) -> list[str]:
    """Return a sentence about the nodes that ordinary GPU pods cannot use."""
    from gputopo.render.report import listed  # noqa: PLC0415  start-up of all other commands
    from gputopo.render.wording import counted_noun, escape_invisible, shorten_names  # noqa: PLC0415

    if not reasons:
        return []
    nodes = [escape_invisible(shorten_names(f"{name} ({reason})")) for name, reason in reasons.items()]
    why = "pods that tolerate only the taint nvidia.com/gpu cannot use"
    return [
        f"{counted_noun(len(nodes), 'node')} left out: {why} {'it' if len(nodes) == 1 else 'them'}: {listed(nodes)}",
    ]


def _missing_facts(specs: Sequence[SimulatedNode]) -> list[str]:
    """Return a sentence for each fact that nodes lack, with its effect, and how to supply the facts."""
    from gputopo.render.wording import counted_noun  # noqa: PLC0415  start-up of all other commands
    from scheduler_core.simulation.assumed_facts import LANE_GBPS, MissingFact  # noqa: PLC0415

    effects = {
        MissingFact.NVLINKS: (
            "the choice of the device plugin is simulated at random, and gputopo finds no islands, so its results are "
            'worse than on such nodes; pods there do not count in "in one island" and "% of best ring bandwidth"'
        ),
        MissingFact.BANDWIDTH: (
            f"gputopo places pods as for {LANE_GBPS:g} GB/s per NVLink; "
            'pods there do not count in "% of best ring bandwidth"'
        ),
        MissingFact.PCIE: (
            "simulated as the largest possible; "
            "the device plugin may choose otherwise among GPUs with equally many NVLinks"
        ),
    }
    lacking = Counter(fact for spec in specs for fact in spec.missing)
    found = [
        f"{fact.value} unknown on {counted_noun(lacking[fact], 'node')}: {effect}"
        for fact, effect in effects.items()
        if lacking[fact]
    ]
    supply = "`gputopo record` on the machine writes a file with these facts, and the agent publishes them"
    return [*found, supply] if found else []


def _listed_file(source: str, text: bytes) -> ListedCluster:
    from gputopo.kube.cluster_file import ClusterFileError, FileKube  # noqa: PLC0415  start-up of all other commands
    from gputopo.kube.rbac import READER  # noqa: PLC0415
    from scheduler_core.cache.list_once import ListedFor, read_cluster  # noqa: PLC0415
    from scheduler_core.policy.policy import Policy  # noqa: PLC0415

    try:
        with input_progress(source, len(text)):
            kube = FileKube(text, READER)
    except ClusterFileError as error:
        exit_with_error(f"{source}: {error}; {_ONE_MACHINE.format(source)}")
    found = read_cluster(kube, kube.now(), ListedFor(Policy()))
    print_unreadable(kube.unreadable)
    return found
