"""Ungated pods that arrive and leave as fast as they are placed, beside gangs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from tests.api_objects import Object
from tests.e2e.background import BackgroundWork
from tests.e2e.cluster import Cluster
from tests.e2e.gangs.invariant import size
from tests.e2e.gangs.members import node_of
from tests.e2e.scheduler.running import gpu_pod

NAME = "ungated"
PAUSE_S = 0.02


class Kind(NamedTuple):
    """The shape of these pods."""

    most_gpus: int = 8  # at a time, bound or waiting: the rest is for gangs
    asks: tuple[tuple[int, Mapping[str, str]], ...] = (
        (1, {}),
        (1, {}),
        (2, {"island": "required"}),
        (4, {"island": "required"}),
    )
    selector: Mapping[str, str] = MappingProxyType({})  # of nodes


class UngatedPodLoad(BackgroundWork):
    """Creates pods within the ``with`` block. ``count``: created pods."""

    def __init__(self, cluster: Cluster, seed: int, kind: Kind = Kind()) -> None:  # noqa: B008  frozen
        super().__init__(NAME, PAUSE_S)
        self.count = 0
        self.spared: frozenset[str] = frozenset()  # nodes on which no pod ends for now
        self._cluster, self._kind = cluster, kind
        self._random = Random(seed)
        self._numbers = itertools.count()

    def _turn(self) -> None:
        """Create one more pod; delete a running pod first if there are too many."""
        pods = ungated_pods(self._cluster)
        gpus, wishes = self._random.choice(self._kind.asks)
        if sum(size(each) for each in pods) + gpus > self._kind.most_gpus:
            placed = [each for each in pods if node_of(each) not in self.spared]
            running = [each for each in placed if each["status"]["phase"] == "Running"]
            if running:
                self._cluster.api.delete(self._cluster.pods(self._random.choice(running)["metadata"]["name"]))
            return
        made = gpu_pod(f"{NAME}-{next(self._numbers)}", gpus, dict(wishes), nodeSelector=dict(self._kind.selector))
        made["metadata"]["labels"] = {NAME: "yes"}
        self._cluster.create_pod(made)
        self.count += 1


def ungated_pods(cluster: Cluster) -> list[Object]:
    """Return the present pods."""
    return cluster.api.items(cluster.pods(), labelSelector=f"{NAME}=yes")
