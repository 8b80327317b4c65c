"""The dashboard about decisions: filter calls, rejections, predictions, gangs and the state of the programs."""

from __future__ import annotations

from daemonset.dashboards.model import Dashboard, Panel, Query, Row

_RATE = "$__rate_interval"


def dashboard() -> Dashboard:
    """Return the dashboard "Scheduling and gangs"."""
    return Dashboard(
        "gputopo-scheduling",
        "gputopo / Scheduling and gangs",
        "Decisions of the extender, gangs of the planner, and the health of both.",
        (
            Row("Extender", _extender()),
            Row("Placement", _placement()),
            Row("Gangs", _gangs()),
            Row("Health", _health()),
        ),
    )


def quantiles(metric: str, by: str, legend: str) -> tuple[Query, ...]:
    """Return the median and the 99th percentile of a histogram, by one label."""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by (le, {by}) (rate({metric}_bucket[{_RATE}])))", f"{legend}, {name}"
        )
        for quantile, name in ((0.5, "p50"), (0.99, "p99"))
    )


def _extender() -> tuple[Panel, ...]:
    slow = (
        f"sum by (verb) (rate(gputopo_extender_slow_calls_total[{_RATE}]))"
        f" / sum by (verb) (rate(gputopo_extender_calls_total[{_RATE}]))"
    )
    return (
        Panel(
            "Filter calls by result",
            "Filter calls a second. refused: no node was suitable.",
            (Query(f"sum by (result) (rate(ai_scheduler_attempts_total[{_RATE}]))", "{{result}}"),),
            "reqps",
            stacked=True,
        ),
        Panel(
            "Duration of calls",
            "From the headers of a call to its answer. kube-scheduler schedules no other pod meanwhile.",
            quantiles("gputopo_extender_call_duration_seconds", "verb", "{{verb}}"),
            "s",
        ),
        Panel(
            "Calls over 50 ms",
            "Part of the calls that take more than 50 ms. The alert GputopoExtenderSlow fires at 5%.",
            (Query(slow, "{{verb}}"),),
            "percentunit",
        ),
    )


def _placement() -> tuple[Panel, ...]:
    return (
        Panel(
            "Pods without a suitable node, by reason",
            "Filter calls a second that every node rejected, by each reason of a rejection.",
            (Query(f"sum by (reason) (rate(gputopo_rejections_total[{_RATE}]))", "{{reason}}"),),
            "reqps",
        ),
        Panel(
            "Predicted GPUs compared with allocated GPUs",
            "Pods in an hour. miss: the kubelet allocated other GPUs than predicted.",
            (Query("sum by (outcome) (increase(gputopo_predictions_total[1h]))", "{{outcome}}"),),
            "short",
            stacked=True,
        ),
        Panel(
            "Required shapes violated",
            "Pods in an hour with GPUs that do not have the shape that the pod requires.",
            (Query("sum by (reason) (increase(gputopo_required_shapes_violated_total[1h]))", "{{reason}}"),),
            "short",
            bad_above=1,
        ),
    )


def _gangs() -> tuple[Panel, ...]:
    return (
        Panel(
            "Gangs by phase",
            "Gangs and planned single pods.",
            (Query("max by (phase) (gputopo_planner_gangs) > 0", "{{phase}}"),),
            "short",
            stacked=True,
        ),
        Panel(
            "Wait of gangs",
            "From the creation of the newest member until all members are bound, or the wait ended otherwise.",
            quantiles("gang_scheduling_wait_seconds", "outcome", "{{outcome}}"),
            "s",
        ),
        Panel(
            "Duration of a plan",
            "The search for places for all members of a gang.",
            quantiles("gputopo_planner_plan_seconds", "outcome", "{{outcome}}"),
            "s",
        ),
        Panel(
            "Writes that did not succeed",
            "Writes of the planner a second, by outcome. Conflicts are expected between planners and extenders.",
            (
                Query(
                    f'sum by (outcome) (rate(gputopo_planner_writes_total{{outcome!="done"}}[{_RATE}]))', "{{outcome}}"
                ),
            ),
            "wps",
        ),
        Panel(
            "Duration of writes",
            "Time until the API server answers a write of the planner.",
            quantiles("gputopo_planner_write_seconds", "kind", "{{kind}}"),
            "s",
        ),
        Panel(
            "Placements rolled back",
            "Gangs in an hour of which not all members were bound by the deadline.",
            (Query("sum(increase(gputopo_planner_rollbacks_total[1h]))", "rolled back"),),
            "short",
        ),
    )


def _health() -> tuple[Panel, ...]:
    return (
        Panel(
            "Ready",
            "1 where the program answers calls or plans; of the planners, one leads.",
            (
                Query("gputopo_extender_ready", "extender {{pod}}"),
                Query("gputopo_planner_ready", "planner {{pod}}"),
                Query("gputopo_planner_leader", "leader {{pod}}"),
            ),
            "bool",
        ),
        Panel(
            "Age of the cluster cache",
            "The normal maximum is 90 seconds. After 120 seconds the extender rejects calls.",
            (Query("gputopo_cache_age_seconds", "{{pod}}"),),
            "s",
        ),
        Panel(
            "Failed watches and unacknowledged proposals",
            "Failed calls of the API server a second; generations of the ledger that an extender has not acknowledged.",
            (
                Query(f"sum by (pod, kind) (rate(gputopo_watch_failures_total[{_RATE}]))", "{{pod}} {{kind}}"),
                Query("gputopo_ledger_ack_lag", "unacknowledged {{pod}}"),
            ),
            "short",
        ),
    )
