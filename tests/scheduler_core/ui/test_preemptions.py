"""Evictions in progress on the page of the cluster, and what other tenants see of them."""

from __future__ import annotations

import pytest

from gputopo.crd.reservations import PlannedEviction, Preemption
from scheduler_core.ui.hidden_names import ANOTHER
from scheduler_core.ui.overview_page import PageQuery, overview_page
from scheduler_core.ui.rows_html import ANYONE, Viewer
from scheduler_core.ui.service import UiService
from tests.scheduler_core.ui.cluster_documents import allocation, capacity_hold, gpu_machine, gpu_pod, node_gpus
from tests.scheduler_core.ui.pages import Page, now, service_of


@pytest.fixture(scope="module")
def service() -> UiService:
    """A gang of the team `urgent` evicts two pods, of which one has ended."""
    at = now()
    node, topology = gpu_machine("n", "8a100-2n-pairs12")
    gpus = [gpu.uuid or "" for gpu in topology.gpus]
    left = gpu_pod("batch", "sweep-0", 2, "n", at)
    evictions = (
        PlannedEviction(left["metadata"]["uid"], "batch", "sweep-0", "n", "batch/sweep", 2),
        PlannedEviction("gone", "other", "<b>job</b>", "n", "other/<b>job</b>", 4),
    )
    intent = Preemption(evictions, "urgent-first", "urgent/llm does not fit", gpu_hours=12.25)
    held = [allocation(gpu, "batch", "sweep-0") for gpu in gpus[:2]]
    return service_of(
        [node, left, node_gpus("n", node, held, at), *capacity_hold("urgent", "llm", "n", 2, preemption=intent)]
    )


def words(service: UiService, viewer: Viewer = ANYONE) -> str:
    markup = overview_page(service.overview, service.history, PageQuery(), viewer)
    return " ".join(" ".join(Page(markup).texts).split())


def tenant(service: UiService, *own: str) -> Viewer:
    return ANYONE._replace(namespaces=frozenset(own), hidden=service.namespaces() - {*own})


def test_the_page_says_for_which_gang_which_pods_are_evicted_and_how_many_have_ended(service: UiService) -> None:
    found = words(service)

    assert "Preemptions" in found
    assert "urgent/llm" in found
    assert "1 of 2 pods ended" in found
    assert "batch/sweep, other/<b>job</b>" in found
    assert "12.2" in found
    assert "urgent/llm does not fit" in found


def test_the_page_says_what_the_planner_does_now() -> None:
    """The page showed only why the pods were chosen, also after the planner had spared some of them."""
    node, _ = gpu_machine("n", "8a100-2n-pairs12")
    intent = Preemption((PlannedEviction("u", "batch", "sweep-0", "n", "batch/sweep", 2),), "rule", "chosen", 1.0)
    hold, ledger = capacity_hold("urgent", "llm", "n", 2, preemption=intent)
    why = "batch/sweep is protected by now: an annotation forbids it; not evicted: batch/sweep"

    found = words(service_of([node, {**hold, "status": {"state": "Held", "reason": why}}, ledger]))

    assert why in found


def test_names_of_victims_are_escaped(service: UiService) -> None:
    assert "<b>job" not in overview_page(service.overview, service.history)


def test_the_tenant_of_a_victim_sees_its_own_names_only(service: UiService) -> None:
    found = words(service, tenant(service, "batch"))

    assert "1 of 2 pods ended" in found
    assert f"batch/sweep, {ANOTHER}" in found
    assert not [name for name in ("urgent", "llm", "other/", "job") if name in found]


def test_a_third_tenant_sees_numbers_only(service: UiService) -> None:
    found = words(service, tenant(service, "third"))

    assert "1 of 2 pods ended" in found
    assert not [name for name in ("urgent", "llm", "sweep", "job") if name in found]


def test_without_preemptions_there_is_no_table() -> None:
    node, _ = gpu_machine("n", "8a100-2n-pairs12")

    assert "Preemptions" not in words(service_of([node]))
