"""The RBAC rules of each role."""

import pytest

from gputopo.kube.rbac import (
    AGENT,
    DISRUPTION_BUDGETS,
    EVENTS,
    EXTENDER,
    GANG_SIZE_SOURCES,
    LEASES,
    LEDGER_STATUS,
    LEDGERS,
    NODE_GPUS,
    NODES,
    OBSERVER,
    PLANNER,
    PODS,
    RELEASER,
    RESERVATION_STATUS,
    RESERVATIONS,
    ROLES,
    UI,
    VOLUME_SOURCES,
    Resource,
    Role,
)


def test_the_agent_has_the_documented_permissions_only() -> None:
    assert AGENT.verbs == {
        NODES: ("get", "patch"),
        NODE_GPUS: ("create", "patch"),
        LEASES: ("get", "create", "patch"),
        EVENTS: ("create",),
    }


@pytest.mark.parametrize("role", [pytest.param(role, id=f"{place}-{role.name}") for place, role in enumerate(ROLES)])
def test_no_role_may_replace_or_delete_nodes_or_read_secrets(role: Role) -> None:
    everything = {(resource.plural, verb) for resource, verbs in role.verbs.items() for verb in verbs}

    assert everything.isdisjoint({("nodes", verb) for verb in ("update", "delete", "create", "*")})
    assert {plural for plural, _ in everything}.isdisjoint({"secrets", "configmaps", "*"})


WATCHED = dict.fromkeys((NODES, PODS, NODE_GPUS, LEASES), ("list", "watch"))


def test_the_extender_watches_and_writes_only_its_acknowledgement() -> None:
    watching = [role for role in ROLES if any("watch" in verbs for verbs in role.verbs.values())]

    assert watching == [EXTENDER, OBSERVER, UI, PLANNER]
    assert OBSERVER.verbs == WATCHED
    placed = dict.fromkeys((RESERVATIONS, LEDGERS), ("list", "watch"))
    assert EXTENDER.verbs == {**WATCHED, **placed, LEDGER_STATUS: ("patch",), EVENTS: ("create",)}


def test_the_planner_may_change_pods_and_the_ledger_but_no_spec_of_a_reservation() -> None:
    assert PLANNER.verbs == {
        NODES: ("list", "watch"),
        NODE_GPUS: ("list", "watch"),
        LEASES: ("list", "watch"),
        PODS: ("list", "watch", "get", "patch", "delete"),
        DISRUPTION_BUDGETS: ("list",),
        RESERVATIONS: ("list", "watch", "create", "delete"),
        RESERVATION_STATUS: ("patch",),
        LEDGERS: ("list", "watch", "get", "create", "update"),
        LEDGER_STATUS: ("update",),
        EVENTS: ("create",),
        **dict.fromkeys((*GANG_SIZE_SOURCES, *VOLUME_SOURCES), ("list", "watch")),
    }


def test_only_planner_and_release_patch_pods_and_only_the_planner_deletes_pods() -> None:
    assert [role for role in ROLES if role.allows(PODS, "patch")] == [RELEASER, PLANNER]
    assert [role for role in ROLES if role.allows(PODS, "delete")] == [PLANNER]


@pytest.mark.parametrize(
    ("resource", "path"),
    [
        pytest.param(NODES.path(), "/api/v1/nodes", id="all of the core group"),
        pytest.param(NODES.path("n"), "/api/v1/nodes/n", id="one"),
        pytest.param(EVENTS.path(namespace="default"), "/api/v1/namespaces/default/events", id="all of a namespace"),
        pytest.param(NODE_GPUS.path("n"), "/apis/gputopo.io/v1alpha1/nodegpus/n", id="one of a group"),
        pytest.param(Resource("pods", namespaced=True).path("p", "ns"), "/api/v1/namespaces/ns/pods/p", id="one pod"),
        pytest.param(
            LEDGER_STATUS.path("gpus"), "/apis/gputopo.io/v1alpha1/placementledgers/gpus/status", id="a subresource"
        ),
    ],
)
def test_paths(resource: str, path: str) -> None:
    assert resource == path
    assert (NODES.api_version, NODE_GPUS.api_version) == ("v1", "gputopo.io/v1alpha1")
    assert (LEDGERS.rbac_name, LEDGER_STATUS.rbac_name) == ("placementledgers", "placementledgers/status")
