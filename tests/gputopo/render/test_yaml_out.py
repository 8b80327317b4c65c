"""YAML is the JSON document in other clothes."""

import yaml
from hypothesis import given, settings

from gputopo.model import NodeTopology
from gputopo.render.document import topology_document
from gputopo.render.yaml_out import render_yaml
from tests.machines import dgx_a100
from tests.property.strategies import topologies


@settings(max_examples=40, deadline=None)
@given(topologies(max_gpus=3))
def test_yaml_reads_back_as_the_document_and_is_printable(topology: NodeTopology) -> None:
    text = render_yaml(topology)

    assert yaml.safe_load(text) == topology_document(topology)
    assert text.isascii()
    assert text.replace("\n", "").isprintable()


def test_keys_keep_the_order_of_the_document() -> None:
    lines = render_yaml(dgx_a100(), name="node-1").splitlines()

    assert lines[:4] == [
        "apiVersion: gputopo.io/v1",
        "kind: NodeTopology",
        "name: node-1",
        "machine: DGXA100 920-23687-2530-000",
    ]
