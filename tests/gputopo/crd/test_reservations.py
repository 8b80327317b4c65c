"""The custom resources of the planner take what it writes, and refuse what it never would."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest

from gputopo.crd.reservations import (
    EntryPhase,
    ExtenderAck,
    HeldCapacity,
    LedgerEntry,
    LedgerSpec,
    LedgerStatus,
    PlannedMember,
    ReservationSpec,
    ReservationState,
    ReservationStatus,
    ledger_crd,
    reservation_crd,
    spec_hash,
)

SEAT = PlannedMember("u-0", "llm-7-0", "gpu-1", (("nvidia.com/gpu", 4),), (0, 1, 2, 3), 0)
PLAN = ReservationSpec(
    "llm-7", (SEAT, PlannedMember("u-1", "llm-7-1")), (HeldCapacity("gpu-2", 2),), 90.0, "clique=7b96.1", 450.0, 2
)
STATUS = ReservationStatus(
    ReservationState.COMMITTED, "waits", 1, 2, 1, 4, "2026-11-21T12:00:30Z", "2026-11-21T13:00:00Z"
)
ENTRY = LedgerEntry("r-0", "team-a", "llm-7-4f2a9c", spec_hash(PLAN), EntryPhase.PROPOSED)
LEDGER = LedgerSpec("planner-0", 3, (ENTRY,))
ACKNOWLEDGED = LedgerStatus(
    {"extender-0": ExtenderAck("gputopo/scheduler-0", 7, ("r-0",)), "extender-1": ExtenderAck()}
)
RESERVATION_CRD, LEDGER_CRD = reservation_crd(), ledger_crd()


def complaints(crd: dict[str, Any], document: Any) -> list[str]:
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    validator = jsonschema.Draft4Validator(schema)  # the dialect that Kubernetes' schemas come from
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize(
    ("crd", "document"),
    [
        pytest.param(RESERVATION_CRD, {"spec": PLAN, "status": STATUS}, id="a plan"),
        pytest.param(RESERVATION_CRD, {"spec": ReservationSpec("")}, id="a plan of which little is known"),
        pytest.param(LEDGER_CRD, {"spec": LEDGER, "status": ACKNOWLEDGED}, id="a ledger"),
        pytest.param(LEDGER_CRD, {"spec": LedgerSpec()}, id="a ledger at its beginning"),
    ],
)
def test_written_objects_match_the_definitions(crd: dict[str, Any], document: Any) -> None:
    assert complaints(crd, msgspec.json.decode(msgspec.json.encode(document))) == []


@pytest.mark.parametrize(
    ("crd", "document", "complaint"),
    [
        pytest.param(RESERVATION_CRD, {}, "'spec' is a required property", id="no plan"),
        pytest.param(RESERVATION_CRD, {"spec": {}}, "'gang' is a required property", id="nobody's"),
        pytest.param(
            RESERVATION_CRD,
            {"spec": {"gang": "g", "seats": [{"uid": "u"}]}},
            "'name' is a required property",
            id="seat",
        ),
        pytest.param(
            RESERVATION_CRD, {"spec": {"gang": "g" * 254}}, f"{'g' * 254!r} is too long", id="a name that no gang has"
        ),
        pytest.param(
            RESERVATION_CRD,
            {"spec": {"gang": "g", "seats": [{"uid": "u", "name": "p", "gpus": [["nvidia.com/gpu"]]}]}},
            "['nvidia.com/gpu'] is too short",
            id="a resource without a number",
        ),
        pytest.param(
            RESERVATION_CRD,
            {"spec": {"gang": "g"}, "status": {"state": "Fine"}},
            "'Fine' is not one of ['Bound', 'Committed', 'Failed', 'Held', 'Proposed', 'RollingBack']",
            id="a state that there is not",
        ),
        pytest.param(
            RESERVATION_CRD,
            {"spec": {"gang": "g", "held": [{"node": "n", "gpus": -1}]}},
            "-1 is less than the minimum of 0",
            id="fewer than no GPUs",
        ),
        pytest.param(
            LEDGER_CRD,
            {"spec": {"entries": [msgspec.to_builtins(ENTRY) | {"hash": "abc"}]}},
            "'abc' does not match '^[0-9a-f]{64}$'",
            id="a hash that is none",
        ),
        pytest.param(
            LEDGER_CRD,
            {"spec": {}, "status": {"extenders": {"a": {"generation": "7"}}}},
            "'7' is not of type 'integer'",
            id="a generation that is no number",
        ),
    ],
)
def test_objects_that_are_never_written_are_refused(crd: dict[str, Any], document: Any, complaint: str) -> None:
    assert complaint in complaints(crd, document)


def test_kubectl_shows_what_a_reservation_says_and_its_status_is_written_apart() -> None:
    (version,) = RESERVATION_CRD["spec"]["versions"]

    assert [each["name"] for each in version["additionalPrinterColumns"]] == [
        "Gang", "State", "Members", "Bound", "Nodes", "GPUs", "Bandwidth", "Domain", "Deadline", "Reason", "Age",
    ]  # fmt: skip
    assert RESERVATION_CRD["spec"]["names"]["shortNames"] == ["pres"]
    assert [crd["spec"]["scope"] for crd in (RESERVATION_CRD, LEDGER_CRD)] == ["Namespaced", "Cluster"]
    assert [crd["spec"]["versions"][0]["subresources"] for crd in (RESERVATION_CRD, LEDGER_CRD)] == [{"status": {}}] * 2


def test_a_hash_differs_only_for_different_plans() -> None:
    again = msgspec.convert(msgspec.to_builtins(PLAN), ReservationSpec)

    assert spec_hash(again) == spec_hash(PLAN)
    assert spec_hash(msgspec.structs.replace(PLAN, attempt=3)) != spec_hash(PLAN)
