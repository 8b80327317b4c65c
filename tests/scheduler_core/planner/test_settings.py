"""The planner's settings, and the errors of invalid values."""

from __future__ import annotations

import pytest

from gputopo.process.settings import SettingError
from scheduler_core.planner.commit.state import CommitTerms, Rollback
from scheduler_core.planner.leader.queue import QueueTiming
from scheduler_core.planner.packing.model import LEVELS
from scheduler_core.planner.settings import PlannerSettings, format_levels, parse_levels, read_settings
from scheduler_core.runtime.leader_election import LeaseName


def test_defaults_of_the_settings() -> None:
    assert read_settings({}, {}) == PlannerSettings(
        lease=LeaseName("gputopo", "gputopo-planner"),
        listen=("", 9439),
        pages="loopback",
        pool="mixed",
        settle_s=45.0,
        annotations="unguarded",
        policy=None,
        levels=LEVELS,
        patience_s=300.0,
        back_off_s=10.0,
        rollback="gang",
        release_after_s=None,
        gate_timeout_s=600.0,
        provisioning_class=None,
        log="json",
    )


def test_gangs_are_committed_and_queue_as_is_said() -> None:
    found = read_settings(
        {"pool": "gated", "settle_s": "9s", "rollback": "unstarted", "patience_s": "1h", "back_off_s": "3s"}, {}
    )

    said = CommitTerms(gated=True, settle_s=9.0, rollback=Rollback.UNSTARTED)
    assert found.terms == said._replace(lease="gputopo/gputopo-planner", levels=format_levels(LEVELS))
    assert parse_levels(found.terms.levels) == LEVELS
    assert found.pace == QueueTiming(patience_s=3600.0, first_s=3.0)


def test_annotations_are_trusted_only_if_they_are_guarded() -> None:
    assert [read_settings({"annotations": said}, {}).terms.guarded for said in (None, "unguarded", "guarded")] == [
        False,
        False,
        True,
    ]


def test_pods_may_wait_for_ever() -> None:
    found = read_settings({"gate_timeout_s": "off", "release_after_s": "off"}, {})

    assert (found.gate_timeout_s, found.release_after_s) == (None, None)


def test_levels_have_the_given_labels() -> None:
    found = read_settings({"levels": "rack=example.com/rack|rack,zone=zone"}, {}).levels

    assert found == {"rack": ("example.com/rack", "rack"), "zone": ("zone",)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("row=example.com/row", "'row' is not a level: expected clique, rack, block, zone", id="unknown"),
        pytest.param("rack", "write NAME=LABEL", id="no label"),
        pytest.param("rack=a b", "write NAME=LABEL", id="no label's key"),
        pytest.param("rack=a,rack=b", "rack is given twice: separate the labels of one level by", id="twice"),
        pytest.param(
            "zone=a,clique=b", "write the narrowest level first: clique, rack, block, zone", id="out of order"
        ),
    ],
)
def test_a_level_that_no_pod_could_name_is_refused(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        read_settings({"levels": text}, {})


@pytest.mark.parametrize(
    ("field", "text", "why"),
    [
        pytest.param("back_off_s", "10000h", "it must be at most 300s", id="a back-off above the longest"),
        pytest.param("gate_timeout_s", "", "expected a time such as 90s, 5m or 1h, or off", id="no timeout"),
        pytest.param("lease", "Bad/Name", "expected NAMESPACE/NAME of a Lease", id="no name of an object"),
    ],
)
def test_invalid_settings_name_the_expected_value(field: str, text: str, why: str) -> None:
    with pytest.raises(SettingError, match=why):
        read_settings({field: text}, {})


@pytest.mark.parametrize("text", ["Check", "a b", "", "-a", "a" * 254])
def test_classes_of_provisioning_requests_are_checked(text: str) -> None:
    with pytest.raises(SettingError, match="expected the name of a class"):
        read_settings({"provisioning_class": text}, {})
    assert read_settings({"provisioning_class": "check-capacity.x.io"}, {}).provisioning_class == "check-capacity.x.io"
