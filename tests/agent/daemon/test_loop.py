"""The agent through hours of a node's life, with simulated time."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from agent.allocation.watch import AllocationReport
from agent.allocation.wire import HeldDevices
from agent.daemon.loop import PROBE_TIMEOUT_S, AgentLoop, IterationResult, LoopInput, Now, ProbeResult, WakeUp
from agent.daemon.metrics import AgentMetrics
from agent.daemon.settings import AgentSettings
from agent.discover import discover
from agent.publish import NodeEvent, PublishError, RestoredField
from agent.snapshot import Snapshot
from gputopo.crd.nodegpus import MAX_ALLOCATIONS, DeviceAllocation, GpuUsage, NicRate, NodeGpus, PodRef, content_hash
from gputopo.labels import decode_topology, keys
from gputopo.model import NodeTopology
from tests.agent.daemon.fake_cluster import SETTINGS, FakeNodePublisher
from tests.agent.recordings import gpu_lost, load_machine, nvml_failed, nvml_of, ports_down

EPOCH = 1_800_000_000.0  # 2027-01-15T08:00:00Z
HEALTHY = load_machine("dgx-a100")
TWO_PORTS_DOWN = ports_down(HEALTHY, 3, 0)
HEALTHY_TOPOLOGY = discover(HEALTHY).stable_facts()


class FakePublishedReader(FakeNodePublisher):
    """A publisher that can read back the published topology."""

    def read_published(self) -> NodeTopology | None:
        self._raise_if_away()
        return None if self.facts is None else decode_topology({}, self.facts.annotations)


class SimulatedAgent:
    """Runs the loop of one node like the process does; a probe takes a tenth of a second."""

    def __init__(
        self, cluster: FakeNodePublisher, snapshot: Snapshot = HEALTHY, settings: AgentSettings = SETTINGS
    ) -> None:
        self.cluster = cluster
        self.snapshot = snapshot
        self.metrics = AgentMetrics()
        self.loop = AgentLoop(settings, cluster, self.metrics)
        self.now = 0.0
        self.passes: list[float] = []
        self.inputs: list[LoopInput] = []
        self.result = IterationResult(probe=False, next_at=0.0, exit_reason=None)

    def run(self, seconds: float) -> SimulatedAgent:
        """Let that time pass, or less if the agent must exit."""
        end = self.now + seconds
        while self.result.exit_reason is None and (self.inputs or self.result.next_at <= end):
            if not self.inputs:
                self.now = max(self.now, self.result.next_at)
            self.iterate()
        if self.result.exit_reason is None:
            self.now = end
        return self

    def iterate(self) -> None:
        news, self.inputs = self.inputs, []
        self.result = self.loop.run_iteration(Now(self.now, EPOCH + self.now), news)
        if self.result.probe:
            self.passes.append(self.now)
            self.now += 0.1
            self.inputs.append(ProbeResult(self.snapshot, 0.1))

    def add_inputs(self, *news: LoopInput) -> SimulatedAgent:
        self.inputs += news
        self.iterate()
        return self

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)

    @property
    def label(self) -> str:
        assert self.cluster.facts is not None
        return self.cluster.facts.labels[keys.DEGRADED.key]


@pytest.fixture
def cluster() -> FakeNodePublisher:
    return FakeNodePublisher()


def test_a_node_is_labelled_by_its_first_pass(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster)
    assert node.loop.status.unready_reason == "nothing is published yet"

    node.run(6)

    assert cluster.facts is not None
    assert decode_topology({}, cluster.facts.annotations) == HEALTHY_TOPOLOGY
    assert cluster.state == NodeGpus(
        observed_at="2027-01-15T08:00:00Z",
        content_hash=content_hash(cluster.facts.annotations[keys.TOPOLOGY.key]),
        agent_version=cluster.state.agent_version if cluster.state else "",
        allocations=None,
        nic_rates=tuple(NicRate(nic.name, nic.rate_gbps) for nic in discover(HEALTHY).nics if nic.rate_gbps),
    )
    assert cluster.writes == ["node", "nodegpus"]
    assert node.loop.status.unready_reason is None


def test_a_restart_publishes_no_unknown_allocations_while_the_kubelet_has_not_answered_yet(
    cluster: FakeNodePublisher,
) -> None:
    node = SimulatedAgent(cluster).run(1)
    assert cluster.writes == ["node"]

    node.add_inputs(AllocationReport(frozenset()))

    assert cluster.writes == ["node", "nodegpus"]
    assert cluster.state is not None
    assert cluster.state.allocations == ()


def test_an_hour_in_which_nothing_changes_writes_only_the_heartbeat(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(3600)

    assert 55 <= len(node.passes) <= 65
    assert cluster.writes.count("node") == 1
    assert 12 <= cluster.writes.count("nodegpus") <= 14
    assert cluster.reads <= 14  # the Node is compared as often
    assert cluster.state is not None
    assert cluster.state.observed_at > "2027-01-15T08:54:00Z"
    assert cluster.events == []


def test_removed_labels_are_restored_with_the_heartbeat(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    cluster.facts = None

    node.run(330)

    assert cluster.writes.count("node") == 2


def test_each_restoration_of_keys_is_one_event(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    cluster.edited = {
        "node": (RestoredField(keys.GPUS.key), RestoredField(keys.ISLANDS.key, ("helm", "kubectl-label"))),
        "nodegpus": (RestoredField(".observedAt", ("kubectl-edit",)),),
    }

    node.run(660)

    changed = "other clients changed keys of the {} that only the agent may set: {}"
    of_node = f"{keys.GPUS.key} (by an unknown client), {keys.ISLANDS.key} (by helm and kubectl-label)"
    assert sorted(cluster.events, key=lambda event: len(event.message), reverse=True) == [
        NodeEvent("GpuTopologyRestored", changed.format("Node", of_node), warning=True),
        NodeEvent("GpuTopologyRestored", changed.format("NodeGpus", ".observedAt (by kubectl-edit)"), warning=True),
    ]
    assert node.metric("gputopo_restorations_total", object="node") == 1
    assert node.metric("gputopo_restorations_total", object="nodegpus") == 1


def test_a_link_that_goes_down_is_published_by_the_next_pass_and_recovery_after_the_hold_down(
    cluster: FakeNodePublisher,
) -> None:
    node = SimulatedAgent(cluster).run(600)
    node.snapshot = TWO_PORTS_DOWN
    node.run(70)
    assert node.label == "true"

    node.snapshot = HEALTHY
    node.run(230)
    assert node.label == "true"
    node.run(180)

    assert node.label == "false"
    assert cluster.writes.count("node") == 3
    uuid = nvml_of(HEALTHY).gpus[3].uuid
    assert cluster.events == [
        NodeEvent("GpuTopologyDegraded", f"{uuid}.nvlink: 11 of 12 NVLinks active", True),
        NodeEvent("GpuTopologyRecovered", f"{uuid}.nvlink has recovered", False),
    ]


def test_a_link_that_flaps_for_hours_costs_two_writes(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster)
    for times in range(72):
        node.snapshot = TWO_PORTS_DOWN if times % 2 else HEALTHY
        node.run(150)

    assert cluster.writes.count("node") == 2


def test_a_lost_gpu_is_published_with_its_name_and_does_not_take_the_others_down(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(60)
    node.snapshot = gpu_lost(HEALTHY, 3)
    node.add_inputs(WakeUp("lost")).run(6)

    assert cluster.facts is not None
    assert cluster.facts.labels[keys.GPUS.key] == "7"
    assert [event.reason for event in cluster.events] == ["GpuLost"]
    assert node.loop.status.published is not None
    assert node.loop.status.published.gpus[3].uuid == nvml_of(HEALTHY).gpus[3].uuid
    assert node.metric("gputopo_wakeups_total", reason="lost") == 1


def test_an_event_starts_a_pass_at_once_and_many_events_one_pass_in_five_seconds(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    passes = len(node.passes)
    node.add_inputs(WakeUp("xid"))
    assert len(node.passes) == passes + 1

    for _ in range(600):
        node.run(0.1).add_inputs(WakeUp("xid"))

    assert 11 <= len(node.passes) - passes <= 14


def test_an_event_during_a_pass_starts_another_pass(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    node.add_inputs(WakeUp("xid"))
    passes = len(node.passes)
    probed = node.inputs.pop()

    node.add_inputs(WakeUp("xid")).add_inputs(probed).run(10)

    assert len(node.passes) == passes + 1


def test_while_nvml_fails_nothing_is_written_and_after_the_grace_period_the_process_exits(
    cluster: FakeNodePublisher,
) -> None:
    node = SimulatedAgent(cluster).run(600)
    state, facts = cluster.state, cluster.facts
    node.snapshot = nvml_failed(HEALTHY, "UNKNOWN")
    node.run(100)

    assert (cluster.facts, node.result.exit_reason) == (facts, None)
    assert cluster.state is not None
    assert state is not None
    assert cluster.state.observed_at <= "2027-01-15T08:10:00Z"
    node.run(200)
    assert node.result.exit_reason is not None
    assert node.result.exit_reason.startswith("NVML has failed for 12")
    assert node.result.exit_reason.endswith("this process cannot recover: nvmlInit_v2: UNKNOWN")
    assert node.loop.status.unready_reason == "NVML fails; the published labels stay as they are: nvmlInit_v2: UNKNOWN"
    assert cluster.facts == facts
    assert node.metric("gputopo_passes_total", outcome="failed") == node.metric(
        "gputopo_source_failures_total", source="nvml"
    )


def test_a_driver_that_is_reloaded_is_waited_for(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    node.snapshot = nvml_failed(HEALTHY, "DRIVER_NOT_LOADED")
    node.run(3600)
    assert node.result.exit_reason is None
    assert (
        node.loop.status.unready_reason
        == "NVML fails; the published labels stay as they are: nvmlInit_v2: DRIVER_NOT_LOADED"
    )

    node.snapshot = HEALTHY
    node.run(15)

    assert node.loop.status.unready_reason is None
    assert cluster.writes.count("node") == 1


def test_a_driver_that_appears_late_is_published_at_once(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster, nvml_failed(HEALTHY, "DRIVER_NOT_LOADED")).run(3600)
    assert (cluster.writes, node.result.exit_reason) == ([], None)
    assert node.loop.status.unready_reason == "nothing is published yet: nvmlInit_v2: DRIVER_NOT_LOADED"

    node.snapshot = HEALTHY
    node.add_inputs(WakeUp("driver")).run(6)

    assert cluster.writes == ["node", "nodegpus"]


def test_a_driver_that_hangs_is_reported_and_the_process_exits(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    node.add_inputs(WakeUp("xid"))
    node.inputs.clear()  # the look does not come back

    node.run(PROBE_TIMEOUT_S - 10)
    assert (node.result.exit_reason, node.loop.status.unready_reason) == (None, None)
    node.run(20)

    assert node.result.exit_reason == "the probe of the machine has not ended within 300 s: the driver hangs"
    assert node.loop.status.unready_reason == node.result.exit_reason


def test_after_an_api_server_outage_of_an_hour_one_write_is_made(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    writes = len(cluster.writes)
    cluster.away = PublishError("connection refused")
    for times in range(10):
        node.snapshot = TWO_PORTS_DOWN if times % 2 else ports_down(HEALTHY, 5, 1, 2)
        node.run(300)
    node.run(600)
    assert node.loop.status.unready_reason == "a change is not published yet: connection refused"
    assert len(node.passes) > 60

    cluster.away = None
    node.run(61)

    assert sorted(cluster.writes[writes:]) == ["node", "nodegpus"]
    assert node.loop.status.unready_reason is None
    assert not node.loop.status.pending
    failures = node.metric("gputopo_publish_failures_total", object="node")
    assert failures is not None
    assert 60 < failures < 150


def test_an_event_that_cannot_be_written_is_counted_and_nothing_else_fails() -> None:
    class NoEvents(FakeNodePublisher):
        def write_event(self, event: NodeEvent) -> None:
            raise PublishError(f"no rights for {event.reason}")

    node = SimulatedAgent(NoEvents(), TWO_PORTS_DOWN).run(60)

    assert node.metric("gputopo_publish_failures_total", object="event") == 1
    assert node.loop.status.unready_reason is None


POD = HeldDevices("ml", "train-0", "main", "nvidia.com/gpu", (nvml_of(HEALTHY).gpus[0].uuid or "",))
HELD = DeviceAllocation(POD.devices[0], PodRef("ml", "train-0", "main"))


def test_an_allocation_is_published_when_it_changes_and_only_then(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    writes = len(cluster.writes)

    node.add_inputs(AllocationReport(frozenset({POD})))
    assert cluster.state is not None
    assert cluster.state.allocations == (HELD,)
    node.add_inputs(AllocationReport(frozenset({POD}), "away for a moment"))

    assert cluster.writes[writes:] == ["nodegpus"]
    assert node.loop.status.podresources_error == "away for a moment"
    assert node.metric("gputopo_gpu_holders", gpu=HELD.gpu) == 1


def with_load(busy: int, used_gib: int) -> Snapshot:
    """The machine with every GPU in use."""
    nvml = nvml_of(HEALTHY)
    gpus = tuple(replace(gpu, busy_percent=busy, memory_used_bytes=used_gib * 2**30) for gpu in nvml.gpus)
    return replace(HEALTHY, nvml=replace(nvml, gpus=gpus))


def test_the_use_of_gpus_is_published_coarse_and_measured_exactly(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster, with_load(busy=37, used_gib=4)).run(60)
    node.add_inputs(AllocationReport(frozenset({POD})))

    assert cluster.state is not None
    assert cluster.state.usage is not None
    assert [each for each in cluster.state.usage if each.gpu == HELD.gpu] == [
        GpuUsage(HELD.gpu, used_memory_percent=10, claimed_memory_percent=100, busy_percent=40)
    ]
    assert node.metric("gputopo_gpu_memory_used_bytes", gpu=HELD.gpu) == 4 * 2**30
    assert node.metric("gputopo_gpu_memory_claimed_ratio", gpu=HELD.gpu) == 1
    assert node.metric("gputopo_gpu_busy_ratio", gpu=HELD.gpu) == 0.37


def test_the_use_of_gpus_alone_causes_a_write_every_ten_minutes_at_most(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster, with_load(0, 0), replace(SETTINGS, heartbeat_s=86400.0)).run(60)
    before = len(cluster.writes)
    for minute in range(60):
        node.snapshot = with_load(0, used_gib=38 * (minute % 2))  # a job that starts and ends every other minute
        node.run(60)

    assert 3 <= len(cluster.writes) - before <= 6
    assert set(cluster.writes[before:]) == {"nodegpus"}
    assert node.loop.status.pending is False


def test_more_allocations_than_a_node_gpus_holds_are_unknown(cluster: FakeNodePublisher) -> None:
    """The API server would reject the whole object, and with it the heartbeat."""
    node = SimulatedAgent(cluster).run(600)
    uuid = HELD.gpu
    shares = frozenset({POD._replace(devices=tuple(f"{uuid}::{n}" for n in range(MAX_ALLOCATIONS + 1)))})

    node.add_inputs(AllocationReport(shares))

    assert cluster.state is not None
    assert cluster.state.allocations is None
    assert "length <= 1024" in (node.loop.status.podresources_error or "")
    assert node.metric("gputopo_podresources_up") == 0
    node.add_inputs(AllocationReport(frozenset({POD})))
    assert cluster.state.allocations == (HELD,)
    assert node.loop.status.podresources_error is None


def test_an_unknown_device_starts_a_pass_at_once(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(600)
    passes = len(node.passes)

    node.add_inputs(AllocationReport(frozenset({POD})))
    assert len(node.passes) == passes
    node.add_inputs(AllocationReport(frozenset({POD._replace(resource="nvidia.com/mig-1g.5gb", devices=("MIG-new",))})))

    assert len(node.passes) == passes + 1
    assert node.metric("gputopo_wakeups_total", reason="allocation") == 1


def test_allocations_before_the_first_pass_are_published_after_it(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).add_inputs(AllocationReport(frozenset({POD})))
    assert cluster.writes == []

    node.run(1)

    assert cluster.state is not None
    assert cluster.state.allocations == (HELD,)


def test_an_allocation_is_published_while_nvml_fails_with_the_age_of_the_last_pass(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(60)
    assert cluster.state is not None
    observed = node.loop.status.observed_at
    node.snapshot = nvml_failed(HEALTHY, "DRIVER_NOT_LOADED")
    node.run(1000)

    node.add_inputs(AllocationReport(frozenset({POD})))

    assert cluster.state.allocations == (HELD,)
    assert node.loop.status.observed_at == observed
    assert cluster.state.observed_at < "2027-01-15T08:02:00Z"


def test_a_kubelet_that_does_not_answer_is_logged_once(
    cluster: FakeNodePublisher, caplog: pytest.LogCaptureFixture
) -> None:
    node = SimulatedAgent(cluster).run(60)
    with caplog.at_level(logging.INFO, "gputopo.agent"):
        node.add_inputs(AllocationReport(None, "no socket")).add_inputs(AllocationReport(None, "no socket")).add_inputs(
            AllocationReport(frozenset())
        )

    logged = [(each.levelname, each.__dict__["fields"]) for each in caplog.records if each.message == "podresources"]
    assert logged == [("WARNING", {"error": "no socket"}), ("INFO", {"error": None})]


def test_each_pass_is_one_log_line(cluster: FakeNodePublisher, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gputopo.agent"):
        SimulatedAgent(cluster, TWO_PORTS_DOWN).run(1)

    (line,) = [each.__dict__["fields"] for each in caplog.records if each.message == "pass"]
    assert line == {
        "outcome": "ok",
        "duration_s": 0.1,
        "gpus": 8,
        "usable": 8,
        "islands": [8],
        "degraded": ["gpu3.nvlink"],
        "kept": {},
        "failed_calls": {},
        "changed": True,
    }


def test_mirrors_can_be_switched_off(cluster: FakeNodePublisher) -> None:
    SimulatedAgent(cluster, settings=replace(SETTINGS, mirror=False, socket=None)).run(1)

    assert cluster.facts is not None
    assert cluster.facts.mirrors == {}


def test_keys_of_others_are_counted(cluster: FakeNodePublisher) -> None:
    node = SimulatedAgent(cluster).run(1)

    assert node.loop.status.kept_by_others == ("nvidia.com/gpu.product",)
    assert node.metric("gputopo_keys_kept_by_others") == 1


def test_a_machine_too_large_for_an_annotation_keeps_the_published_facts(
    cluster: FakeNodePublisher, caplog: pytest.LogCaptureFixture
) -> None:
    node = SimulatedAgent(cluster).run(60)
    facts = cluster.facts
    gpus = tuple(replace(gpu, name="NVIDIA " + str(gpu.index) * 9000) for gpu in nvml_of(HEALTHY).gpus)
    node.snapshot = replace(HEALTHY, nvml=replace(nvml_of(HEALTHY), gpus=gpus), smi=None)

    node.run(120)

    assert cluster.facts == facts
    assert "encode" in {each.message for each in caplog.records}


def test_a_restarted_agent_writes_nothing_and_repeats_no_event() -> None:
    cluster = FakePublishedReader()
    SimulatedAgent(cluster, TWO_PORTS_DOWN).run(60)
    events, writes = len(cluster.events), cluster.writes.count("node")

    SimulatedAgent(cluster, TWO_PORTS_DOWN).run(60)

    assert (len(cluster.events), cluster.writes.count("node")) == (events, writes) == (1, 1)


def test_a_restarted_agent_still_reports_the_link_that_failed_before() -> None:
    cluster = FakePublishedReader()
    mesh = load_machine("4a100-1n-mesh4")
    SimulatedAgent(cluster, mesh).run(60)
    nvml = nvml_of(mesh)
    gpus = tuple(replace(gpu, nvlinks=(), nvlink_count=None) if gpu.index == 3 else gpu for gpu in nvml.gpus)
    cut = replace(mesh, nvml=replace(nvml, gpus=gpus), smi=None)

    node = SimulatedAgent(cluster, cut).run(60)

    assert node.loop.status.published is not None
    assert "gpu0-gpu3" in {each.what for each in node.loop.status.published.degraded}


def test_an_agent_that_starts_during_an_api_server_outage_reads_the_node_before_it_writes() -> None:
    cluster = FakePublishedReader()
    SimulatedAgent(cluster, gpu_lost(HEALTHY, 3)).run(60)
    cluster.away = PublishError("connection refused")
    node = SimulatedAgent(cluster, gpu_lost(HEALTHY, 3)).run(600)
    assert node.loop.status.unready_reason == "nothing is published yet: connection refused"
    assert len(node.passes) > 5
    before = cluster.facts

    cluster.away = None
    node.run(61)

    assert cluster.facts == before
    assert node.loop.status.unready_reason is None


def test_a_node_without_labels_has_no_published_topology() -> None:
    cluster = FakePublishedReader()

    SimulatedAgent(cluster).run(6)

    assert cluster.writes == ["node", "nodegpus"]
