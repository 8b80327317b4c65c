"""Errors of the API server, with bodies as kube-apiserver 1.37 writes them."""

import json

import pytest

from gputopo.kube.errors import (
    BudgetError,
    ConflictError,
    ForbiddenError,
    GoneError,
    KubeError,
    NotFoundError,
    UnavailableError,
    error_of_response,
)


def status(message: str, **details: object) -> bytes:
    return json.dumps({"kind": "Status", "message": message, "details": details}).encode()


def conflict(field: str, result: str) -> dict[str, str]:
    return {"reason": "FieldManagerConflict", "message": result, "field": field}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        pytest.param(400, KubeError, id="a body that makes no sense"),
        pytest.param(401, ForbiddenError, id="an unknown caller"),
        pytest.param(403, ForbiddenError, id="a caller without permission"),
        pytest.param(404, NotFoundError, id="nothing there"),
        pytest.param(409, ConflictError, id="something else there"),
        pytest.param(410, GoneError, id="a version too old"),
        pytest.param(422, KubeError, id="an object that is not valid"),
        pytest.param(429, UnavailableError, id="too many requests"),
        pytest.param(500, UnavailableError, id="a broken server"),
        pytest.param(504, UnavailableError, id="a slow server"),
    ],
)
def test_each_status_is_one_kind_of_error(code: int, kind: type[KubeError]) -> None:
    error = error_of_response("GET /x", code, status("no"))

    assert (type(error), str(error)) == (kind, f"GET /x: {code}: no")


@pytest.mark.parametrize(
    "message", ["etcdserver: request is too large", "rpc error: trying to send message larger than max (9 vs. 8)"]
)
def test_an_object_that_is_too_large_is_refused_and_the_server_is_not_unavailable(message: str) -> None:
    assert type(error_of_response("PATCH /x", 500, status(message))) is KubeError


def test_an_eviction_that_a_budget_refuses_is_no_busy_server() -> None:
    result = "The disruption budget web needs 2 healthy pods and has 2 currently"
    cause = {"reason": "DisruptionBudget", "message": result}

    error = error_of_response("POST /x", 429, status("Cannot evict pod", causes=[cause]), "10")

    assert (type(error), str(error)) == (BudgetError, f"POST /x: 429: Cannot evict pod; {result}")


def test_a_conflict_names_the_fields_and_who_owns_them() -> None:
    causes = [
        conflict(".metadata.labels.a/b", 'conflict with "kubectl-label" using v1'),
        conflict(".metadata.labels.c", 'conflict with "nfd-master" with subresource "status" using v1 at 2026-11-21'),
        conflict(".metadata.labels.d", "conflict"),
        {"reason": "Other", "message": "", "field": ".spec"},
    ]

    error = error_of_response("PATCH /x", 409, status("Apply failed", causes=causes))

    assert isinstance(error, ConflictError)
    assert error.fields == {
        ".metadata.labels.a/b": "kubectl-label",
        ".metadata.labels.c": "nfd-master",
        ".metadata.labels.d": "an unnamed manager",
    }


@pytest.mark.parametrize(
    ("body", "kind_missing", "message"),
    [
        pytest.param(status("nodes x not found", name="x"), False, "nodes x not found", id="no such object"),
        pytest.param(b"404 page not found\n", True, "404 page not found", id="no such group"),
        pytest.param(status("the server could not find the requested resource"), True,
                     "the server could not find the requested resource", id="no such kind"),
        pytest.param(b"", True, "(no body)", id="nothing said"),
        pytest.param(b"\xff\xfe", True, "\ufffd\ufffd", id="no text"),
    ],
)  # fmt: skip
def test_a_missing_object_is_distinguished_from_a_missing_kind(body: bytes, kind_missing: bool, message: str) -> None:
    error = error_of_response("GET /x", 404, body)

    assert isinstance(error, NotFoundError)
    assert (error.kind_missing, str(error)) == (kind_missing, f"GET /x: 404: {message}")


@pytest.mark.parametrize(
    ("header", "details", "expected"),
    [
        pytest.param("7", {"retryAfterSeconds": 3}, 7.0, id="the header first"),
        pytest.param(None, {"retryAfterSeconds": 3}, 3.0, id="else the body"),
        pytest.param("soon", {}, None, id="neither"),
    ],
)
def test_when_to_try_again_is_what_the_server_says(
    header: str | None, details: dict[str, int], expected: float | None
) -> None:
    error = error_of_response("GET /x", 429, status("busy", **details), header)

    assert isinstance(error, UnavailableError)
    assert error.retry_after == expected
