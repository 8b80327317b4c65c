"""The page of the cluster: counts, groups, gangs, history, and names that try to be markup."""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from gputopo.labels import keys
from scheduler_core.cache.events import Batch, LedgerUpdate, NodeUpdate, WatchStatus
from scheduler_core.ui import overview_page
from scheduler_core.ui.history import History
from scheduler_core.ui.html import Html, address, element, text
from scheduler_core.ui.main import StartError, file_service
from scheduler_core.ui.model import GpuState
from scheduler_core.ui.overview import GROUP_SIZE, overview
from scheduler_core.ui.overview_page import PageQuery, main_part
from scheduler_core.ui.reports import overview_document
from scheduler_core.ui.rows_html import Viewer
from tests.api_objects import Object, gpu_node
from tests.scheduler_core.ui.cluster_documents import (
    allocation,
    cluster,
    gpu_machine,
    gpu_pod,
    node_gpus,
    waiting_gang,
)
from tests.scheduler_core.ui.pages import Page, now, page_of, service_of


def test_counts_agree_with_the_cells() -> None:
    service = service_of(cluster(60)["items"])
    found = service.overview
    cells = [cell for group in found.groups for row in group.rows for cell in row.cells]

    assert found.totals.gpus == len(cells)
    for state in GpuState:
        assert found.totals.count(state) == sum(cell.state is state for cell in cells)
    free = sum(size * number for size, number in found.totals.islands)
    assert free == found.totals.free == found.totals.count(GpuState.FREE)
    assert [size for size, _ in found.totals.islands] == sorted(
        {size for size, _ in found.totals.islands}, reverse=True
    )


def test_free_gpus_are_counted_where_it_is_not_known_which_are_free() -> None:
    at = now()
    objects = [gpu_node("gpu-1", 8), gpu_pod("team", "train", 3, "gpu-1", at)]  # no agent
    found, page = service_of(objects).overview, page_of(objects)

    assert found.totals.by_state == ((GpuState.FREE, 5), (GpuState.USED, 3))
    assert found.totals.free == sum(row.free or 0 for group in found.groups for row in group.rows) == 5
    assert "5 of 8 GPUs free" in page.words
    assert "NVLink islands of the free GPUs: unknown." in page.words
    assert page.words.count("On 1 node it is not reported which GPUs the pods hold") == 1


def tutorial() -> list[Object]:
    """The cluster of docs/tutorial.md: no kubelet reports which pod has which GPU."""
    at, items = now(), list[Object]()
    for number in range(4):
        node, _ = gpu_machine(f"n{number}", "8h100-2n-nvswitch18")
        report = node_gpus(f"n{number}", node, [], at)
        del report["allocations"]
        items += [node, report]
    items[0]["spec"] = {"taints": [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]}
    items[0]["status"]["allocatable"] = {"cpu": "8"}
    pods = (("train", 4), ("llm-0", 8), ("llm-1", 8))
    return [*items, *(gpu_pod("team", name, gpus, f"n{at_}", at) for at_, (name, gpus) in enumerate(pods, 1))]


def test_all_numbers_of_the_tutorial_agree() -> None:
    service = service_of(tutorial())
    found, page = service.overview, page_of(tutorial())
    history = History()
    history.add(found, ())
    (sample,) = history.samples

    assert dict(found.totals.by_state) == {GpuState.FREE: 4, GpuState.USED: 20, GpuState.TAINTED: 8}
    assert (sample.free, sample.reserved, sample.used, sample.other) == (4, 0, 20, 8)
    assert overview_document(found, Viewer())["gpus"] == {"free": 4, "used": 20, "tainted": 8}
    assert overview_document(found, Viewer())["freeIslands"] == {"4": 1}
    assert "4 of 32 GPUs free" in page.words
    assert "1 node tainted" in page.words
    assert "draining" not in page.words.split("Legend")[0]
    assert "0 of 8 free, 8 tainted" in page.words
    assert "4 of 8 free, 4 in one island, which ones: unknown" in page.words
    assert page.words.count("it is not reported which GPUs the pods hold") == 2  # the note, and the legend


