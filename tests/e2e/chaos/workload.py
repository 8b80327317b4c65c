"""Gangs and single pods that arrive and end all the time, also while the API server is away."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from random import Random

import urllib3

from tests.api_client import ApiError
from tests.e2e.background import BackgroundWork
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.invariant import size
from tests.e2e.gangs.members import BATCH, JOB_NAME, Asked, create_job, job, node_of
from tests.e2e.scheduler.running import gpu_pod

PAUSE_S = 0.3
_MOST_JOBS, _MOST_GPUS = 4, 12  # at a time: 32 GPUs are there, and some gangs must wait
_JOB_LASTS_S = 8.0
_SINGLES: tuple[tuple[int, dict[str, str]], ...] = (
    (1, {}),
    (1, {}),
    (2, {"island": "required"}),
    (4, {"island": "required"}),
)


class Workload(BackgroundWork):
    """Creates and deletes Jobs whose pods are gangs, and single pods, within the ``with`` block."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__("workload", PAUSE_S)
        self.sizes: dict[str, int] = {}  # members of each gang that was created
        self.singles = 0
        self._cluster = cluster
        self._random = Random(seed)
        self._numbers = itertools.count()
        self.is_paused = False  # nothing is created or deleted
        self._since: dict[str, float] = {}  # when all pods of a Job were bound

    def _turn(self) -> None:
        if self.is_paused:
            return
        for turn in (self._turn_jobs, self._turn_singles):
            tolerate_absence(turn)

    def _turn_jobs(self) -> None:
        """Delete a Job that ran long enough, and create one if there are few."""
        cluster = self._cluster
        jobs = [each["metadata"]["name"] for each in cluster.api.items(f"{BATCH}/{cluster.namespace}/jobs")]
        pods = cluster.api.items(cluster.pods(), labelSelector=JOB_NAME)
        for name in jobs:
            bound = sum(node_of(each) is not None for each in pods if each["metadata"]["labels"][JOB_NAME] == name)
            if bound < self.sizes[name]:
                self._since.pop(name, None)
            elif time.monotonic() > self._since.setdefault(name, time.monotonic()) + _JOB_LASTS_S:
                cluster.api.delete(f"{BATCH}/{cluster.namespace}/jobs/{name}")
        if len(jobs) < _MOST_JOBS:
            asked = Asked(self._random.randint(2, 4), 4, {"island": "required", "gang-timeout": "20s"})
            name = f"job-{next(self._numbers)}"
            self.sizes[name] = asked.size
            create_job(cluster, job(name, asked, backoffLimit=1000))

    def _turn_singles(self) -> None:
        """Create a pod; delete a running pod first if there are too many."""
        cluster = self._cluster
        pods = cluster.api.items(cluster.pods(), labelSelector="single=yes")
        gpus, wishes = self._random.choice(_SINGLES)
        if sum(map(size, pods)) + gpus > _MOST_GPUS:
            running = [each for each in pods if each["status"]["phase"] == "Running"]
            if running:
                cluster.api.delete(cluster.pods(self._random.choice(running)["metadata"]["name"]))
            return
        made = gpu_pod(f"single-{next(self._numbers)}", gpus, dict(wishes))
        made["metadata"]["labels"] = {"single": "yes"}
        cluster.create_pod(made)
        self.singles += 1


def tolerate_absence(call: Callable[[], object]) -> None:
    """Call once; a failure because the API server is away, or the object is gone, is none."""
    try:
        call()
    except (urllib3.exceptions.HTTPError, OSError):
        time.sleep(0.2)
    except ApiError as refused:
        if refused.status not in {403, 404, 409, 429, 500, 503, 504}:
            raise
