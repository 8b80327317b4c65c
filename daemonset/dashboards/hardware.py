"""The dashboard about faults: lost GPUs, degraded links, error counters, and the agents that report them."""

from __future__ import annotations

from daemonset.dashboards.model import Dashboard, Panel, Query, Row, Variable

_RATE = "$__rate_interval"
_NODE = 'node=~"$node"'


def dashboard() -> Dashboard:
    """Return the dashboard "Hardware health"."""
    return Dashboard(
        "gputopo-hardware",
        "gputopo / Hardware health",
        "Faults of GPUs, NVLinks and memory, by node, and the agents that report them.",
        (Row("Faults now", _faults()), Row("Errors", _errors()), Row("Agents", _agents())),
        (Variable("node", "Node", "gputopo_gpu_up"),),
    )


def _faults() -> tuple[Panel, ...]:
    def count(title: str, description: str, expression: str) -> Panel:
        return Panel(title, description, (Query(expression),), "short", "stat", width=4, height=4, bad_above=1)

    return (
        count("Lost GPUs", "GPUs that the driver cannot reach.", f"count(gputopo_gpu_up{{{_NODE}}} == 0) or vector(0)"),
        count(
            "Degraded nodes",
            "Nodes with the label gputopo.io/degraded.",
            f"sum(gputopo_published_degraded{{{_NODE}}}) or vector(0)",
        ),
        count(
            "Degraded links",
            "NVLinks with fewer lanes than expected, or down.",
            f'sum(gputopo_link_state{{{_NODE}, state!="up"}}) or vector(0)',
        ),
        count(
            "Failed row remaps",
            "GPUs with a memory row that could not be remapped: replace them.",
            f"sum(gputopo_gpu_row_remap_failed{{{_NODE}}}) or vector(0)",
        ),
        count(
            "Pending row remaps",
            "GPUs with a remapped row that takes effect at the next reset.",
            f"sum(gputopo_gpu_row_remap_pending{{{_NODE}}}) or vector(0)",
        ),
        count(
            "C2C links down",
            "C2C links of Grace superchips that are down.",
            f'sum(gputopo_gpu_c2c_links{{{_NODE}, state="down"}}) or vector(0)',
        ),
        Panel(
            "Degradations",
            "Each degradation of the last pass. `gputopo show --node NODE` shows the cause.",
            (Query(f"max by (node, what) (gputopo_degraded{{{_NODE}}} == 1)"),),
            "short",
            "table",
            width=12,
        ),
        Panel(
            "Missing lanes of NVLinks",
            "Expected lanes minus active lanes, by the indices of both ends.",
            (
                Query(
                    f"max by (node, a, b) (gputopo_link_expected_lanes{{{_NODE}}} - gputopo_link_lanes{{{_NODE}}}) > 0"
                ),
            ),
            "short",
            "table",
            width=12,
        ),
    )


def _errors() -> tuple[Panel, ...]:
    return (
        Panel(
            "NVLink errors",
            "Errors a second of all NVLinks of a GPU: the ten GPUs and kinds with the most.",
            (
                Query(
                    "topk(10, sum by (node, gpu, kind) "
                    f"(rate(gputopo_gpu_nvlink_errors_total{{{_NODE}}}[{_RATE}])) > 0)",
                    "{{node}} {{gpu}} {{kind}}",
                ),
            ),
            "ops",
            width=12,
        ),
        Panel(
            "NVLinks with errors",
            "Errors in a day by link: the ten links with the most.",
            (
                Query(
                    f"topk(10, sum by (node, gpu, link) (increase(gputopo_nvlink_errors_total{{{_NODE}}}[1d])) > 0)",
                    "{{node}} {{gpu}} link {{link}}",
                ),
            ),
            "short",
            "bargauge",
            width=12,
        ),
        Panel(
            "Memory errors",
            "ECC errors in an hour. Uncorrected errors end the programs that use the memory.",
            (
                Query(
                    f"sum by (node, type) (increase(gputopo_gpu_ecc_errors_total{{{_NODE}}}[1h])) > 0",
                    "{{node}} {{type}}",
                ),
            ),
            "short",
            width=12,
        ),
        Panel(
            "Remapped memory rows",
            "Remapped rows of the GPUs of a node, by the kind of error.",
            (
                Query(
                    f"sum by (node, cause) (gputopo_gpu_remapped_rows_total{{{_NODE}}}) > 0",
                    "{{node}} {{cause}}",
                ),
            ),
            "short",
            width=12,
        ),
    )


def _agents() -> tuple[Panel, ...]:
    return (
        Panel(
            "Agents that are not ready, or whose data is not published",
            "A node is listed while /readyz of its agent fails, or a change is not published.",
            (
                Query(f"max by (node) (gputopo_ready{{{_NODE}}} == 0)", "{{node}} not ready"),
                Query(f"max by (node) (gputopo_published{{{_NODE}}} == 0)", "{{node}} not published"),
            ),
            "bool",
        ),
        Panel(
            "Age of the last observation",
            "Time since NVML last answered: the ten oldest. After 15 minutes the topology counts as unknown.",
            (Query(f"topk(10, max by (node) (time() - gputopo_observed_timestamp_seconds{{{_NODE}}}))", "{{node}}"),),
            "s",
        ),
        Panel(
            "Failing sources and NVML calls",
            "Sources without an answer, and failed NVML calls, in the last pass.",
            (
                Query(f"sum by (source) (gputopo_source_up{{{_NODE}}} == bool 0)", "{{source}}"),
                Query(f"sum by (call) (gputopo_nvml_call_failed{{{_NODE}}})", "{{call}}"),
            ),
            "short",
        ),
        Panel(
            "Duration of discovery passes",
            "Median and 99th percentile over all nodes.",
            tuple(
                Query(
                    f"histogram_quantile({quantile}, sum by (le) "
                    f"(rate(gputopo_pass_duration_seconds_bucket{{{_NODE}}}[{_RATE}])))",
                    name,
                )
                for quantile, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            "s",
        ),
        Panel(
            "Writes",
            "Writes of the agents in an hour. Each write of a Node makes schedulers retry the pods that they rejected.",
            (Query(f"sum by (object) (increase(gputopo_writes_total{{{_NODE}}}[1h]))", "{{object}}"),),
            "short",
        ),
        Panel(
            "Failed and restoring writes",
            "failed: the API server did not accept the write. restored: another client had changed keys of the agent.",
            (
                Query(
                    f"sum by (object) (increase(gputopo_publish_failures_total{{{_NODE}}}[1h]))", "failed {{object}}"
                ),
                Query(f"sum by (object) (increase(gputopo_restorations_total{{{_NODE}}}[1h]))", "restored {{object}}"),
            ),
            "short",
        ),
    )
