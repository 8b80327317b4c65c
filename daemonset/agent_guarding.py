"""The ValidatingAdmissionPolicies about the agent: restrictions that RBAC cannot express. Pure.

The token of a pod contains the name of its node, signed by the API server. With it, the agent's service account may
write the agent's own keys and the mirrors of that Node, the NodeGpus of that name, the Lease of that name in the
namespace of heartbeats, and Events about that Node. With a token without the claim (created by hand, or from a Secret)
it may write nothing.

Keys are listed one by one: labels of administrators have the same prefix as those of the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from agent.daemon.events import REASONS
from daemonset.validating import by_accounts, changed_keys, resource_rule, validating_policy
from gputopo.crd import nodegpus
from gputopo.kube.events import CLUSTER_SCOPED, MESSAGE_LENGTH
from gputopo.kube.heartbeats import HEARTBEAT_NAMESPACE, MAX_TIME_LENGTH
from gputopo.kube.rbac import EVENTS, LEASES, NODE_FEATURES, NODE_GPUS, NODES, Resource
from gputopo.labels import keys
from gputopo.labels.annotation import max_bytes
from gputopo.model import MAX_GPUS

_LABELS = [key.key for key in keys.NODE_LABELS if key != keys.PRODUCT]
# Of an Event that the agent writes, as its managed fields name them: these texts have no other limit.
_EVENT_FIELDS = [
    f"f:{each}"
    for each in (
        "involvedObject", "reason", "message", "type", "source", "reportingComponent", "reportingInstance",
        "firstTimestamp", "lastTimestamp", "count",
    )
]  # fmt: skip
_INNER_EVENT_FIELDS = [".", *(f"f:{each}" for each in ("apiVersion", "kind", "name", "uid", "component", "host"))]
_MOST_KEYS = 1_000  # labels, and annotations, of a Node
_UID_LENGTH = 64  # characters; the API server's have 36
_MIRRORS = [key.key for key in keys.MIRRORS]
_ANNOTATIONS = [key.key for key in keys.NODE_ANNOTATIONS]
_PRODUCT = f"key.startsWith('{keys.PRODUCT_PREFIX}')"
_TOPOLOGY = keys.TOPOLOGY.key
_CLAIMED = "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'].orValue([])"
_CLAIM_WORDS = "(variables.claimed.size() == 0 ? 'names none' : 'names ' + variables.claimed.join(', '))"
# A write names its field manager freely, and may replace the managed fields of the object. New managers without number
# would fill the object, and false ones would keep keys from their owners.
_MANAGERS = [keys.FIELD_MANAGER, keys.MIRROR_FIELD_MANAGER]
_KNOWN_MANAGERS = (
    "object == null || object.metadata.?managedFields.orValue([]).all(entry,\n"
    f"entry.?manager.orValue('') in {_MANAGERS} || (oldObject != null\n"
    "&& oldObject.metadata.?managedFields.orValue([]).exists(old, old.?manager == entry.?manager\n"
    "&& old.?operation == entry.?operation && old.?subresource == entry.?subresource)))"
)


class Rule(NamedTuple):
    """A condition of a write, and why a write that does not meet it is denied."""

    expression: str
    message: str  # what "gputopo's agent" does or does not do
    values: str = ""  # an expression: a string that follows the message


def agent_policies() -> list[dict[str, Any]]:
    """Return the policies about Nodes, NodeGpus, Leases and Events, and their bindings."""
    return [
        *_policy("gputopo-agent-nodes", NODES, _node_variables(), _node_rules(), subresources=True),
        *_policy("gputopo-agent-nodegpus", NODE_GPUS, _state_variables(), _state_rules(), subresources=True),
        *_policy("gputopo-agent-leases", LEASES, _state_variables(), _lease_rules()),
        # The API server also checks the types with the other version of Events, events.k8s.io/v1, which the requests
        # are converted from: hence without a type.
        *_policy("gputopo-agent-events", EVENTS, {"event": "dyn(object)"}, _event_rules()),
    ]


def node_feature_policy() -> list[dict[str, Any]]:
    """Return the policy for Node Feature Discovery, whose master writes the labels of a NodeFeature onto the Node."""
    return _policy("gputopo-agent-nodefeatures", NODE_FEATURES, _feature_variables(), _feature_rules())


def _policy(
    name: str, resource: Resource, variables: Mapping[str, str], rules: Iterable[Rule], *, subresources: bool = False
) -> list[dict[str, Any]]:
    """Return a policy and its binding; requests that it cannot evaluate are denied."""
    resources = (resource.plural, *([f"{resource.plural}/*"] if subresources else []))
    return validating_policy(
        name,
        resource_rule(["CREATE", "UPDATE", "DELETE"], resource, *resources),
        {"by-the-agent": by_accounts("gputopo-agent")},
        {"claimed": _CLAIMED, **variables},
        map(_validation, rules),
    )


def _validation(rule: Rule) -> dict[str, str]:
    message = f"gputopo's agent {rule.message}"
    if rule.values:
        quoted = message.replace("'", "\\'")
        return {
            "expression": rule.expression,
            "messageExpression": f"'{quoted} '\n+ {rule.values}",
            "reason": "Forbidden",
        }
    return {"expression": rule.expression, "message": message, "reason": "Forbidden"}


def _node_variables() -> dict[str, str]:
    held = {"labels": ("object", "labels"), "oldLabels": ("oldObject", "labels")}
    held |= {"annotations": ("object", "annotations"), "oldAnnotations": ("oldObject", "annotations")}
    variables = {"isChange": "request.operation == 'UPDATE' && request.?subResource.orValue('') == ''"}
    variables |= {
        name: f"{of} == null ? {{}} : {of}.metadata.?{section}.orValue({{}})" for name, (of, section) in held.items()
    }
    return variables | {
        "isSmall": " &&\n".join(f"variables.{name}.size() <= {_MOST_KEYS}" for name in held),
        "touchedLabels": f"!variables.isSmall ? [] :\n{changed_keys('labels', 'oldLabels')}",
        "touchedAnnotations": f"!variables.isSmall ? [] :\n{changed_keys('annotations', 'oldAnnotations')}",
        "foreign": (
            f"variables.touchedLabels.filter(key,\n!{_PRODUCT} && !(key in {_LABELS})\n&& !(key in {_MIRRORS}))\n"
            f"+ variables.touchedAnnotations.filter(key, !(key in {_ANNOTATIONS}))"
        ),
        "products": f"!variables.isSmall ? [] : variables.labels.filter(key, {_PRODUCT})",
        "oldProducts": f"!variables.isSmall ? [] : variables.oldLabels.filter(key, {_PRODUCT})",
    }


def _node_rules() -> list[Rule]:
    size = max_bytes(MAX_GPUS)
    return [
        Rule("variables.isChange", "neither creates nor deletes a Node, nor changes a subresource of one"),
        Rule(
            "!variables.isChange || variables.claimed == [request.name]",
            "may change only the Node that its token names; this token",
            _CLAIM_WORDS,
        ),
        Rule(
            # Larger Nodes are not compared: this would take the API server a second.
            "!variables.isChange || variables.isSmall",
            f"changes only a Node with at most {_MOST_KEYS:,} labels and {_MOST_KEYS:,} annotations",
        ),
        Rule(
            "!variables.isChange || variables.foreign.size() == 0",
            "may change only its own labels and annotations of a Node, not",
            "variables.foreign.join(', ')",
        ),
        Rule(
            "!variables.isChange || (object.?spec == oldObject.?spec\n"
            "&& object.metadata.?finalizers == oldObject.metadata.?finalizers\n"
            "&& object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences)",
            "may change only labels and annotations of a Node",
        ),
        Rule(
            f"variables.products.size() <= {MAX_GPUS} || variables.products.size() <= variables.oldProducts.size()",
            f"sets at most {MAX_GPUS} labels of products",
        ),
        Rule(
            f"!('{_TOPOLOGY}' in variables.touchedAnnotations)\n"
            f"|| variables.annotations[?'{_TOPOLOGY}'].orValue('').size() <= {size}",
            f"writes at most {size} characters into the annotation {_TOPOLOGY}",
        ),
        Rule(_KNOWN_MANAGERS, "writes as its own field managers only"),
    ]


def _state_variables() -> dict[str, str]:
    return {
        "finalizers": "oldObject == null ? [] : oldObject.metadata.?finalizers.orValue([])",
        "owners": "oldObject == null ? [] : oldObject.metadata.?ownerReferences.orValue([])",
        "labels": "oldObject == null ? {} : oldObject.metadata.?labels.orValue({})",
        "annotations": "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})",
    }


def _state_rules() -> list[Rule]:
    return [
        *_own_object_rules(nodegpus.KIND),
        Rule(_KNOWN_MANAGERS, "writes as its own field managers only"),
    ]


def _lease_rules() -> list[Rule]:
    return [
        *_own_object_rules("Lease", HEARTBEAT_NAMESPACE),
        # No other text may fill the storage of the API server: each renewal goes to every reader.
        Rule(
            "object == null || (object.metadata.?managedFields.orValue([]).size() <= 1\n"
            f"&& object.?spec.?holderIdentity.orValue('').size() <= {MAX_TIME_LENGTH}\n"
            "&& object.?spec.?preferredHolder.orValue('') == '' && object.?spec.?strategy.orValue('') == '')",
            "writes two times into a Lease, and no further texts",
        ),
    ]


def _own_object_rules(kind: str, namespace: str = "") -> list[Rule]:
    """Return the rules of an object with the name of the node, and maybe in a certain namespace."""
    place = f", in {namespace}" if namespace else ""
    elsewhere = f"\n&& object.metadata.namespace == '{namespace}'" if namespace else ""
    owner = f"owner.apiVersion == '{NODES.api_version}' && owner.kind == 'Node' && owner.name == object.metadata.name"
    return [
        Rule("object != null", f"deletes no {kind}"),
        Rule(
            f"object == null || (variables.claimed == [object.metadata.name]{elsewhere})",
            f"may write only the {kind} of the node that its token names{place}; this token",
            _CLAIM_WORDS,
        ),
        Rule(
            "object == null || (object.metadata.?finalizers.orValue([]) == variables.finalizers\n"
            "&& object.metadata.?ownerReferences.orValue([]).all(owner, owner in variables.owners\n"
            f"|| ({owner})))",
            f"may set only its own Node as an owner of a {kind}, and may not change its finalizers",
        ),
        Rule(
            "object == null || (object.metadata.?labels.orValue({}) == variables.labels\n"
            "&& object.metadata.?annotations.orValue({}) == variables.annotations)",
            f"sets no labels and annotations of a {kind}",
        ),
    ]


def _event_rules() -> list[Rule]:
    involved = (
        "variables.event.involvedObject.?kind.orValue('') == 'Node'\n"
        f"&& variables.event.involvedObject.?apiVersion.orValue('') == '{NODES.api_version}'"
    )
    return [
        Rule("request.operation == 'CREATE'", "creates Events, and neither changes nor deletes them"),
        Rule(
            f"object == null || ({involved}\n"
            "&& variables.claimed == [variables.event.involvedObject.?name.orValue('')])",
            "may report Events only about the Node that its token names; this token",
            _CLAIM_WORDS,
        ),
        Rule(
            f"object == null || (variables.event.?reportingComponent.orValue('') == '{keys.FIELD_MANAGER}'\n"
            f"&& variables.event.?source.?component.orValue('') == '{keys.FIELD_MANAGER}'\n"
            "&& variables.claimed == [variables.event.?source.?host.orValue('')]\n"
            "&& variables.claimed == [variables.event.?reportingInstance.orValue('')]\n"
            f"&& variables.event.?reason.orValue('') in {list(REASONS)})",
            "reports Events in its own name, from its own node, with the reasons " + ", ".join(REASONS),
        ),
        Rule(
            f"object == null || (variables.event.metadata.namespace == '{CLUSTER_SCOPED}'\n"
            f"&& variables.event.?message.orValue('').size() <= {MESSAGE_LENGTH}\n"
            "&& !has(variables.event.related) && variables.event.?action.orValue('') == ''\n"
            "&& !has(variables.event.metadata.labels) && !has(variables.event.metadata.annotations)\n"
            "&& !has(variables.event.metadata.finalizers) && !has(variables.event.metadata.ownerReferences))",
            f"reports Events in the namespace {CLUSTER_SCOPED}, with at most {MESSAGE_LENGTH} characters of message "
            "and no further fields",
        ),
        # No other text may fill the storage of the API server: each Event would be up to 1.5 MiB, for an hour.
        Rule(
            "object == null || (variables.event.?type.orValue('') in ['Normal', 'Warning']\n"
            f"&& variables.event.involvedObject.?uid.orValue('').size() <= {_UID_LENGTH}\n"
            "&& variables.event.involvedObject.?resourceVersion.orValue('') == ''\n"
            "&& variables.event.involvedObject.?fieldPath.orValue('') == ''\n"
            "&& variables.event.metadata.?managedFields.orValue([]).size() <= 1\n"
            "&& variables.event.metadata.?managedFields.orValue([]).all(entry, entry.?fieldsV1.orValue({}).all(field,\n"
            f"field in {_EVENT_FIELDS} && entry.fieldsV1[field].all(inner,\n"
            f"inner in {_INNER_EVENT_FIELDS} && entry.fieldsV1[field][inner].size() == 0))))",
            "reports Events of the types Normal and Warning, and of the Node no more than its name and UID",
        ),
    ]


def _feature_variables() -> dict[str, str]:
    return {
        "named": (
            f"object == null ? [] : object.metadata.?labels[?'{keys.NFD_NODE_NAME}'].optMap(name, [name]).orValue([])"
        ),
        "finalizers": "oldObject == null ? [] : oldObject.metadata.?finalizers.orValue([])",
        "labels": "object == null ? {} : object.?spec.?labels.orValue({})",
        "foreign": f"variables.labels.filter(key, !{_PRODUCT} && !(key in {_LABELS}))",
        "products": f"variables.labels.filter(key, {_PRODUCT})",
    }


def _feature_rules() -> list[Rule]:
    kinds = ("flags", "attributes", "instances")
    empty = "\n&& ".join(f"object.spec.features.?{kind}.orValue({{}}).size() == 0" for kind in kinds)
    return [
        Rule("object != null", "deletes no NodeFeature"),
        Rule(
            "object == null || (variables.claimed.size() == 1 && variables.claimed == variables.named)",
            "may write only the NodeFeature of the node that its token names; this token",
            _CLAIM_WORDS,
        ),
        Rule(
            "object == null || object.metadata.name == 'gputopo-features-for-' + variables.claimed.join(',')",
            "writes only the NodeFeature with the name of its own node",
        ),
        Rule("object == null || object.metadata.?finalizers.orValue([]) == variables.finalizers", "sets no finalizers"),
        Rule("variables.foreign.size() == 0", "may ask for its own labels, not", "variables.foreign.join(', ')"),
        Rule(f"variables.products.size() <= {MAX_GPUS}", f"asks for at most {MAX_GPUS} labels of products"),
        Rule(
            f"object == null || !has(object.spec.features) || ({empty})",
            "sets only labels in a NodeFeature, not features that rules could turn into other labels",
        ),
    ]
