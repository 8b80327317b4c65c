"""Audit events as the API server writes them."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.audit import Write, read_writes

BY_HIMSELF = (
    '{"verb":"create","user":{"username":"system:kube-scheduler"},"userAgent":"kube-scheduler/v1.37.1 (linux/amd64)",'
    '"objectRef":{"resource":"pods","namespace":"default","name":"train","subresource":"binding"},'
    '"responseStatus":{"code":201}}'
)
IMPERSONATED = (
    '{"verb":"patch","user":{"username":"gputopo-test"},"impersonatedUser":{"username":"system:node:gpu-0"},'
    '"objectRef":{"resource":"nodes","name":"gpu-0"},"responseStatus":{"code":403}}'
)


def test_writes_are_those_after_the_offset_that_are_whole(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_text(f"{BY_HIMSELF}\n{BY_HIMSELF}\n{IMPERSONATED}\n" + IMPERSONATED[:40])

    assert read_writes(log, offset=len(BY_HIMSELF) + 1) == [
        Write("system:kube-scheduler", "create", "pods/binding", "default", "train", 201, "kube-scheduler/v1.37.1"),
        Write("system:node:gpu-0", "patch", "nodes", "", "gpu-0", 403, ""),
    ]
