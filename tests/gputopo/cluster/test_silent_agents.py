"""GPU nodes without an agent, and pods on nodes whose agent is silent."""

from __future__ import annotations

from datetime import datetime, timedelta

from gputopo.cluster.document import node_list
from gputopo.cluster.nodes import STALE_AFTER, gpu_nodes, missing_agents_text, silent_agents
from gputopo.cluster.pods import PodGpus, silent_agents_text, with_silent_agents
from gputopo.cluster.tables import node_table
from gputopo.kube.objects import ObjectMeta
from gputopo.render.report import table_lines
from tests.gputopo.cluster.machines import NOW, gpu_node
from tests.machines import dgx1


def test_a_node_without_labels_is_listed_with_the_gpus_that_its_kubelet_advertises() -> None:
    nodes = gpu_nodes([ObjectMeta("bare"), ObjectMeta("cpu")], {}, {"bare": 8})

    assert [(each.name, len(each.topology.gpus), each.state) for each in nodes] == [("bare", 8, None)]
    row = list(table_lines(node_table(nodes, NOW, wide=False), lambda _, text: text))[1].split()
    assert row == ["bare", "?", "8", "?", "?", "-", "never"]


def test_nodes_without_an_agent_are_counted() -> None:
    bare = gpu_nodes([ObjectMeta("bare"), ObjectMeta("bare-2")], {}, {"bare": 8, "bare-2": 4})
    good = gpu_node("n", dgx1(), {})

    assert missing_agents_text([good]) is None
    assert missing_agents_text([good, *bare]) == "2 of 3 GPU nodes, with 12 GPUs, have no agent: bare, bare-2"
    assert missing_agents_text([good, *bare[:1]]) == "1 of 2 GPU nodes, with 8 GPUs, has no agent: bare"


def test_free_gpus_are_unknown_where_the_last_report_is_too_old() -> None:
    node = gpu_node("n", dgx1(), {})

    def shown(now: datetime) -> tuple[object, object, str]:
        entry = node_list([node], now)["items"][0]
        row = list(table_lines(node_table([node], now, wide=False), lambda _, text: text))[1].split()
        return entry["free"], entry["islands"][0]["free"], row[-3]

    assert shown(NOW) == (8, 8, "8/8")
    assert shown(NOW + STALE_AFTER) == (None, None, "?")


def test_pods_name_the_agent_that_is_silent() -> None:
    bare = gpu_nodes([ObjectMeta("bare")], {}, {"bare": 8})
    good = gpu_node("n", dgx1(), {})
    later = NOW + timedelta(hours=2)
    silent = silent_agents([good, *bare], later)

    assert silent_agents([good], NOW) == {}
    assert silent["bare"] == "no agent on bare reports"
    assert silent["n"].startswith("agent on n silent for ")
    placed = [PodGpus(namespace="a", name="old", node="n", count=1, gpus=(3,))]
    others = [
        PodGpus(namespace="a", name="old", node="n", count=1),
        PodGpus(namespace="a", name="new", node="bare", count=2),
        PodGpus(namespace="a", name="fine", node="elsewhere", count=2),
    ]
    found = with_silent_agents(placed, others, silent)

    assert [(each.name, each.silent_agent) for each in found] == [
        ("old", silent["n"]),
        ("new", silent["bare"]),
        ("fine", None),
    ]
    assert silent_agents_text(found) == (
        f"{silent['n']}: the GPUs of a/old are unknown, or of its last report\n"
        f"{silent['bare']}: the GPUs of a/new are unknown, or of its last report"
    )
    assert silent_agents_text(found[2:]) is None


def test_of_many_silent_agents_some_are_named_and_the_rest_is_counted() -> None:
    pods = [PodGpus(namespace="a", name=f"p{n}", node=f"n{n}", count=1) for n in range(7)]
    found = with_silent_agents([], pods, {f"n{n}": f"no agent on n{n} reports" for n in range(7)})

    lines = (silent_agents_text(found) or "").splitlines()
    assert (len(lines), lines[-1]) == (6, "the same on 2 more nodes")
