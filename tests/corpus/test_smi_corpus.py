"""The parsers of nvidia-smi's other commands against recordings of real machines, where available."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agent.failures import Failure
from agent.sources.errors import ParseError
from agent.sources.smi.failure import classify_failure
from agent.sources.smi.listing import parse_listing
from agent.sources.smi.nvlink import parse_nvlink_status
from agent.sources.smi.p2p import P2pStatus, parse_p2p
from agent.sources.smi.query import parse_query

CORPUS = Path(__file__).parents[2].parent / "shared" / "corpus"
INDEX = CORPUS / "index.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in INDEX.read_text().splitlines()] if INDEX.exists() else []

pytestmark = pytest.mark.skipif(not ROWS, reason="../shared/corpus is not here")


def of_kind(kind: str) -> list[Any]:
    return [pytest.param(row, id=row["file"]) for row in ROWS if row["kind"] == kind]


def text_of(row: dict[str, Any]) -> str:
    name: str = row["file"]
    return (CORPUS / name).read_text()


@pytest.mark.parametrize("row", of_kind("q"))
def test_a_recorded_query_has_the_gpus_and_the_driver_of_the_index(row: dict[str, Any]) -> None:
    query = parse_query(text_of(row))

    assert len(query.gpus) == query.attached == row["gpus"]
    assert query.driver_version == re.findall(r"driver ([0-9.]+)", row["hardware"])[0]
    assert query.cuda_version is not None
    for index, gpu in enumerate(query.gpus):
        assert gpu.index == index
        assert gpu.unreadable == ()
        assert None not in (gpu.bus_id, gpu.uuid, gpu.minor, gpu.product, gpu.architecture, gpu.memory_mib)
        assert None not in (gpu.pcie.generation, gpu.pcie.width, gpu.pcie.max_generation, gpu.pcie.max_width)
    assert len({(gpu.product, gpu.memory_mib) for gpu in query.gpus}) == 1


@pytest.mark.parametrize("row", of_kind("nvlink"))
def test_recorded_links_are_those_of_the_index(row: dict[str, Any]) -> None:
    assert len(parse_nvlink_status(text_of(row))) == (row["gpus"] or 0)


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("all-inactive", [(0, [], True), (0, [], True)]),
        ("a6000-3gpu", [(4, [14062], False), (4, [14062], False), (0, [], True)]),
        ("partial-inactive", [(4, [25781], False)]),
        ("8xa100", [(12, [25000], False)] * 8),
        ("status-a10.", []),
    ],
)
def test_recorded_links_have_these_rates(fragment: str, expected: list[tuple[int, list[int], bool]]) -> None:
    (row,) = (row for row in ROWS if row["kind"] == "nvlink" and fragment in row["file"])

    found = parse_nvlink_status(text_of(row))

    rates = [sorted({link.mbps for link in gpu.links if link.mbps is not None}) for gpu in found]
    assert [(gpu.active, rate, gpu.all_inactive) for gpu, rate in zip(found, rates, strict=True)] == expected


@pytest.mark.parametrize("row", of_kind("p2p"))
def test_a_recorded_matrix_says_the_same_of_every_pair(row: dict[str, Any]) -> None:
    matrix = parse_p2p(text_of(row))

    word = re.findall(r"p2p-(?:rw-)?(gns|ns|ok|cns)", row["file"]) or ["ok"]
    off = [cell for i, cells in enumerate(matrix.status) for j, cell in enumerate(cells) if i != j]
    assert matrix.gpus == tuple(range(row["gpus"]))
    assert set(off) == {P2pStatus(word[0].upper())}


@pytest.mark.parametrize("row", of_kind("smi-L"))
def test_a_recorded_listing_has_the_gpus_of_the_index(row: dict[str, Any]) -> None:
    listing = parse_listing(text_of(row))

    assert [gpu.index for gpu in listing.gpus] == list(range(row["gpus"]))
    assert [len(gpu.mig) for gpu in listing.gpus] == [4, 0, 0, 0]
    assert {mig.profile for mig in listing.gpus[0].mig} == {"1g.20gb"}
    assert all(gpu.uuid is not None and all(mig.uuid for mig in gpu.mig) for gpu in listing.gpus)


@pytest.mark.parametrize("row", of_kind("error"))
def test_a_recorded_error_is_a_failure_of_the_driver_or_of_the_arguments(row: dict[str, Any]) -> None:
    expected = Failure.VERSION_MISMATCH if "mismatch" in row["file"] else None

    assert classify_failure(text_of(row)) is expected


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["file"]) for row in ROWS if row["kind"] not in ("error", "p2p")]
)
def test_no_other_recording_is_taken_for_a_failure(row: dict[str, Any]) -> None:
    assert classify_failure(text_of(row)) is None


@pytest.mark.parametrize(
    "parse", [parse_query, parse_nvlink_status, parse_p2p, parse_listing], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("row", of_kind("error"))
def test_an_error_is_refused_by_every_parser(parse: Any, row: dict[str, Any]) -> None:
    with pytest.raises(ParseError):
        parse(text_of(row))