def test_an_unknown_number_is_not_shown_as_zero() -> None:
    items: list[Object] = []
    for name in ("a", "b"):
        node, _ = gpu_machine(name, "8h100-2n-nvswitch18", {"cloud.provider.com/topology-rack": name})
        node["status"]["allocatable"] = {"nvidia.com/gpu.shared": "32"}
        pod = gpu_pod("team", f"p-{name}", 0, name, now())
        pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu.shared": "1"}}
        items += [node, pod]
    page = page_of(items)

    assert "? of 16 GPUs free" in page.words
    assert "16 GPUs free or used: unknown" in page.words
    assert "8 GPUs, free: unknown; free islands: unknown" in page.words  # the head of a group
    assert "Free islands: unknown." in page.words
    assert not re.search(r"\b0 of \d+ GPUs free|[Nn]o free island", page.words)
    mixed = page_of([*items, gpu_node("c", 8)])
    assert "at least 8" not in mixed.words.split("Nodes")[0]
    assert "NVLink islands of the free GPUs: unknown." in mixed.words


def test_labelled_nodes_without_reports_count_by_requests() -> None:
    nodes = [gpu_machine(name, "8h100-2n-nvswitch18")[0] for name in ("a", "b")]
    page = page_of([*nodes, gpu_pod("team", "p", 2, "a", now())])

    assert "which has no NodeGpus: it is not known which GPUs the pods hold" in page.words
    assert "14 of 16 GPUs free" in page.words
    assert "8 of 8 free" in page.words
    assert "6 of 8 free, which ones: unknown" in page.words


def test_nodes_are_grouped_by_rack_and_without_racks_by_product() -> None:
    found = service_of(cluster(40, per_rack=16)["items"]).overview
    assert [(group.title, len(group.rows)) for group in found.groups] == [
        ("rack r001", 16),
        ("rack r002", 16),
        ("rack r003", 8),
    ]
    plain = service_of(gpu_node(f"n-{number:03}", 8) for number in range(GROUP_SIZE + 1)).overview
    assert [len(group.rows) for group in plain.groups] == [GROUP_SIZE, 1]


def test_hostile_names_are_text() -> None:
    evil = '<script>alert(1)</script>"onmouseover="x'
    at = now()
    node, topology = gpu_machine(evil, "8a100-2n-pairs12", {"cloud.provider.com/topology-rack": evil})
    pods = [gpu_pod(evil, evil, 1, evil, at), *waiting_gang(evil, evil, 2, 8, at)]
    held = [allocation(topology.gpus[0].uuid or "", evil, evil)]
    page = page_of([node, *pods, node_gpus(evil, node, held, at)])

    names = {tag for tag, _ in page.tags}
    assert "script" not in names
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert evil in page.words


def test_control_and_direction_characters_are_visible() -> None:
    assert "\u202e" not in text("a\u202eb")
    assert "\x1b" not in element("p", title="\x1b[31m")
    assert text("<&>") == "&lt;&amp;&gt;"
    assert address("pod", name="a b&c", namespace="") == "pod?name=a+b%26c"


def test_ids_are_unique_and_the_file_has_no_links() -> None:
    page = page_of(cluster(45)["items"])

    ids = page.ids()
    assert len(ids) == len(set(ids))
    assert not [tag for tag, _ in page.tags if tag in ("a", "script", "form", "link")]
    assert "gpu-0044" in page.words


