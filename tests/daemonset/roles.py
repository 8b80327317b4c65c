"""Rights that a manifest grants, and rights that the code uses."""

from __future__ import annotations

from collections.abc import Iterable

from gputopo.kube.rbac import Role
from tests.daemonset.tools import Object


def granted(documents: Iterable[Object]) -> dict[tuple[str, str], list[str]]:
    """(group, resource) -> verbs, over all roles. A wildcard would be a resource of that name."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for each in documents:
        for rule in each["rules"] if each["kind"] in {"Role", "ClusterRole"} else ():
            assert rule.keys() == {"apiGroups", "resources", "verbs"}
            (group,) = rule["apiGroups"]
            (resource,) = rule["resources"]
            assert (group, resource) not in verbs
            verbs[group, resource] = sorted(rule["verbs"])
    return verbs


def used(role: Role) -> dict[tuple[str, str], list[str]]:
    return {(resource.group, resource.rbac_name): sorted(verbs) for resource, verbs in role.verbs.items()}
