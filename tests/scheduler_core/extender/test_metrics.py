"""The extender's counters and gauges at a scrape, and that all are documented."""

from __future__ import annotations

from functools import partial

from gputopo.labels.reasons import Reason
from scheduler_core.allocation.device_plugin import PredictionResult
from scheduler_core.allocation.occupancy import Occupant
from scheduler_core.cache.events import WatchStatus
from scheduler_core.cache.node_table import snapshot_of
from scheduler_core.evaluation.prediction_check import PredictionCheck
from scheduler_core.extender.metrics import CATALOGUE, ExtenderMetrics, ExtenderStatus, status_samples
from scheduler_core.policy.policy import Policy
from scheduler_core.request.pod_request import PodProfile
from tests.machines import hgx_h100
from tests.scheduler_core.builders import NOW, occupant, record

H100 = "NVIDIA-H100-80GB-HBM3"
ON_TWO = record("n2", hgx_h100(), held={"a": (0, 1)}, pods=[occupant("a", 2)])
FLEET = (record("n1", hgx_h100(), held={}), ON_TWO, record("n3", hgx_h100(), held={}))
WATCHES = (
    WatchStatus("nodes", True, 3.0, relists=1, failures=2, error=None, lag_s=0.0),
    WatchStatus("pods", True, 7.5, relists=0, failures=0, error=None, lag_s=None),
)


def test_a_scrape_has_the_known_state() -> None:
    metrics_ = ExtenderMetrics()
    table = snapshot_of(FLEET, NOW, Policy(), generation=5)
    status = ExtenderStatus(
        True,
        WATCHES,
        pods=4,
        assumed_pods=2,
        in_flight_pods=1,
        connections_ended={"slow": 3},
        policy_invalid=True,
    )
    metrics_.register_status(lambda: status)
    metrics_.update_snapshot_samples(table)

    sample = metrics_.registry.get_sample_value
    result = {
        name: sample(name)
        for name in (
            "gputopo_extender_ready",
            "gputopo_cache_age_seconds",
            "gputopo_table_generation",
            "gputopo_table_nodes",
            "gputopo_table_stale_nodes",
            "gputopo_gpu_pods",
            "gputopo_assumed_pods",
            "gputopo_in_flight_pods",
            "gputopo_policy_invalid",
        )
    }
    assert list(result.values()) == [1, 7.5, 5, 3, 0, 4, 2, 1, 1]
    assert sample("gputopo_free_islands", {"size": "8", "product": H100}) == 2
    assert sample("gputopo_extender_connections_ended_total", {"reason": "slow"}) == 3
    assert sample("gputopo_watch_failures_total", {"kind": "nodes"}) == 2
    assert sample("gputopo_watch_lag_seconds", {"kind": "nodes"}) == 0
    assert sample("gputopo_watch_lag_seconds", {"kind": "pods"}) is None


def test_a_scrape_has_the_snapshot_that_was_counted_last() -> None:
    metrics_, pauses = ExtenderMetrics(), list[None]()
    metrics_.register_status(lambda: ExtenderStatus(ready=False))
    nodes = partial(metrics_.registry.get_sample_value, "gputopo_table_nodes")

    assert nodes() is None
    for generation, records in enumerate((FLEET[:1], FLEET)):
        snapshot = snapshot_of(records, NOW, Policy(), generation)
        for _ in range(2):  # the second time, nothing is to be done
            metrics_.update_snapshot_samples(snapshot, lambda: pauses.append(None))
        assert nodes() == len(records)
    assert len(pauses) == 1 + len(set(snapshot.states.values()))


def test_there_is_no_age_before_a_watch_has_received_data() -> None:
    silent = WATCHES[1]._replace(last_event_age_s=None)
    status = ExtenderStatus(ready=False, watches=(WATCHES[0], silent))

    assert "gputopo_cache_age_seconds" not in {name for name, _, _ in status_samples(status)}
    assert ("gputopo_watch_age_seconds", ("pods",)) not in {
        (name, labels) for name, labels, _ in status_samples(status)
    }


def test_predictions_are_counted_by_outcome_and_broken_predictions_by_reason() -> None:
    counted, pod = ExtenderMetrics(), Occupant("u", "team", "p", PodProfile())
    for check, broken in ((PredictionResult.HIT, None), (PredictionResult.MISS, Reason.ISLAND), (None, None)):
        counted.count_prediction(PredictionCheck(pod, "n", None, 3, check, broken))

    sample = counted.registry.get_sample_value
    outcomes = [sample("gputopo_predictions_total", {"outcome": each}) for each in ("hit", "miss", "unpredicted")]
    assert outcomes == [1, 1, 1]
    assert sample("gputopo_required_shapes_violated_total", {"reason": "island"}) == 1


def test_every_metric_is_described_and_nothing_else_is() -> None:
    counted = ExtenderMetrics()
    counted.register_status(lambda: ExtenderStatus(ready=True, watches=WATCHES))
    counted.update_snapshot_samples(snapshot_of(FLEET, NOW, Policy()))
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in counted.registry.collect()
    }

    assert names == {name for name, _, _, _ in CATALOGUE.described()}
    assert all(len(meaning) > 10 and meaning.endswith(".") for _, _, _, meaning in CATALOGUE.described())
    assert sum(map(len, CATALOGUE)) == len(names)