def test_every_row_says_in_words_what_its_cells_show() -> None:
    service = service_of(cluster(20)["items"])
    page = Page(main_part(service.overview, service.history, PageQuery(), Viewer()))

    for group in service.overview.groups:
        for row in group.rows:
            assert row.summary in page.words
    assert all(
        attributes.get("aria-hidden") == "true"
        for tag, attributes in page.tags
        if "gpus" in (attributes.get("class") or "").split()
    )


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (PageQuery(free=8), {"empty"}),
        (PageQuery(words="TRAIN"), {"busy"}),
        (PageQuery(words="cordoned"), {"off"}),
        (PageQuery(words="draining"), {"off"}),
        (PageQuery(words="rack r2"), {"off"}),
        (PageQuery(words="nvidia h100 80gb free"), {"empty"}),
        (PageQuery(words="used R1"), {"busy"}),
        (PageQuery(group="rack=r1"), {"busy", "empty"}),
        (PageQuery(words="nothing has this name"), set()),
    ],
)
def test_a_query_selects_nodes(query: PageQuery, expected: set[str]) -> None:
    at = now()
    items: list[Object] = []
    for name, rack, pods in (("busy", "r1", 8), ("empty", "r1", 0), ("off", "r2", 1)):
        node, topology = gpu_machine(name, "8h100-2n-nvswitch18", {"cloud.provider.com/topology-rack": rack})
        node["spec"] = {"unschedulable": name == "off"}
        held = [allocation(gpu.uuid or "", "team", f"train-{name}") for gpu in topology.gpus[:pods]]
        pod = [gpu_pod("team", f"train-{name}" if name == "busy" else f"x-{name}", pods, name, at)] if pods else []
        items += [node, *pod, node_gpus(name, node, held if name == "busy" else [], at)]
    service = service_of(items)
    page = Page(main_part(service.overview, service.history, query, Viewer()))

    assert {each.removeprefix("node-") for each in page.ids() if each.startswith("node-")} == expected


def test_names_of_other_namespaces_are_hidden() -> None:
    at = now()
    node, topology = gpu_machine("n", "8a100-2n-pairs12")
    held = [allocation(topology.gpus[0].uuid or "", "secret", "model-x")]
    items = [node, gpu_pod("secret", "model-x", 1, "n", at), node_gpus("n", node, held, at)]
    service = service_of([*items, *waiting_gang("secret", "next-x", 2, 8, at)])
    mine = Viewer(namespaces=frozenset({"mine"}))
    page = Page(main_part(service.overview, service.history, PageQuery(words="model-x"), mine))
    whole = Page(main_part(service.overview, service.history, PageQuery(), mine))

    assert "No GPU node matches" in page.words  # a search does not tell either
    assert "secret" not in whole.words
    assert "another namespace's pod (1)" in whole.words


def marks_of(page: Page, tag: str) -> dict[str, str]:
    """The classes of the marks of pods by their tooltip, without those of the GPU's state."""
    found = [attributes for name, attributes in page.tags if name == tag and attributes.get("title")]
    return {each["title"] or "": (each["class"] or "").removeprefix("u ") for each in found}


def full_node(namespaces: int) -> list[Object]:
    """A node of eight GPUs, each held by the pod of another namespace."""
    at = now()
    node, topology = gpu_machine("n", "8h100-2n-nvswitch18")
    names = [f"team-{number}" for number in range(namespaces)]
    pods = [gpu_pod(name, "train", 1, "n", at) for name in names]
    held = [allocation(gpu.uuid or "", name, "train") for gpu, name in zip(topology.gpus, names, strict=False)]
    return [node, *pods, node_gpus("n", node, held, at)]


def test_a_cell_names_its_pod_because_colours_repeat() -> None:
    marks = marks_of(page_of(full_node(8)), "b")
    hidden = Viewer(namespaces=frozenset({"team-0"}))
    service = service_of(full_node(8))
    page = Page(main_part(service.overview, service.history, PageQuery(), hidden))

    assert list(marks) == [f"GPU {number}: team-{number}/train" for number in range(8)]
    assert set(marks_of(page, "b")) == {
        "GPU 0: team-0/train",
        *(f"GPU {number}: another namespace's pod" for number in range(1, 8)),
    }


