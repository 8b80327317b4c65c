"""docs/examples/cluster.json.gz, the cluster that a reader without a cluster looks at."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.scheduler_core.ui.cluster_documents import cluster_text

EXAMPLE = Path(__file__).parents[3] / "docs/examples/cluster.json.gz"
RECORDED = 1_790_000_000.0  # as in docs/screenshots.py


def test_the_example_is_the_cluster_of_the_screenshots() -> None:
    """If not: `make screenshots`."""
    assert gzip.decompress(EXAMPLE.read_bytes()) == cluster_text(20, at=RECORDED)
