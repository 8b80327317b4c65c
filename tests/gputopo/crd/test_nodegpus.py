"""The bounds of NodeGpus: the API server, the agent and every reader apply the same."""

from __future__ import annotations

import msgspec
import pytest

from gputopo.crd.nodegpus import (
    MAX_ALLOCATIONS,
    MAX_NICS,
    DeviceAllocation,
    GpuUsage,
    NicAllocation,
    NodeGpus,
    PodRef,
    bounds_error,
    nodegpus_crd,
)
from gputopo.kube.projection import Projection
from gputopo.kube.watch_stream import ObjectIdentity, WatchEvent, WatchEventType
from gputopo.model import MAX_GPUS
from scheduler_core.cache.events import NodeGpusUpdate
from scheduler_core.cache.watch import SOURCES
from tests.api_objects import Object

POD = PodRef("team", "train-0", "main")
GPU = DeviceAllocation("GPU-1", POD)
IDLE = NodeGpus("2026-11-21T12:00:00Z", "1a2b", "0.1.0", ())
BEYOND = [
    pytest.param({"allocations": (GPU,) * (MAX_ALLOCATIONS + 1)}, "length <= 1024", id="allocations"),
    pytest.param({"nics": (NicAllocation("mlx5_0", POD),) * (MAX_NICS + 1)}, "length <= 256", id="NICs"),
    pytest.param({"allocations": (DeviceAllocation("x" * 97, POD),)}, "length <= 96", id="an identifier"),
    pytest.param({"allocations": (DeviceAllocation("x", POD, replica=-1),)}, ">= 0", id="a replica"),
    pytest.param({"allocations": (DeviceAllocation("x", POD, replica=2**31),)}, "<= 2147483647", id="a large replica"),
    pytest.param({"usage": (GpuUsage("GPU-1"),) * (MAX_GPUS + 1)}, "length <= 64", id="GPUs in use"),
    pytest.param({"usage": (GpuUsage("GPU-1", busy_percent=101),)}, "<= 100", id="a percent"),
    pytest.param({"usage": (GpuUsage("GPU-1", used_memory_percent=-1),)}, ">= 0", id="a negative percent"),
    pytest.param({"content_hash": "x" * 97}, "length <= 96", id="the hash"),
]


def strings(schema: Object) -> list[Object]:
    """The schemas of all texts in a schema."""
    found = [schema] if schema["type"] == "string" else []
    children = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return found + [text for child in children for text in strings(child)]


def test_every_text_and_every_list_of_the_definition_is_bounded() -> None:
    schema = nodegpus_crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    own = {name: each for name, each in schema["properties"].items() if name not in {"apiVersion", "kind", "metadata"}}

    assert all("maxLength" in each for child in own.values() for each in strings(child))
    assert {name: each["maxItems"] for name, each in own.items() if each["type"] == "array"} == {
        "allocations": MAX_ALLOCATIONS,
        "nics": MAX_NICS,
        "nicRates": MAX_NICS,
        "usage": MAX_GPUS,
    }


@pytest.mark.parametrize(("change", "why"), BEYOND)
def test_state_beyond_the_bounds_of_the_definition_is_recognized(change: dict[str, object], why: str) -> None:
    error = bounds_error(msgspec.structs.replace(IDLE, **change))

    assert error is not None
    assert why in error
    assert bounds_error(msgspec.structs.replace(IDLE, allocations=(GPU,) * MAX_ALLOCATIONS)) is None


def written(state: NodeGpus, number: int) -> WatchEvent:
    body = {"metadata": {"name": "gpu-0"}, **msgspec.to_builtins(state)}
    identity = ObjectIdentity("gpu-0", "u", str(number))
    return WatchEvent(WatchEventType.MODIFIED, identity, msgspec.Raw(msgspec.json.encode(body)))


@pytest.mark.parametrize(("change", "why"), BEYOND)
def test_a_reader_keeps_the_last_state_where_an_older_definition_lets_more_through(
    change: dict[str, object], why: str
) -> None:
    projection = Projection(SOURCES[NodeGpusUpdate])
    projection.apply_events([written(IDLE, 1)])

    assert projection.apply_events([written(msgspec.structs.replace(IDLE, **change), 2)]) == []

    (unreadable,) = projection.unreadable
    assert (unreadable.name, why in unreadable.why) == ("gpu-0", True)
