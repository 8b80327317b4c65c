"""The dashboard about waiting: preemption, gated pods, the gang queue, limits of namespaces and capacity holds."""

from __future__ import annotations

from daemonset.dashboards.model import Dashboard, Panel, Query, Row


def dashboard() -> Dashboard:
    """Return the dashboard "Preemption and queues"."""
    return Dashboard(
        "gputopo-queues",
        "gputopo / Preemption and queues",
        "Gangs and planned pods that wait, why they wait, and the capacity that is held for them.",
        (Row("Queue", _queue()), Row("Capacity holds", _holds()), Row("Preemption", _preemption())),
    )


def _queue() -> tuple[Panel, ...]:
    return (
        Panel(
            "Gangs that wait, by phase",
            "waiting for members: members are missing. queued: the gang does not fit. held: capacity is held for it.",
            (
                Query(
                    'max by (phase) (gputopo_planner_gangs{phase=~"waiting for members|waiting|queued|held|proposed"})',
                    "{{phase}}",
                ),
            ),
            "short",
            stacked=True,
        ),
        Panel(
            "Gated pods",
            "Pods with the gate of gputopo.",
            (Query("max(gputopo_planner_gated_pods)", "pods"),),
            "short",
        ),
        Panel(
            "Age of the oldest gate",
            "The alert GputopoGateOld fires at 10 minutes.",
            (Query("max(gputopo_planner_oldest_gate_age_seconds)", "oldest gate"),),
            "s",
        ),
        Panel(
            "Gangs at a limit of their namespace",
            "queuedGangs, gatedPods, startingGangs: it is not planned. heldGpus, maxHoldAge: it holds no GPUs.",
            (Query("max by (limit) (gputopo_planner_limited_gangs)", "{{limit}}"),),
            "short",
            width=12,
            stacked=True,
        ),
        Panel(
            "Pods released without a place",
            "Pods in an hour that the planner gave back to ordinary scheduling, by reason.",
            (Query("sum by (reason) (increase(gputopo_planner_released_total[1h]))", "{{reason}}"),),
            "short",
            width=12,
        ),
    )


def _holds() -> tuple[Panel, ...]:
    return (
        Panel(
            "GPUs in capacity holds and reservations",
            "held: GPUs that are held for gangs that do not fit yet; some may still be in use. reserved: all GPUs that "
            "are reserved or held for members without a node.",
            (
                Query("max(gputopo_planner_capacity_hold_gpus)", "held"),
                Query("max(gputopo_planner_reserved_gpus)", "reserved"),
            ),
            "short",
        ),
        Panel(
            "Age of the oldest capacity hold",
            "A hold that grows old keeps GPUs free for a gang that still does not fit.",
            (Query("max(gputopo_planner_capacity_hold_age_seconds)", "oldest hold"),),
            "s",
        ),
        Panel(
            "Pods of a higher priority on held nodes",
            "Pods that came to the nodes of a hold after it began, and delay its gang.",
            (Query("max(gputopo_planner_capacity_hold_higher_priority_pods)", "pods"),),
            "short",
        ),
    )


def _preemption() -> tuple[Panel, ...]:
    return (
        Panel(
            "Preemptions for gangs",
            "Preemptions in an hour, by outcome. in-vain: pods were evicted, and the gang got no places.",
            (Query("sum by (outcome) (increase(gputopo_planner_preemptions_total[1h]))", "{{outcome}}"),),
            "short",
            stacked=True,
        ),
        Panel(
            "Pods evicted for gangs",
            "Pods in an hour that the planner evicted.",
            (Query("sum(increase(gputopo_planner_preemption_evictions_total[1h]))", "pods"),),
            "short",
        ),
        Panel(
            "GPU-hours lost by preemptions",
            "Lost work in an hour. begun: of all preemptions. won, in-vain: of preemptions with this outcome. dry-run: "
            "would be lost.",
            (Query("sum by (outcome) (increase(gputopo_planner_preemption_lost_gpu_hours_total[1h]))", "{{outcome}}"),),
            "short",
        ),
        Panel(
            "GPU-hours won by preemptions",
            "GPU-hours in an hour that gangs used on the GPUs that they got by preemption.",
            (Query("sum(increase(gputopo_planner_preemption_won_gpu_hours_total[1h]))", "GPU-hours"),),
            "short",
        ),
        Panel(
            "Nodes offered by kube-scheduler's preemption",
            "Nodes in an hour. kept: the pod gets what it requires there after the eviction. Others: why the extender "
            "dropped the node, so that no pod is evicted in vain.",
            (Query("sum by (outcome) (increase(gputopo_preemption_nodes_total[1h]))", "{{outcome}}"),),
            "short",
            width=12,
            stacked=True,
        ),
        Panel(
            "Calls of preemption",
            "Calls a second of the verb preempt, by HTTP status.",
            (
                Query(
                    'sum by (status) (rate(gputopo_extender_calls_total{verb="preempt"}[$__rate_interval]))',
                    "{{status}}",
                ),
            ),
            "reqps",
            width=12,
        ),
    )
