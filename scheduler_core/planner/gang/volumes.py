"""The nodes that volumes of pods allow: node affinity of bound volumes, topologies of storage classes. Pure.

Source: the plugin VolumeBinding of kube-scheduler. What it decides by the free volumes of a cluster (storage classes
without a provisioner) or by the driver alone (attach limits, storage capacity) is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from scheduler_core.cache.events import Batch, removed_keys
from scheduler_core.cache.full_pods import MAX_RULES, MAX_VALUES
from scheduler_core.planner.gang.member import Member
from scheduler_core.request.pod import NODE_NAME, RequiredTerm, RequiredTerms, Requirement

STATIC_VOLUMES = "volumes of a storage class without a provisioner"
TOO_MANY_VOLUMES = "more volume claims, or longer rules of volumes, than are checked"
SELECTED_NODE = "volume.kubernetes.io/selected-node"  # by kube-scheduler, for a volume that is being provisioned
NO_PROVISIONER = "kubernetes.io/no-provisioner"
MAX_CLAIMS = 64  # of a pod
_NOT_LISTED = "its volume claims, or the volumes and storage classes of the cluster, are not known yet"


class ClaimUpdate(NamedTuple):
    """A PersistentVolumeClaim. Its key is NAMESPACE/NAME."""

    key: str
    volume: str | None  # None: not bound
    storage_class: str
    selected_node: str | None
    is_terminating: bool
    is_lost: bool  # its volume is gone


class VolumeUpdate(NamedTuple):
    """A PersistentVolume. Its key is its name."""

    key: str
    affinity: RequiredTerms | None  # None: it can be used everywhere


class StorageClassUpdate(NamedTuple):
    """A StorageClass. Its key is its name."""

    key: str
    waits_for_pod: bool  # WaitForFirstConsumer
    provisions: bool
    topologies: RequiredTerms | None  # None: it provisions everywhere


class VolumeRules(NamedTuple):
    """The rules that follow from all claims of a pod."""

    terms: tuple[RequiredTerms, ...] = ()  # all must match a node; sorted, without duplicates
    blocked: str | None = None  # why no node fits for now
    unchecked: str | None = None  # a rule that only kube-scheduler checks


class VolumeIndex:
    """Claims, volumes and storage classes as last seen. For one thread."""

    def __init__(self) -> None:
        self._objects: dict[type[Any], dict[str, Any]] = {}

    def apply_batch(self, batch: Batch[Any]) -> frozenset[str] | None:
        """Apply a batch of one of the three kinds. Return the keys of changed claims; None: any claim may be affected.

        ``batch.kind``: ``ClaimUpdate``, ``VolumeUpdate`` or ``StorageClassUpdate``.
        """
        known = self._objects.get(batch.kind)
        changed = removed_keys(batch, known or {}) | {each.key for each in batch.updates}
        if known is None or batch.is_full_list:
            known = self._objects[batch.kind] = {}
        for key in changed:
            known.pop(key, None)
        known.update((each.key, each) for each in batch.updates)
        return frozenset(changed) if batch.kind is ClaimUpdate and not batch.is_full_list else None

    def rules_of(self, namespace: str, claims: Iterable[str]) -> VolumeRules:
        """Return the rules of a pod with these claims."""
        names = tuple(claims)
        if not names:
            return VolumeRules()
        if len(self._objects) < len(VOLUME_KINDS):
            return VolumeRules(blocked=_NOT_LISTED)
        if len(names) > MAX_CLAIMS:
            return VolumeRules(unchecked=TOO_MANY_VOLUMES)
        found = [self._claim_rules(namespace, name) for name in names]
        blocked = next((each.blocked for each in found if each.blocked is not None), None)
        unchecked = next((each.unchecked for each in found if each.unchecked is not None), None)
        by_text = {msgspec.json.encode(term): term for each in found for term in each.terms}
        terms = tuple(by_text[text] for text in sorted(by_text))
        if _is_too_long(terms):
            return VolumeRules(blocked=blocked, unchecked=TOO_MANY_VOLUMES)
        return VolumeRules(terms, blocked, unchecked)

    def _claim_rules(self, namespace: str, name: str) -> VolumeRules:
        claim: ClaimUpdate | None = self._objects[ClaimUpdate].get(f"{namespace}/{name}")
        if claim is None:
            return VolumeRules(blocked=f"its volume claim {name} does not exist")
        if claim.is_terminating or claim.is_lost:
            return VolumeRules(
                blocked=f"its volume claim {name} {'is being deleted' if not claim.is_lost else 'is lost'}"
            )
        if claim.volume is not None:
            return self._bound_rules(name, claim.volume)
        return self._unbound_rules(name, claim)

    def _bound_rules(self, name: str, volume: str) -> VolumeRules:
        found: VolumeUpdate | None = self._objects[VolumeUpdate].get(volume)
        if found is None:
            return VolumeRules(blocked=f"the volume {volume} of its volume claim {name} does not exist")
        return VolumeRules() if found.affinity is None else VolumeRules((found.affinity,))

    def _unbound_rules(self, name: str, claim: ClaimUpdate) -> VolumeRules:
        of: StorageClassUpdate | None = self._objects[StorageClassUpdate].get(claim.storage_class)
        if of is None and claim.storage_class:
            return VolumeRules(
                blocked=f"its volume claim {name} is not bound: there is no storage class {claim.storage_class}"
            )
        if of is None or not of.waits_for_pod:
            return VolumeRules(blocked=f"its volume claim {name} is not bound yet")
        if not of.provisions:
            return VolumeRules(unchecked=STATIC_VOLUMES)
        terms = () if of.topologies is None else (of.topologies,)
        return VolumeRules(terms if claim.selected_node is None else (*terms, _node_term(claim.selected_node)))


def with_volume_rules(member: Member, volumes: VolumeIndex) -> Member:
    """Return the gated member with the rules that follow from its volume claims, in place of earlier ones."""
    if member.rules is None or not member.claims:
        return member
    found = volumes.rules_of(member.namespace, member.claims)
    unplanned = (*member.rules.unchecked, *([] if found.unchecked is None else [found.unchecked]))
    return member._replace(
        rules=msgspec.structs.replace(member.rules, volumes=found.terms),
        blocked=found.blocked,
        unplanned=unplanned if member.asks_for_gpus else (),
    )


VOLUME_KINDS = (ClaimUpdate, VolumeUpdate, StorageClassUpdate)


def _node_term(node: str) -> RequiredTerms:
    return RequiredTerms((RequiredTerm(match_fields=(Requirement(NODE_NAME, "In", (node,)),)),))


def _is_too_long(terms: Iterable[RequiredTerms]) -> bool:
    requirements = [
        each
        for of in terms
        for term in of.node_selector_terms or ()
        for each in (*(term.match_expressions or ()), *(term.match_fields or ()))
    ]
    return len(requirements) > MAX_RULES or sum(len(each.values or ()) for each in requirements) > MAX_VALUES