def test_namespaces_of_one_colour_have_different_corners() -> None:
    marks = set(marks_of(page_of(full_node(8)), "b").values())

    assert len({mark.split()[0] for mark in marks}) < len(marks) == 8  # by these names; 24 marks exist


def test_pending_pods_are_listed_by_priority_apart_from_gangs() -> None:
    at = now()
    urgent = gpu_pod("team", "urgent", 4, None, at, priority=1000)
    ended = {**gpu_pod("team", "ended", 4, None, at), "status": {"phase": "Succeeded"}}
    items = [
        gpu_node("n", 8),
        gpu_pod("other", "waits", 8, None, at),
        urgent,
        ended,
        *waiting_gang("team", "g", 2, 8, at),
    ]
    service = service_of(items)
    whole = Page(main_part(service.overview, service.history, PageQuery(), Viewer()))
    part = Page(main_part(service.overview, service.history, PageQuery(), Viewer(namespaces=frozenset({"team"}))))

    assert [(pod.name, pod.gpus, pod.priority) for pod in service.overview.pending] == [
        ("urgent", 4, 1000),
        ("waits", 8, 0),
    ]
    assert "2 pods pending" in whole.words
    assert "pod?namespace=other&name=waits" in {attributes.get("href") for _, attributes in whole.tags}
    assert "waits" not in part.words
    assert "1 pod of other namespaces" in part.words


def test_a_pending_pod_has_the_reason_that_the_free_gpus_show() -> None:
    at = now()
    node, topology = gpu_machine("n", "8a100-2n-pairs12")
    uuids = [gpu.uuid or "" for gpu in topology.gpus]
    drained, _ = gpu_machine("drained", "8h100-2n-nvswitch18")
    drained["spec"] = {"unschedulable": True}
    island = gpu_pod("team", "island", 4, None, at)
    island["metadata"]["annotations"] = {keys.POD_ISLAND.key: "required"}
    planned = gpu_pod("team", "planned", 8, None, at)
    planned["status"] = {"nominatedNodeName": "n"}
    items = [
        node,
        drained,
        node_gpus("n", node, [allocation(uuids[0], "team", "runs"), allocation(uuids[1], "team", "runs")], at),
        node_gpus("drained", drained, [], at),
        gpu_pod("team", "runs", 2, "n", at),
        *(gpu_pod("team", f"wants-{gpus}", gpus, None, at) for gpus in (2, 6, 7)),
        island,
        planned,
    ]
    service = service_of(items)
    page = Page(main_part(service.overview, service.history, PageQuery(), Viewer()))

    reasons = {pod.name: pod.reason for pod in service.overview.pending}
    assert reasons == {
        "wants-2": "",
        "wants-6": "",
        "wants-7": "no node has 7 GPUs known to be free; the most is 6",
        "island": "no NVLink island has 4 GPUs known to be free; the most is 2",
        "planned": "expected on n",
    }
    assert reasons["wants-7"] in page.words


def test_a_long_name_is_shortened() -> None:
    pod = gpu_pod("team", "p", 1, None, now())
    pod["status"] = {"nominatedNodeName": "n" * 100_000}

    words = page_of([gpu_node("n", 8), pod]).words

    assert f"expected on {'n' * 250}..." in words
    assert "n" * 251 not in words


