"""The agent through hours of a node's life, with a clock that is turned by hand."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from agent.allocation.watch import Reading
from agent.allocation.wire import Held
from agent.daemon.loop import STUCK_S, Loop, News, Now, Probed, Step, Woken
from agent.daemon.metrics import Metrics
from agent.daemon.settings import Settings
from agent.discover import discover
from agent.publish import Event, PublishError
from agent.snapshot import Snapshot
from gputopo.crd.nodegpus import Allocation, NodeGpus, PodRef, content_hash
from gputopo.labels import decode, keys
from gputopo.model import NodeTopology
from tests.agent.daemon.fake_cluster import SETTINGS, Cluster
from tests.agent.recordings import broken, lanes_down, lost, machine, nvml_of

EPOCH = 1_800_000_000.0  # 2027-01-15T08:00:00Z
WELL = machine("dgx-a100")
DOWN = lanes_down(WELL, 3, 0)
WELL_TOPOLOGY = discover(WELL).slow()


class RememberingCluster(Cluster):
    """One that can be asked what is published."""

    def recall(self) -> NodeTopology | None:
        self._there()
        return None if self.facts is None else decode({}, self.facts.annotations)


class Node:
    """A node whose agent is turned as the process would turn it; a look takes a tenth of a second."""

    def __init__(self, cluster: Cluster, snapshot: Snapshot = WELL, settings: Settings = SETTINGS) -> None:
        self.cluster = cluster
        self.snapshot = snapshot
        self.metrics = Metrics()
        self.loop = Loop(settings, cluster, self.metrics)
        self.now = 0.0
        self.looks: list[float] = []
        self.news: list[News] = []
        self.step = Step(probe=False, until=0.0, end=None)

    def run(self, seconds: float) -> Node:
        """Let that time pass, or less where the agent wants to end."""
        end = self.now + seconds
        while self.step.end is None and (self.news or self.step.until <= end):
            if not self.news:
                self.now = max(self.now, self.step.until)
            self.turn()
        if self.step.end is None:
            self.now = end
        return self

    def turn(self) -> None:
        news, self.news = self.news, []
        self.step = self.loop.turn(Now(self.now, EPOCH + self.now), news)
        if self.step.probe:
            self.looks.append(self.now)
            self.now += 0.1
            self.news.append(Probed(self.snapshot, 0.1))

    def tell(self, *news: News) -> Node:
        self.news += news
        self.turn()
        return self

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    @property
    def label(self) -> str:
        assert self.cluster.facts is not None
        return self.cluster.facts.labels[keys.DEGRADED.key]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_node_is_labelled_by_its_first_look(cluster: Cluster) -> None:
    node = Node(cluster)
    assert node.loop.status.unready == "nothing is published yet"

    node.run(1)

    assert cluster.facts is not None
    assert decode({}, cluster.facts.annotations) == WELL_TOPOLOGY
    assert cluster.state == NodeGpus(
        observed_at="2027-01-15T08:00:00Z",
        content_hash=content_hash(cluster.facts.annotations[keys.TOPOLOGY.key]),
        agent_version=cluster.state.agent_version if cluster.state else "",
        allocations=None,
    )
    assert cluster.writes == ["node", "nodegpus"]
    assert node.loop.status.unready is None


def test_an_hour_in_which_nothing_changes_writes_only_the_heartbeat(cluster: Cluster) -> None:
    node = Node(cluster).run(3600)

    assert 55 <= len(node.looks) <= 65
    assert cluster.writes.count("node") == 1
    assert 12 <= cluster.writes.count("nodegpus") <= 14
    assert cluster.reads <= 14  # the Node is compared as often
    assert cluster.state is not None
    assert cluster.state.observed_at > "2027-01-15T08:54:00Z"
    assert cluster.events == []


def test_labels_that_somebody_removed_come_back_with_the_heartbeat(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    cluster.facts = None

    node.run(330)

    assert cluster.writes.count("node") == 2


def test_a_link_that_goes_down_is_published_by_the_next_look_and_recovery_is_late(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    node.snapshot = DOWN
    node.run(70)
    assert node.label == "true"

    node.snapshot = WELL
    node.run(230)
    assert node.label == "true"
    node.run(180)

    assert node.label == "false"
    assert cluster.writes.count("node") == 3
    uuid = nvml_of(WELL).gpus[3].uuid
    assert cluster.events == [
        Event("GpuTopologyDegraded", f"{uuid}.nvlink: 11 of 12 NVLinks active", True),
        Event("GpuTopologyRecovered", f"{uuid}.nvlink is well again", False),
    ]


def test_a_link_that_flaps_for_hours_costs_two_writes(cluster: Cluster) -> None:
    node = Node(cluster)
    for times in range(72):
        node.snapshot = DOWN if times % 2 else WELL
        node.run(150)

    assert cluster.writes.count("node") == 2


def test_a_lost_gpu_is_published_with_its_name_and_does_not_take_the_others_down(cluster: Cluster) -> None:
    node = Node(cluster).run(60)
    node.snapshot = lost(WELL, 3)
    node.tell(Woken("lost")).run(6)

    assert cluster.facts is not None
    assert cluster.facts.labels[keys.GPUS.key] == "7"
    assert [event.reason for event in cluster.events] == ["GpuLost"]
    assert node.loop.status.published is not None
    assert node.loop.status.published.gpus[3].uuid == nvml_of(WELL).gpus[3].uuid
    assert node.metric("gputopo_wakeups_total", reason="lost") == 1


def test_an_event_makes_a_look_at_once_and_a_storm_of_them_one_in_five_seconds(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    looks = len(node.looks)
    node.tell(Woken("xid"))
    assert len(node.looks) == looks + 1

    for _ in range(600):
        node.run(0.1).tell(Woken("xid"))

    assert 11 <= len(node.looks) - looks <= 14


def test_an_event_during_a_look_makes_another_one(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    node.tell(Woken("xid"))
    looks = len(node.looks)
    probed = node.news.pop()

    node.tell(Woken("xid")).tell(probed).run(10)

    assert len(node.looks) == looks + 1


def test_while_nvml_fails_nothing_is_written_and_after_the_grace_the_process_ends(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    state, facts = cluster.state, cluster.facts
    node.snapshot = broken(WELL, "UNKNOWN")
    node.run(100)

    assert (cluster.facts, node.step.end) == (facts, None)
    assert cluster.state is not None
    assert state is not None
    assert cluster.state.observed_at <= "2027-01-15T08:10:00Z"
    node.run(200)
    assert node.step.end is not None
    assert node.step.end.startswith("NVML fails for 12")
    assert node.step.end.endswith("this process cannot recover: nvmlInit_v2: UNKNOWN")
    assert node.loop.status.unready == "NVML fails, and what was published stays: nvmlInit_v2: UNKNOWN"
    assert cluster.facts == facts
    assert node.metric("gputopo_passes_total", outcome="failed") == node.metric(
        "gputopo_source_failures_total", source="nvml"
    )


def test_a_driver_that_is_reloaded_is_waited_for(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    node.snapshot = broken(WELL, "DRIVER_NOT_LOADED")
    node.run(3600)
    assert node.step.end is None
    assert node.loop.status.unready == "NVML fails, and what was published stays: nvmlInit_v2: DRIVER_NOT_LOADED"

    node.snapshot = WELL
    node.run(15)

    assert node.loop.status.unready is None
    assert cluster.writes.count("node") == 1


def test_a_driver_that_appears_late_is_published_at_once(cluster: Cluster) -> None:
    node = Node(cluster, broken(WELL, "DRIVER_NOT_LOADED")).run(3600)
    assert (cluster.writes, node.step.end) == ([], None)
    assert node.loop.status.unready == "nothing is published yet: nvmlInit_v2: DRIVER_NOT_LOADED"

    node.snapshot = WELL
    node.tell(Woken("driver")).run(6)

    assert cluster.writes == ["node", "nodegpus"]


def test_a_driver_that_hangs_is_told_and_ends_the_process(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    node.tell(Woken("xid"))
    node.news.clear()  # the look does not come back

    node.run(STUCK_S - 10)
    assert (node.step.end, node.loop.status.unready) == (None, None)
    node.run(20)

    assert node.step.end == "a look at the machine has not ended within 300 s: the driver hangs"
    assert node.loop.status.unready == node.step.end


def test_an_api_server_that_is_away_for_an_hour_is_caught_up_with_one_write(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    writes = len(cluster.writes)
    cluster.away = PublishError("connection refused")
    for times in range(10):
        node.snapshot = DOWN if times % 2 else lanes_down(WELL, 5, 1, 2)
        node.run(300)
    node.run(600)
    assert node.loop.status.unready == "what changed is not published yet: connection refused"
    assert len(node.looks) > 60

    cluster.away = None
    node.run(61)

    assert sorted(cluster.writes[writes:]) == ["node", "nodegpus"]
    assert node.loop.status.unready is None
    assert not node.loop.status.behind
    failures = node.metric("gputopo_publish_failures_total", object="node")
    assert failures is not None
    assert 60 < failures < 150


def test_an_event_that_cannot_be_told_is_counted_and_stops_nothing() -> None:
    class NoEvents(Cluster):
        def announce(self, event: Event) -> None:
            raise PublishError(f"no rights for {event.reason}")

    node = Node(NoEvents(), DOWN).run(60)

    assert node.metric("gputopo_publish_failures_total", object="event") == 1
    assert node.loop.status.unready is None


POD = Held("ml", "train-0", "main", "nvidia.com/gpu", (nvml_of(WELL).gpus[0].uuid or "",))
HELD = Allocation(POD.devices[0], PodRef("ml", "train-0", "main"))


def test_an_allocation_is_published_when_it_changes_and_only_then(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    writes = len(cluster.writes)

    node.tell(Reading(frozenset({POD})))
    assert cluster.state is not None
    assert cluster.state.allocations == (HELD,)
    node.tell(Reading(frozenset({POD}), "away for a moment"))

    assert cluster.writes[writes:] == ["nodegpus"]
    assert node.loop.status.podresources == "away for a moment"
    assert node.metric("gputopo_gpu_holders", gpu=HELD.gpu) == 1


def test_a_device_that_is_not_known_is_looked_for_at_once(cluster: Cluster) -> None:
    node = Node(cluster).run(600)
    looks = len(node.looks)

    node.tell(Reading(frozenset({POD})))
    assert len(node.looks) == looks
    node.tell(Reading(frozenset({POD._replace(resource="nvidia.com/mig-1g.5gb", devices=("MIG-new",))})))

    assert len(node.looks) == looks + 1
    assert node.metric("gputopo_wakeups_total", reason="allocation") == 1


def test_allocations_that_come_before_the_first_look_wait_for_it(cluster: Cluster) -> None:
    node = Node(cluster).tell(Reading(frozenset({POD})))
    assert cluster.writes == []

    node.run(1)

    assert cluster.state is not None
    assert cluster.state.allocations == (HELD,)


def test_an_allocation_is_published_while_nvml_fails_with_the_age_of_the_last_look(cluster: Cluster) -> None:
    node = Node(cluster).run(60)
    assert cluster.state is not None
    observed = node.loop.status.observed_at
    node.snapshot = broken(WELL, "DRIVER_NOT_LOADED")
    node.run(1000)

    node.tell(Reading(frozenset({POD})))

    assert cluster.state.allocations == (HELD,)
    assert node.loop.status.observed_at == observed
    assert cluster.state.observed_at < "2027-01-15T08:02:00Z"


def test_a_kubelet_that_does_not_answer_is_told_in_the_log_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(cluster).run(60)
    with caplog.at_level(logging.INFO, "gputopo.agent"):
        node.tell(Reading(None, "no socket")).tell(Reading(None, "no socket")).tell(Reading(frozenset()))

    told = [(each.levelname, each.__dict__["fields"]) for each in caplog.records if each.message == "podresources"]
    assert told == [("WARNING", {"error": "no socket"}), ("INFO", {"error": None})]


def test_each_look_is_one_line(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gputopo.agent"):
        Node(cluster, DOWN).run(1)

    (line,) = [each.__dict__["fields"] for each in caplog.records if each.message == "pass"]
    assert line == {
        "outcome": "ok",
        "duration_s": 0.1,
        "gpus": 8,
        "usable": 8,
        "islands": [8],
        "degraded": ["gpu3.nvlink"],
        "kept": {},
        "changed": True,
    }


def test_mirrors_can_be_switched_off(cluster: Cluster) -> None:
    Node(cluster, settings=replace(SETTINGS, mirror=False, socket=None)).run(1)

    assert cluster.facts is not None
    assert cluster.facts.mirrors == {}


def test_keys_of_others_are_counted(cluster: Cluster) -> None:
    node = Node(cluster).run(1)

    assert node.loop.status.kept_by_others == ("nvidia.com/gpu.product",)
    assert node.metric("gputopo_keys_kept_by_others") == 1


def test_a_machine_that_does_not_fit_into_an_annotation_keeps_what_is_published(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(cluster).run(60)
    facts = cluster.facts
    gpus = tuple(replace(gpu, name="NVIDIA " + str(gpu.index) * 9000) for gpu in nvml_of(WELL).gpus)
    node.snapshot = replace(WELL, nvml=replace(nvml_of(WELL), gpus=gpus), smi=None)

    node.run(120)

    assert cluster.facts == facts
    assert "encode" in {each.message for each in caplog.records}


def test_an_agent_that_starts_anew_writes_nothing_and_tells_nothing_twice() -> None:
    cluster = RememberingCluster()
    Node(cluster, DOWN).run(60)
    told, writes = len(cluster.events), cluster.writes.count("node")

    Node(cluster, DOWN).run(60)

    assert (len(cluster.events), cluster.writes.count("node")) == (told, writes) == (1, 1)


def test_an_agent_that_starts_anew_knows_of_the_link_that_died_before() -> None:
    cluster = RememberingCluster()
    mesh = machine("4a100-1n-mesh4")
    Node(cluster, mesh).run(60)
    nvml = nvml_of(mesh)
    gpus = tuple(replace(gpu, nvlinks=(), nvlink_count=None) if gpu.index == 3 else gpu for gpu in nvml.gpus)
    cut = replace(mesh, nvml=replace(nvml, gpus=gpus), smi=None)

    node = Node(cluster, cut).run(60)

    assert node.loop.status.published is not None
    assert "gpu0-gpu3" in {each.what for each in node.loop.status.published.degraded}


def test_an_agent_that_starts_while_the_api_server_is_away_recalls_before_it_writes() -> None:
    cluster = RememberingCluster()
    Node(cluster, lost(WELL, 3)).run(60)
    cluster.away = PublishError("connection refused")
    node = Node(cluster, lost(WELL, 3)).run(600)
    assert node.loop.status.unready == "nothing is published yet: connection refused"
    assert len(node.looks) > 5
    before = cluster.facts

    cluster.away = None
    node.run(61)

    assert cluster.facts == before
    assert node.loop.status.unready is None


def test_an_empty_node_has_nothing_to_recall() -> None:
    cluster = RememberingCluster()

    Node(cluster).run(1)

    assert cluster.writes == ["node", "nodegpus"]
