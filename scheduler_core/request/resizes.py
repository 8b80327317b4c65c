"""Requests of a container while its pod is resized in place. Pure.

The owner of a running pod can change its requests; until the kubelet has changed the container, kube-scheduler counts
the larger amounts, and of a resize that no kubelet can do only what is allocated.

Source: ``AggregateContainerRequests`` of k8s.io/component-helpers/resource.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec

from gputopo.quantities import parse_quantity
from scheduler_core.request.pod import ContainerResources, PodCondition

_Quantities = Mapping[str, str | int | float]


class ContainerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """An item of ``status.containerStatuses``: its resources."""

    name: str = ""
    allocated_resources: dict[str, str | int | float] | None = None
    resources: ContainerResources | None = None  # in effect


Statuses = tuple[ContainerStatus, ...] | None


class Resizes(NamedTuple):
    """Resources that the kubelet has allocated to the containers of a pod."""

    by_name: Mapping[str, ContainerStatus]
    is_infeasible: bool  # the kubelet cannot do the resize

    def resources_of(self, name: str, stated: ContainerResources) -> ContainerResources:
        """Return the resources of a container that count on its node. ``stated``: of its spec."""
        status = self.by_name.get(name)
        if status is None or status.allocated_resources is None:
            return stated
        in_effect = None if status.resources is None else status.resources.requests
        if stated.requests == status.allocated_resources == in_effect:  # of most containers
            return stated
        requests = None if self.is_infeasible else stated.requests
        return ContainerResources(None, _largest(status.allocated_resources, in_effect, requests))


def resizes_of(containers: Statuses, init_containers: Statuses, conditions: tuple[PodCondition, ...] | None) -> Resizes:
    """Return the resizes of a pod, from its ``status``."""
    by_name = {each.name: each for found in (containers, init_containers) for each in found or ()}
    infeasible = ("PodResizePending", "Infeasible")
    return Resizes(by_name, any((each.type, each.reason) == infeasible for each in conditions or ()))


def _largest(*amounts: _Quantities | None) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {}
    for each in amounts:
        for name, amount in (each or {}).items():
            if name not in found or _number(amount) > _number(found[name]):
                found[name] = amount
    return found


def _number(amount: str | float) -> Fraction:
    return parse_quantity(str(amount)) or Fraction(0)
