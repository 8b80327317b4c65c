"""The CRD of NFD's NodeFeature."""

from __future__ import annotations

# What NFD's definition says of the fields that are used; its whole text is NFD's.
NODE_FEATURE = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "nodefeatures.nfd.k8s-sigs.io",
        # The group is a protected one: its owners approve each definition by this annotation.
        "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
    },
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "scope": "Namespaced",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}}
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}
