"""Labels of other tools and hand-made clusters: read where ours are absent, never misread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.reference import labels_page
from gputopo.labels import decode_topology
from gputopo.labels.aliases import ALIASES, with_aliases
from gputopo.labels.capacity import INSTANCE_TYPE_LABELS, is_spot
from gputopo.labels.domains import CLIQUE_LABELS, DOMAIN_LABELS, RACK_LABELS, first_domain

GB = "GB of one GPU, a plain number up to 512 that the product does not contradict"


@pytest.mark.parametrize(
    ("labels", "key", "value"),
    [
        pytest.param({"gpu-memory-gb": "80"}, "gputopo.io/vram-mib", "76293", id="10^9 bytes, the smaller reading"),
        pytest.param({"gpu-memory-gb": "141.5"}, "gputopo.io/vram-mib", "134944", id="a fraction"),
        pytest.param({"gpu-interconnect": "NVLink"}, "gputopo.io/interconnect", "nvlink", id="in any case"),
        pytest.param({"gpu-generation": "Ada Lovelace"}, "nvidia.com/gpu.family", "ada-lovelace", id="two words"),
        pytest.param({"nvlink-fabric-id": "fabric-7"}, "gputopo.io/fabric", "fabric-7", id="a domain"),
        pytest.param({"node-cost-per-hour": "32.77"}, "gputopo.io/cost-per-hour", "32.77", id="a cost"),
    ],
)
def test_an_alias_stands_for_a_label_of_ours(labels: dict[str, str], key: str, value: str) -> None:
    found = with_aliases(labels)

    assert (found.labels[key], found.faults) == (value, ())


@pytest.mark.parametrize(
    ("labels", "fault"),
    [
        pytest.param({"gpu-memory-gb": "80GB"}, f"the label gpu-memory-gb=80GB is ignored: expected {GB}", id="a unit"),
        pytest.param(
            {"gpu-memory-gb": "640"}, f"the label gpu-memory-gb=640 is ignored: expected {GB}", id="of 8 GPUs"
        ),
        pytest.param(
            {"gpu-memory-gb": "320", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"},
            f"the label gpu-memory-gb=320 is ignored: expected {GB}",
            id="not the memory of that product",
        ),
        pytest.param({"gpu-memory-gb": "81920"}, f"the label gpu-memory-gb=81920 is ignored: expected {GB}", id="MiB"),
        pytest.param(
            {"gpu-interconnect": "NV18"},
            "the label gpu-interconnect=NV18 is ignored: expected nvswitch, nvlink, pcie or none",
            id="a word of nvidia-smi",
        ),
        pytest.param(
            {"nvlink-fabric-id": "none"},
            "the label nvlink-fabric-id=none is ignored: expected the name of a domain",
            id="no domain",
        ),
        pytest.param(
            {"node-cost-per-hour": "32,77"},
            "the label node-cost-per-hour=32,77 is ignored: expected a plain number like 32.77",
            id="a comma",
        ),
    ],
)
def test_a_malformed_alias_is_ignored_and_named(labels: dict[str, str], fault: str) -> None:
    found = with_aliases(labels)

    assert (dict(found.labels), found.faults) == (labels, (fault,))


def test_labels_of_ours_take_precedence() -> None:
    ours = {"nvidia.com/gpu.memory": "40960", "gputopo.io/interconnect": "pcie"}

    assert with_aliases({**ours, "gpu-memory-gb": "many", "gpu-interconnect": "nvlink"}).faults == ()
    assert "gputopo.io/vram-mib" not in with_aliases({**ours, "gpu-memory-gb": "80"}).labels


def test_a_node_with_only_labels_set_by_hand_is_described() -> None:
    labels = {
        "nvidia.com/gpu.count": "2", "gpu-memory-gb": "16", "gpu-interconnect": "nvlink", "gpu-generation": "Volta",
    }  # fmt: skip

    found = decode_topology(labels, {})

    assert [(gpu.memory_mib, gpu.architecture) for gpu in found.gpus] == [(15258, "volta")] * 2
    assert found.summary is not None
    assert found.summary.in_one_island(2) is True
    assert found.summary.sources == ("gpu-interconnect=nvlink", "gpu-memory-gb=16")


@pytest.mark.parametrize(
    ("labels", "spot"),
    [
        pytest.param({"instance-type": "p4d-spot"}, True, id="a word of the name"),
        pytest.param({"node.kubernetes.io/instance-type": "Spot.8xlarge"}, True, id="in any case"),
        pytest.param({"instance-type": "spotlight-8"}, False, id="another word"),
        pytest.param(
            {"instance-type": "p4d-spot", "karpenter.sh/capacity-type": "on-demand"}, False, id="the cloud says no"
        ),
    ],
)
def test_spot_in_the_name_of_the_instance_type(labels: dict[str, str], spot: bool) -> None:
    assert is_spot(labels) is spot


@pytest.mark.parametrize(
    ("labels", "keys", "domain"),
    [
        pytest.param({"accelerator.topograph.run/domain": "d1"}, CLIQUE_LABELS, "d1", id="Topograph's domain"),
        pytest.param(
            {"accelerator.topograph.run/domain": "d1", "accelerator.topograph.run/sub-domain": "s2"},
            CLIQUE_LABELS,
            "d1/s2",
            id="sub-domains of two domains are not one",
        ),
        pytest.param({"nvlink-fabric-id": "none"}, CLIQUE_LABELS, None, id="a word for no domain"),
        pytest.param({"nvlink-fabric-id": "7", "gputopo.io/fabric": "u.1"}, CLIQUE_LABELS, "u.1", id="ours first"),
        pytest.param({"fabric.topograph.run/tier-0": "leaf-3"}, RACK_LABELS, "leaf-3", id="the nearest tier"),
    ],
)
def test_the_domains_of_a_node(labels: dict[str, str], keys: tuple[str, ...], domain: str | None) -> None:
    assert first_domain(labels, keys) == domain


@given(st.dictionaries(st.sampled_from([each.key for each in ALIASES]), st.text(max_size=80)))
def test_no_value_of_an_alias_stops_anything(labels: dict[str, str]) -> None:
    found = decode_topology({"nvidia.com/gpu.count": "4", **labels}, {})

    assert len(found.gpus) == 4
    assert all(gpu.memory_mib is None or gpu.memory_mib <= 512 * 1024 for gpu in found.gpus)


def test_every_alias_and_every_domain_label_is_in_the_reference() -> None:
    page = labels_page()

    assert all(f"| `{each.key}` | `{each.example}` |" in page for each in ALIASES)
    assert all(f"`{key}`" in page for _, keys in DOMAIN_LABELS for key in keys)


def test_one_table_has_all_labels_of_hand_made_clusters_and_of_topograph() -> None:
    table = labels_page().partition("## Labels of other tools")[2].partition("\n## ")[0]

    rows = {row.split(" | ", 1)[0] for row in table.splitlines()}
    found = {key for row in rows for key in row.strip("| ").replace("`", "").split(" or ")}
    assert found >= {
        *(each.key for each in ALIASES),
        *INSTANCE_TYPE_LABELS,
        "accelerator.topograph.run/domain",
        "fabric.topograph.run/tier-0",
    }
