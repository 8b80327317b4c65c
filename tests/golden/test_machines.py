"""Golden tests of every recorded machine, through the same code as a live machine.

``expect`` in case.toml is written by hand from the machine's facts. The golden files are exact; `pytest
--update-golden` rewrites them, and the diff must be reviewed.
"""

import tomllib
from pathlib import Path

import pytest

from agent.recording.bundled import bundled_directory
from agent.recording.io import load_snapshot
from agent.recording.topology import Observation, find_failure, observe_snapshot
from gputopo.labels import decode_topology, encode_topology
from gputopo.render import renderer
from tests.conftest import Golden

CASES = sorted(Path(bundled_directory()).glob("*/case.toml"))
GOLDEN = {
    "show.golden.txt": "tree",
    "matrix.golden.txt": "matrix",
    "topology.golden.json": "json",
    "picture.golden.svg": "svg",
}


@pytest.fixture(params=CASES, ids=lambda case: case.parent.name)
def case(request: pytest.FixtureRequest) -> Path:
    return request.param  # type: ignore[no-any-return]


def seen(case: Path) -> Observation:
    return observe_snapshot(load_snapshot((case.parent / "snapshot.json").read_text(encoding="utf-8")))


def test_there_are_at_least_thirty_machines() -> None:
    assert len(CASES) >= 30


def test_the_topology_matches_the_expectation_written_by_hand(case: Path) -> None:
    expected = tomllib.loads(case.read_text(encoding="utf-8"))["expect"]
    observation = seen(case)
    topology = observation.topology

    assert topology.islands is not None
    assert {
        "islands": [list(island.gpus) for island in topology.islands],
        "numa": ["?" if gpu.numa_node is None else gpu.numa_node for gpu in topology.gpus],
        "interconnect": encode_topology(topology).labels["gputopo.io/interconnect"],
        "degraded": bool(topology.degraded),
        "partial": topology.partial,
    } == {"partial": False} | {name: value for name, value in expected.items() if name != "error"}
    if "error" in expected:
        assert observation.snapshot is not None
        assert find_failure(observation.snapshot) is not None


def test_discovery_is_deterministic(case: Path) -> None:
    assert seen(case) == seen(case)


def test_the_published_facts_decode_to_the_topology(case: Path) -> None:
    topology = seen(case).topology
    facts = encode_topology(topology)

    assert decode_topology(facts.labels, facts.annotations) == topology.stable_facts()
    assert len(facts.annotations["gputopo.io/topology"]) < 8192


@pytest.mark.parametrize(("name", "output"), GOLDEN.items())
def test_output_formats(case: Path, name: str, output: str, golden: Golden) -> None:
    text = renderer(output)(seen(case).topology)

    golden(case.parent / name, text if text.endswith("\n") else text + "\n")


def test_labels(case: Path, golden: Golden) -> None:
    facts = encode_topology(seen(case).topology)

    golden(case.parent / "labels.golden.txt", "".join(f"{k}={v}\n" for k, v in (facts.labels | facts.mirrors).items()))
