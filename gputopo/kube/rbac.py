"""Which part of gputopo may do what: the one table that the code obeys and that RBAC manifests are held against.

A ``Kube`` is opened in a role and refuses every call that its role does not list, so what is not here cannot happen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gputopo.crd import nodegpus, reservations
from gputopo.labels.keys import API_GROUP


class Resource(NamedTuple):
    """A kind of object, as its URL and RBAC spell it."""

    plural: str
    group: str = ""  # "" is the core group
    version: str = "v1"
    namespaced: bool = False
    subresource: str = ""  # "status": what is written apart from the rest of it

    @property
    def named(self) -> str:
        """As RBAC spells it: "nodes", "placementledgers/status"."""
        return f"{self.plural}/{self.subresource}" if self.subresource else self.plural

    @property
    def api_version(self) -> str:
        """As manifests spell it: "v1", "apps/v1"."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, name: str | None = None, namespace: str | None = None) -> str:
        """The URL path of one object, or of all of them; of a namespaced kind without a namespace: in all of them."""
        root = f"/apis/{self.group}" if self.group else "/api"
        space = f"/namespaces/{namespace}" if namespace is not None else ""
        one = "" if name is None else f"/{name}/{self.subresource}".rstrip("/")
        return f"{root}/{self.version}{space}/{self.plural}{one}"


NODES = Resource("nodes")
NAMESPACES = Resource("namespaces")
PODS = Resource("pods", namespaced=True)
EVENTS = Resource("events", namespaced=True)
NODE_GPUS = Resource(nodegpus.PLURAL, API_GROUP, nodegpus.VERSION)
RESERVATIONS = Resource(reservations.RESERVATIONS, API_GROUP, reservations.VERSION, namespaced=True)
RESERVATION_STATUS = RESERVATIONS._replace(subresource="status")
LEDGERS = Resource(reservations.LEDGERS, API_GROUP, reservations.VERSION)
LEDGER_STATUS = LEDGERS._replace(subresource="status")
NODE_FEATURES = Resource("nodefeatures", "nfd.k8s-sigs.io", "v1alpha1", namespaced=True)
LEASES = Resource("leases", "coordination.k8s.io", namespaced=True)
DEFINITIONS = Resource("customresourcedefinitions", "apiextensions.k8s.io")
# What says how large a gang is whose pods do not: of others, and read where it is served.
JOBS = Resource("jobs", "batch", namespaced=True)
JOBSETS = Resource("jobsets", "jobset.x-k8s.io", "v1alpha2", namespaced=True)
# Kubernetes' own: 1.36 serves v1alpha2 alone; 1.37 v1beta1 and v1alpha3, each if it is enabled, of the same objects.
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
SAY_SIZES = (
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
)


class Role(NamedTuple):
    """What one part of gputopo does. Server-side apply of an object that may not exist yet is patch and create."""

    name: str
    verbs: Mapping[Resource, tuple[str, ...]]

    def allows(self, resource: Resource, verb: str) -> bool:
        """Whether the role lists that verb of that resource."""
        return verb in self.verbs.get(resource, ())


AGENT = Role(
    "agent",
    {NODES: ("get", "patch"), NODE_GPUS: ("get", "create", "patch"), EVENTS: ("create",)},
)
# `--publish nodefeature`: NFD's master writes the Node, the agent only reads its uid.
AGENT_WITH_NFD = Role(
    "agent",
    {
        NODES: ("get",),
        NODE_FEATURES: ("get", "create", "patch"),
        NODE_GPUS: ("get", "create", "patch"),
        EVENTS: ("create",),
    },
)
# A person at a terminal: `gputopo nodes`, `pods`, `why pod`, `show --node`, `diff --node`.
READER = Role(
    "reader",
    {
        NODES: ("get", "list"),
        PODS: ("list",),
        NODE_GPUS: ("get", "list"),
        RESERVATIONS: ("list",),
        LEDGERS: ("list",),
    },
)
# The same person: `gputopo gangs`, `why gang`. What says the sizes of gangs, whether a planner is there, and whether a
# namespace has opted in is read where that is allowed.
GANG_READER = Role(
    "reader", {**READER.verbs, **dict.fromkeys(SAY_SIZES, ("list",)), LEASES: ("get",), NAMESPACES: ("get",)}
)
# An administrator: `gputopo cleanup`. It looks at pods for gates that nobody would remove any more.
CLEANER = Role(
    "cleanup",
    {
        NODES: ("get", "list", "patch"),
        PODS: ("list",),
        NODE_GPUS: ("get", "list", "delete"),
        NODE_FEATURES: ("list", "delete"),
        RESERVATIONS: ("list", "delete"),
        LEDGERS: ("list", "delete"),
        DEFINITIONS: ("get", "delete"),
    },
)
# An administrator: `gputopo release`.
RELEASER = Role("release", {PODS: ("list", "patch")})
_SEEN = {NODES: ("list", "watch"), PODS: ("list", "watch"), NODE_GPUS: ("list", "watch")}
# `gputopo extender`: it reads, tells a pod whose required shape did not hold by an Event, and vouches for what planners
# propose.
EXTENDER = Role(
    "extender",
    {
        **_SEEN,
        RESERVATIONS: ("list", "watch"),
        LEDGERS: ("list", "watch"),
        LEDGER_STATUS: ("patch",),
        EVENTS: ("create",),
    },
)
# `gputopo observe`: it only looks.
OBSERVER = Role("observer", _SEEN)
# `gputopo planner`: lets gated pods go to the places of its plans, and takes back those that did not get there.
PLANNER = Role(
    "planner",
    {
        **_SEEN,
        PODS: ("list", "watch", "get", "patch", "delete"),
        RESERVATIONS: ("list", "watch", "create", "delete"),
        RESERVATION_STATUS: ("patch",),
        LEDGERS: ("list", "watch", "get", "create", "update"),
        LEDGER_STATUS: ("update",),
        EVENTS: ("create",),
        **dict.fromkeys(SAY_SIZES, ("list", "watch")),
    },
)
# `--lease`: which of several answers, or plans.
ELECTION = Role("election", {LEASES: ("get", "create", "update")})
ROLES = (AGENT, AGENT_WITH_NFD, READER, GANG_READER, CLEANER, RELEASER, EXTENDER, OBSERVER, PLANNER, ELECTION)
