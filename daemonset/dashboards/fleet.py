"""The dashboard about all GPUs of the cluster: how many are free together, held, used and reserved."""

from __future__ import annotations

from daemonset.dashboards.model import Dashboard, Panel, Query, Row, Variable

# Extenders, planners and the observer each export the islands of the whole cluster, so their series are not added.
_FREE = 'gputopo_free_islands{product=~"$product"}'


def dashboard() -> Dashboard:
    """Return the dashboard "Fleet and fragmentation"."""
    return Dashboard(
        "gputopo-fleet",
        "gputopo / Fleet and fragmentation",
        "Free NVLink islands by size, and the use of all GPUs. Large islands that become rare mean fragmentation.",
        (Row("Now", _now()), Row("Fragmentation", _fragmentation()), Row("Use", _use())),
        (Variable("product", "GPU product", "gputopo_free_islands"),),
    )


def _now() -> tuple[Panel, ...]:
    def count(title: str, description: str, expression: str, bad_above: float | None = None) -> Panel:
        return Panel(title, description, (Query(expression),), "short", "stat", width=4, height=4, bad_above=bad_above)

    return (
        count("GPU nodes", "Nodes in the snapshot of extender or planner.", "max(gputopo_table_nodes)"),
        count("GPUs", "GPUs that the agents report, lost GPUs included.", "count(gputopo_gpu_up)"),
        count("Lost GPUs", "GPUs that the driver cannot reach.", "count(gputopo_gpu_up == 0) or vector(0)", 1),
        count("Held GPUs", "GPUs that a container holds.", "count(gputopo_gpu_holders > 0) or vector(0)"),
        count("GPU pods", "Pods that request or hold GPUs.", "max(gputopo_gpu_pods)"),
        count("Stale nodes", "Nodes with a topology that no agent confirms.", "max(gputopo_table_stale_nodes)", 1),
    )


def _fragmentation() -> tuple[Panel, ...]:
    return (
        Panel(
            "Islands by free GPUs",
            "NVLink islands by the number of GPUs that are certainly free in them. Many islands with 2 and none with 8 "
            "mean that a pod with 8 GPUs waits although 8 GPUs are free.",
            (Query(f"max by (size) (sum by (pod, size) ({_FREE}))", "{{size}} free"),),
            "short",
            width=12,
            stacked=True,
        ),
        Panel(
            "Islands by free GPUs and product, now",
            "The same at this moment, for each product.",
            (Query(f"max by (product, size) ({_FREE})", "{{product}}, {{size}} free"),),
            "short",
            "bargauge",
            width=12,
        ),
        Panel(
            "Free GPUs in whole and in partly used islands",
            "Needs the observer. Only wholly free islands accept a pod that requires all GPUs of an island.",
            (Query("max by (island) (gputopo_free_gpus)", "{{island}}"),),
            "short",
            stacked=True,
        ),
        Panel(
            "Reserved GPUs",
            "Whole GPUs that planners have reserved for pods that are not on their nodes yet.",
            (Query("max by (phase) (gputopo_reserved_gpus)", "{{phase}}"),),
            "short",
            stacked=True,
        ),
        Panel(
            "Islands broken although a partly used island was free",
            "Needs the observer. Single-GPU pods that took a GPU of a wholly free island, per hour and scheduler.",
            (
                Query(
                    "sum by (scheduler) (increase(gputopo_observed_islands_broken_needlessly_total[1h]))",
                    "{{scheduler}}",
                ),
            ),
            "short",
        ),
    )


def _use() -> tuple[Panel, ...]:
    idle = "count(gputopo_gpu_holders > 0 and on (node, gpu) gputopo_gpu_busy_ratio < 0.05) or vector(0)"
    return (
        Panel(
            "Held and busy",
            "held: part of the GPUs that a container holds. busy: part of the time in which a kernel ran (mean).",
            (
                Query("count(gputopo_gpu_holders > 0) / count(gputopo_gpu_up)", "held"),
                Query("avg(gputopo_gpu_busy_ratio)", "busy"),
            ),
            "percentunit",
        ),
        Panel(
            "Held but idle GPUs",
            "GPUs that a container holds and on which a kernel ran in less than 5% of the time.",
            (Query(idle, "GPUs"),),
            "short",
        ),
        Panel(
            "GPU memory",
            "Memory of all GPUs: used, and in total.",
            (
                Query("sum(gputopo_gpu_memory_used_bytes)", "used"),
                Query("sum(gputopo_gpu_memory_bytes)", "total"),
            ),
            "bytes",
        ),
    )
