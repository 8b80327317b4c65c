"""Facts of Node objects whose labels are parsed once for all nodes with equal labels."""

from __future__ import annotations

from itertools import count

from gputopo.labels import keys
from gputopo.labels.domains import DOMAIN_LABELS
from scheduler_core.cache import node as node_module
from scheduler_core.cache.node import Node, NodeFacts, NodeStatus, parse_node
from scheduler_core.request.pod import Metadata

RACK = "cloud.provider.com/topology-rack"
_SERIAL = count()
parsed_once = vars(node_module)["_facts_of_equal_labels"]


def facts(labels: dict[str, str], cpu: str = "8") -> NodeFacts:
    number = next(_SERIAL)
    own = {"kubernetes.io/hostname": f"node-{number}", "nvidia.com/gfd.timestamp": str(number)}
    allocatable: dict[str, str | int] = {"nvidia.com/gpu": "8", "cpu": cpu}
    return parse_node(Node(Metadata(name=f"node-{number}", labels=own | labels), NodeStatus(allocatable)))


def test_nodes_that_differ_in_their_own_labels_only_are_parsed_once() -> None:
    facts({RACK: "r-once"})
    before = parsed_once.cache_info().misses

    found = [facts({RACK: "r-once"}) for _ in range(20)]

    assert parsed_once.cache_info().misses == before
    assert {each.rack for each in found} == {"r-once"}


def test_facts_of_one_node_are_not_those_of_the_next() -> None:
    cheap = {keys.COST_PER_HOUR.key: "8", RACK: "r1", keys.DEGRADED.key: "true"}

    one, other = facts(cheap), facts({RACK: "r2"}, cpu="2500m")

    assert (one.rack, one.degraded, one.cost.per_gpu_hour, one.cpu_milli) == ("r1", True, 1.0, 8000)
    assert (other.rack, other.degraded, other.cost.per_gpu_hour, other.cpu_milli) == ("r2", False, None, 2500)


def test_an_extension_sees_the_own_labels_of_each_node() -> None:
    items = (("kubernetes.io/hostname", "node-a"), (RACK, "r1"))

    for kept in (None, frozenset({"kubernetes.io/hostname"})):
        assert ("kubernetes.io/hostname", "node-a") in parsed_once(items, kept)[0].extension_labels
    assert parsed_once(items, frozenset())[0].extension_labels == ()


def test_labels_beyond_the_limit_are_parsed_and_not_kept() -> None:
    many = {f"example.com/label-{number}": "x" for number in range(300)}
    before = parsed_once.cache_info().currsize

    assert facts({**many, RACK: "r9"}).rack == "r9"
    assert parsed_once.cache_info().currsize == before


def test_no_domain_is_named_by_a_label_that_is_left_out() -> None:
    assert keys.UNREAD_OWN_LABELS.isdisjoint({key for _, every in DOMAIN_LABELS for key in every})
