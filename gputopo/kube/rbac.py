"""The roles: which part of gputopo may call what. Tests compare the RBAC manifests with this table.

A ``Kube`` is opened with a role and refuses every call that the role does not list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gputopo.crd import nodegpus, reservations
from gputopo.labels.keys import API_GROUP


class Resource(NamedTuple):
    """A resource of the API server, as in URLs and RBAC."""

    plural: str
    group: str = ""  # "" is the core group
    version: str = "v1"
    namespaced: bool = False
    subresource: str = ""  # "status"

    @property
    def rbac_name(self) -> str:
        """Return the name in RBAC: "nodes", "placementledgers/status"."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def api_version(self) -> str:
        """Return the apiVersion of manifests: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str | None = None, namespace: str | None = None) -> str:
        """Return the URL path of an object, or of all objects of a namespace, or of all namespaces."""
        root = f"/apis/{self.group}" if self.group else "/api"
        space = f"/namespaces/{namespace}" if namespace is not None else ""
        one = "" if name is None else f"/{name}/{self.subresource}".rstrip("/")
        return f"{root}/{self.version}{space}/{self.plural}{one}"


NODES = Resource("nodes")
NAMESPACES = Resource("namespaces")
PODS = Resource("pods", namespaced=True)
EVICTIONS = PODS._replace(subresource="eviction")
DISRUPTION_BUDGETS = Resource("poddisruptionbudgets", "policy", namespaced=True)
EVENTS = Resource("events", namespaced=True)
NODE_GPUS = Resource(nodegpus.PLURAL, API_GROUP, nodegpus.VERSION)
RESERVATIONS = Resource(reservations.RESERVATIONS, API_GROUP, reservations.VERSION, namespaced=True)
RESERVATION_STATUS = RESERVATIONS._replace(subresource="status")
LEDGERS = Resource(reservations.LEDGERS, API_GROUP, reservations.VERSION)
LEDGER_STATUS = LEDGERS._replace(subresource="status")
# Written by the topology updater of Node Feature Discovery, one object for each node.
NODE_RESOURCE_TOPOLOGIES = Resource("noderesourcetopologies", "topology.node.k8s.io", "v1alpha2")
NODE_FEATURES = Resource("nodefeatures", "nfd.k8s-sigs.io", "v1alpha1", namespaced=True)
LEASES = Resource("leases", "coordination.k8s.io", namespaced=True)
TOKEN_REVIEWS = Resource("tokenreviews", "authentication.k8s.io")
ACCESS_REVIEWS = Resource("subjectaccessreviews", "authorization.k8s.io")
DEFINITIONS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
# Volumes, which restrict the nodes of their pods.
CLAIMS = Resource("persistentvolumeclaims", namespaced=True)
VOLUMES = Resource("persistentvolumes")
STORAGE_CLASSES = Resource("storageclasses", "storage.k8s.io")
VOLUME_SOURCES = (CLAIMS, VOLUMES, STORAGE_CLASSES)
# Requests for nodes to the Kubernetes cluster autoscaler, and the pods that they are for.
PROVISIONING_REQUESTS = Resource("provisioningrequests", "autoscaling.x-k8s.io", namespaced=True)
POD_TEMPLATES = Resource("podtemplates", namespaced=True)
# Objects of other projects that contain the size of a gang; read if the API server serves them.
JOBS = Resource("jobs", "batch", namespaced=True)
JOBSETS = Resource("jobsets", "jobset.x-k8s.io", "v1alpha2", namespaced=True)
# Kubernetes' own PodGroups: 1.36 serves only v1alpha2; 1.37 serves v1beta1 and v1alpha3, if enabled.
GROUPS = Resource("podgroups", "scheduling.k8s.io", "v1beta1", namespaced=True)
GROUPS_ALPHA3 = GROUPS._replace(version="v1alpha3")
GROUPS_ALPHA2 = GROUPS._replace(version="v1alpha2")
POD_GROUPS = Resource("podgroups", "scheduling.x-k8s.io", "v1alpha1", namespaced=True)
OLD_POD_GROUPS = Resource("podgroups", "scheduling.sigs.k8s.io", "v1alpha1", namespaced=True)
VOLCANO_GROUPS = Resource("podgroups", "scheduling.volcano.sh", "v1beta1", namespaced=True)
PYTORCH_JOBS = Resource("pytorchjobs", "kubeflow.org", namespaced=True)
TF_JOBS = Resource("tfjobs", "kubeflow.org", namespaced=True)
XGBOOST_JOBS = Resource("xgboostjobs", "kubeflow.org", namespaced=True)
PADDLE_JOBS = Resource("paddlejobs", "kubeflow.org", namespaced=True)
JAX_JOBS = Resource("jaxjobs", "kubeflow.org", namespaced=True)
MPI_JOBS = Resource("mpijobs", "kubeflow.org", namespaced=True)
MPI_JOBS_V2 = Resource("mpijobs", "kubeflow.org", "v2beta1", namespaced=True)
TRAIN_JOBS = Resource("trainjobs", "trainer.kubeflow.org", "v1alpha1", namespaced=True)
GANG_SIZE_SOURCES = (
    JOBS,
    JOBSETS,
    GROUPS,
    GROUPS_ALPHA3,
    GROUPS_ALPHA2,
    POD_GROUPS,
    OLD_POD_GROUPS,
    VOLCANO_GROUPS,
    PYTORCH_JOBS,
    TF_JOBS,
    XGBOOST_JOBS,
    PADDLE_JOBS,
    JAX_JOBS,
    MPI_JOBS,
    MPI_JOBS_V2,
    TRAIN_JOBS,
)


class Role(NamedTuple):
    """The calls of a part of gputopo. Server-side apply of an object that may not exist needs patch and create."""

    name: str
    verbs: Mapping[Resource, tuple[str, ...]]

    def allows(self, resource: Resource, verb: str) -> bool:
        """Return whether the role lists a verb of a resource."""
        return verb in self.verbs.get(resource, ())


# It reads no NodeGpus: those of other nodes name the pods of all tenants, and RBAC cannot restrict the names.
AGENT = Role(
    "agent",
    {
        NODES: ("get", "patch"),
        NODE_GPUS: ("create", "patch"),
        LEASES: ("get", "create", "patch"),
        EVENTS: ("create",),
    },
)
# `--publish nodefeature`: NFD's master writes the Node, the agent only reads its uid.
AGENT_WITH_NFD = Role(
    "agent",
    {
        NODES: ("get",),
        NODE_FEATURES: ("get", "create", "patch"),
        NODE_GPUS: ("create", "patch"),
        LEASES: ("get", "create", "patch"),
        EVENTS: ("create",),
    },
)
# `gputopo agent --node-resource-topology`: besides ``AGENT``.
AGENT_WITH_TOPOLOGY = Role("agent-topology", {NODE_RESOURCE_TOPOLOGIES: ("get",)})
# `gputopo nodes`, `pods`, `why pod`, `show --node`, `diff --node`. The heartbeats of agents are Leases.
READER = Role(
    "reader",
    {
        NODES: ("get", "list"),
        PODS: ("list",),
        NODE_GPUS: ("get", "list"),
        LEASES: ("list",),
        RESERVATIONS: ("list",),
        LEDGERS: ("list",),
    },
)
# The completion of `--namespace` in a shell, with the rights of the person who types.
COMPLETION = Role("completion", {NAMESPACES: ("list",)})
# `gputopo gangs`, `why gang`. Sizes of gangs, volumes, the planner's Lease and the namespace are read if allowed.
GANG_READER = Role(
    "reader",
    {
        **READER.verbs,
        **dict.fromkeys((*GANG_SIZE_SOURCES, *VOLUME_SOURCES), ("list",)),
        LEASES: ("get", "list"),
        NAMESPACES: ("get",),
    },
)
# `gputopo cleanup`. It lists pods to find scheduling gates that no planner would remove.
CLEANER = Role(
    "cleanup",
    {
        NODES: ("get", "list", "patch"),
        PODS: ("list",),
        NODE_GPUS: ("get", "list", "delete"),
        LEASES: ("list", "delete"),
        NODE_FEATURES: ("list", "delete"),
        RESERVATIONS: ("list", "delete"),
        LEDGERS: ("list", "delete"),
        DEFINITIONS: ("get", "delete"),
    },
)
# `gputopo release`.
RELEASER = Role("release", {PODS: ("list", "patch")})
_WATCHED = dict.fromkeys((NODES, PODS, NODE_GPUS, LEASES), ("list", "watch"))
# `gputopo extender`. It writes Events about violated required shapes, and acknowledges reservations in the ledger.
EXTENDER = Role(
    "extender",
    {
        **_WATCHED,
        RESERVATIONS: ("list", "watch"),
        LEDGERS: ("list", "watch"),
        LEDGER_STATUS: ("patch",),
        EVENTS: ("create",),
    },
)
# `gputopo observe`: read-only.
OBSERVER = Role("observer", _WATCHED)
# `gputopo ui`: read-only. Sizes of gangs are read if the API server serves them.
UI = Role(
    "reader",
    {
        **_WATCHED,
        RESERVATIONS: ("list", "watch"),
        LEDGERS: ("list", "watch"),
        **dict.fromkeys((*GANG_SIZE_SOURCES, *VOLUME_SOURCES), ("list", "watch")),
    },
)
# `gputopo planner`. It ungates and pins pods, and rolls back pods that were not placed.
PLANNER = Role(
    "planner",
    {
        **_WATCHED,
        PODS: ("list", "watch", "get", "patch", "delete"),
        DISRUPTION_BUDGETS: ("list",),
        RESERVATIONS: ("list", "watch", "create", "delete"),
        RESERVATION_STATUS: ("patch",),
        LEDGERS: ("list", "watch", "get", "create", "update"),
        LEDGER_STATUS: ("update",),
        EVENTS: ("create",),
        **dict.fromkeys((*GANG_SIZE_SOURCES, *VOLUME_SOURCES), ("list", "watch")),
    },
)
# The planner, if the policy file allows it to evict pods: besides ``PLANNER``.
PREEMPTOR = Role("preemptor", {EVICTIONS: ("create",)})
# `gputopo planner --provisioning-class`: besides ``PLANNER``.
PROVISIONER = Role("provisioner", {PROVISIONING_REQUESTS: ("create",), POD_TEMPLATES: ("create",)})
# `--lease`: leader election.
ELECTION = Role("election", {LEASES: ("get", "create", "update")})
# `--pages authorized`: reviews of the tokens of readers.
PAGE_REVIEWER = Role("page-reviewer", {TOKEN_REVIEWS: ("create",), ACCESS_REVIEWS: ("create",)})
ROLES = (
    AGENT,
    AGENT_WITH_NFD,
    AGENT_WITH_TOPOLOGY,
    READER,
    COMPLETION,
    GANG_READER,
    CLEANER,
    RELEASER,
    EXTENDER,
    OBSERVER,
    UI,
    PLANNER,
    PREEMPTOR,
    PROVISIONER,
    ELECTION,
    PAGE_REVIEWER,
)
