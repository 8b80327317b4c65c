"""The published protocol on the public trace; skipped without the trace."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from scheduler_core.policy.policy import Policy
from scheduler_core.simulation.hosts import SimulatedCluster, read_nodes
from scheduler_core.simulation.policies import run_policy
from scheduler_core.simulation.workload import draw_jobs, read_jobs

TRACES = Path(__file__).parents[4] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside this checkout")


@pytest.mark.parametrize(
    ("policy", "published"), [("random", 87.47), ("dot-product", 90.85), ("best-fit", 93.08), ("fgd", 95.39)]
)
def test_published_allocation_is_reproduced(policy: str, published: float) -> None:
    """On ``default``, one seed of ten: their standard deviation is 0.2."""
    specs = read_nodes((TRACES / "openb_node_list_gpu_node.csv").read_text())
    kinds = read_jobs((TRACES / "openb_pod_list_default.csv").read_text())
    asked = draw_jobs(kinds, SimulatedCluster(specs).capacity, 1.3, Random(42))

    assert 100 * run_policy(policy, specs, asked, Policy(), 42).allocated == pytest.approx(published, abs=0.7)