def test_a_large_cluster_is_shown_by_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_page, "MAX_ROWS", 30)
    service = service_of(cluster(48, per_rack=16)["items"])
    page = Page(main_part(service.overview, service.history, PageQuery(), Viewer()))
    one = Page(main_part(service.overview, service.history, PageQuery(group="rack=r002"), Viewer()))

    assert not [each for each in page.ids() if each.startswith("node-")]
    assert "rack r002" in page.words
    assert len([each for each in one.ids() if each.startswith("node-")]) == 16


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "invalid JSON"),
        (b"{not json", "invalid JSON"),
        (b"[1, 2]", "invalid JSON, or not printed by kubectl"),
        (b'{"kind": "List", "items": []}', "no Node found"),
        (b'{"kind": "List", "items": [1]}', "an item is not a Kubernetes object"),
        (b'{"items": 7}', "not printed by kubectl"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused_with_the_command_that_prints_one(content: bytes, words: str) -> None:
    with pytest.raises(StartError) as found:
        file_service(content, "c.json")
    assert words in str(found.value)
    assert str(found.value).startswith("c.json: ")
    assert "kubectl get nodes,pods" in str(found.value)


def test_a_broken_object_is_left_out_and_named() -> None:
    broken = {"kind": "Pod", "metadata": {"name": "bad", "namespace": "team", "uid": "u"}, "spec": 7}
    service = service_of([*cluster(3)["items"], broken])

    assert service.overview.totals.nodes == 3
    assert any("team/bad" in each for each in service.overview.troubles)


class Watched:
    """Watches of a cluster that serves no TFJobs, and whose pods cannot be listed."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def status(self, _: float) -> tuple[WatchStatus, ...]:
        absent = WatchStatus("tfjobs", True, 1.0, 0, 0, "the API server does not serve tfjobs", None, served=False)
        return absent, WatchStatus("pods", True, 1.0, 0, 3, "no answer", None)


def test_kinds_that_the_cluster_does_not_serve_are_no_trouble() -> None:
    async def troubles() -> tuple[str, ...]:
        service = service_of(cluster(3)["items"])
        with service.running_watches(Watched()):
            service.apply_batch(Batch(NodeUpdate, (), ()))
            service.tick()
            return service.overview.troubles

    assert asyncio.run(troubles()) == ("pods: no answer",)


def test_an_api_server_that_cannot_be_read_is_one_message() -> None:
    refused = "GET /api/v1/pods: no answer from https://api: connection refused"
    down = [
        WatchStatus(kind, True, 60.0 + at, 0, 3, refused, None, is_unavailable=True) for at, kind in enumerate("abc")
    ]
    denied = [WatchStatus(f"kind-{at}", True, 1.0, 0, 3, "403", None) for at in range(5)]

    class Statuses(Watched):
        def status(self, _: float) -> tuple[WatchStatus, ...]:
            return (*down, *denied)

    async def troubles() -> tuple[tuple[str, ...], bool]:
        service = service_of(cluster(3)["items"])
        with service.running_watches(Statuses()):
            service.apply_batch(Batch(NodeUpdate, (), ()))
            service.tick()
            page = overview_page.overview_page(service.overview, service.history)
            return service.overview.troubles, ' data-stale=""' in page

    (first, *others), is_marked = asyncio.run(troubles())
    assert re.fullmatch(
        rf"The API server cannot be read since [0-9:]+ UTC; the page shows the cluster as it was then\. {refused}",
        first,
    )
    assert others == ["kind-0: 403", "kind-1: 403", "kind-2: 403", "2 more kinds cannot be read"]
    assert is_marked


def test_html_is_made_by_element_only() -> None:
    assert element("img", alt='"<') == '<img alt="&quot;&lt;">'
    assert element("b", text("x"), Html("<i></i>"), class_="c", hidden=None) == '<b class="c">x<i></i></b>'
    assert json.dumps(element("svg", width=1.25, viewBox="0 0 1 1")) == json.dumps(
        '<svg width="1.2" viewBox="0 0 1 1"></svg>'
    )


def test_a_gang_says_that_no_planner_leads_where_the_missing_ledger_is_certain() -> None:
    """Not where the ledgers are not listed yet, and not in a file, which may lack them."""
    view = service_of(cluster(2)["items"]).view

    def says_so(notice: str = "") -> bool:
        (gang,) = (each for each in overview(view, (), now(), notice=notice).gangs if each.phase == "queued")
        return "no planner leads" in gang.reason

    assert says_so()
    assert not says_so("From the file a.json")
    view.cache._listed.discard(LedgerUpdate)
    assert not says_so()
