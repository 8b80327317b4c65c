"""What an operator can set at the planner."""

from __future__ import annotations

import pytest

from gputopo.settings import SettingError
from scheduler_core.gangs.planning import LEVELS
from scheduler_core.planner.settings import read


def test_where_nothing_is_said_the_levels_are_those_of_the_usual_labels() -> None:
    assert read({}, {}).levels == LEVELS


def test_levels_have_the_labels_that_are_said() -> None:
    found = read({"levels": "rack=example.com/rack|rack,zone=zone"}, {}).levels

    assert found == {"rack": ("example.com/rack", "rack"), "zone": ("zone",)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("row=example.com/row", "'row' is no level: there are clique, rack, block, zone", id="of our own"),
        pytest.param("rack", "write NAME=LABEL", id="no label"),
        pytest.param("rack=a b", "write NAME=LABEL", id="no label's key"),
    ],
)
def test_a_level_that_no_pod_could_name_is_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        read({"levels": text}, {})


@pytest.mark.parametrize("name", ["gpus", "h100.gpus", "a-1.b-2", "9", "a" * 253])
def test_a_ledger_has_the_name_of_an_object(name: str) -> None:
    assert read({"ledger": name}, {}).ledger == name


@pytest.mark.parametrize("name", ["Bad Name", "", "-gpus", "gpus.", "a..b", "a.-b", "team/gpus", "gpus\n", "a" * 254])
def test_a_ledger_that_no_object_could_be_is_refused_with_its_name(name: str) -> None:
    with pytest.raises(SettingError) as refused:
        read({"ledger": name}, {})

    assert str(refused.value) == (
        f"--ledger: {name!r}: write the name of an object: lower-case letters, digits, - and ., beginning and ending "
        "with a letter or digit, each part between dots too, at most 253 characters"
    )
