"""Observed placements of every kind."""

from __future__ import annotations

from scheduler_core.observe.comparison import ObservedPlacement
from tests.machines import MACHINES
from tests.scheduler_core.explain.fleets import PAIRS, QUADS
from tests.scheduler_core.observe.observed_clusters import ObservedCluster, bound, shares


def halved() -> ObservedCluster:
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return ObservedCluster({"gpu-7": QUADS, "gpu-2": QUADS}, *ran, a=(0, 1), b=(4, 5))


def last(observed: ObservedCluster) -> ObservedPlacement:
    (found,) = observed.observer.finish()
    return found


def worse() -> ObservedPlacement:
    return halved().place(bound("train-3", 4, "gpu-7"), 2, 3, 6, 7)


def good() -> ObservedPlacement:
    return halved().place(bound("train-3", 4, "gpu-2"), 0, 1, 2, 3)


def worse_by_unknown() -> ObservedPlacement:
    rtx = MACHINES["rtx4090"]()
    return ObservedCluster({"gpu-1": rtx, "gpu-2": rtx}).place(bound("infer", 2, "gpu-1"), 0, 7)


def waits() -> ObservedPlacement:
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"))
    return ObservedCluster({"gpu-7": QUADS}, *ran, a=(0, 1), b=(4, 5)).place(
        bound("train-3", 4, "gpu-7", island="required"), 2, 3, 6, 7
    )


def unknown_set() -> ObservedPlacement:
    observed = ObservedCluster({"gpu-7": QUADS}, *(bound(name, 1, "gpu-7") for name in "abc"))
    observed.pods(bound("train-3", 4, "gpu-7"))
    return last(observed)


def single() -> ObservedPlacement:
    return halved().place(bound("infer", 1, "gpu-7"), 2)


def broke_needlessly() -> ObservedPlacement:
    return halved().place(bound("infer", 1, "gpu-2"), 2)


def broke() -> ObservedPlacement:
    return ObservedCluster({"gpu-2": QUADS}).place(bound("infer", 1, "gpu-2"), 2)


def shared() -> ObservedPlacement:
    observed = halved()
    observed.pods(shares("web", 2, "gpu-7"))
    return last(observed)


def ran() -> ObservedPlacement:
    (found,) = ObservedCluster({"gpu-1": PAIRS}, bound("old", 2, "gpu-1"), old=(0, 2)).ran
    return found


def busy() -> ObservedCluster:
    """Some ran, some were placed, well and badly, and one waits for its report."""
    ran = (bound("a", 2, "gpu-7"), bound("b", 2, "gpu-7"), bound("old", 2, "gpu-1"), bound("z", 1, "gpu-1"))
    machines = {"gpu-7": QUADS, "gpu-2": QUADS, "gpu-1": PAIRS, "blind": None}
    observed = ObservedCluster(machines, *ran, a=(0, 1), b=(4, 5), old=(0, 2), z=(1,))
    claims = {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}
    observed.place(bound("train-3", 4, "gpu-7", claims), 2, 3, 6, 7)
    observed.place(bound("infer", 1, "gpu-2"), 0)
    observed.place(bound("train-4", 4, "gpu-2", island="required"), 4, 5, 6, 7)
    observed.place(bound("far", 2, "gpu-2"), 1, 2)
    observed.pods(bound("dark", 2, "blind"))
    observed.pods(bound("last", 1, "gpu-2"))
    return observed


def dark() -> ObservedCluster:
    """Nothing can be compared."""
    observed = ObservedCluster({"old": None})
    observed.pods(bound("p", 2, "old"))
    return observed
