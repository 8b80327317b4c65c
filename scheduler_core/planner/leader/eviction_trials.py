"""Tries evictions as dry runs before the first pod is evicted: webhooks and admission policies may refuse them too."""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.crd.reservations import PlannedEviction
from gputopo.kube.client import Kube
from gputopo.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from gputopo.kube.objects import ObjectMeta

# kube-apiserver, status 400: a webhook with side effects. Whether it would refuse the eviction is not known.
_NO_DRY_RUN = "does not support dry run"


def evict_pod(kube: Kube, planned: PlannedEviction, *, dry_run: bool = False) -> None:
    """Evict a pod, or have the API server check all that an eviction needs. Raises ``KubeError``."""
    # With 0 the API server would delete the pod while its containers still run.
    grace_s = None if planned.grace_s is None else max(1, planned.grace_s)
    kube.evict(ObjectMeta(planned.name, planned.uid, planned.namespace), grace_s, dry_run=dry_run)


def find_refused_evictions(kube: Kube, evictions: Iterable[PlannedEviction]) -> dict[str, str]:
    """Return the units of which an eviction would be refused, or not answered, with the reason for people.

    Only pods with GPUs are tried: a unit may have hundreds of others, and the budgets are counted for all.
    """
    refused: dict[str, str] = {}
    unanswered: dict[str, str] = {}  # by namespace: a webhook for it fails, each time after its timeout
    for each in (each for each in evictions if each.gpus):
        if each.namespace in unanswered:
            refused.setdefault(each.unit, unanswered[each.namespace])
        if each.unit in refused:
            continue
        try:
            evict_pod(kube, each, dry_run=True)
        except (NotFoundError, ConflictError):  # the pod is gone
            continue
        except UnavailableError as error:
            refused[each.unit] = unanswered[each.namespace] = str(error)
        except KubeError as error:
            if _NO_DRY_RUN not in str(error):
                refused[each.unit] = str(error)
    return refused
