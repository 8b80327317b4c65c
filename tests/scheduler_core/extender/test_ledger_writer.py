"""Entries for ledgers are written without blocking the caller; if the API server is slow, the last entry is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputopo.crd.reservations import ExtenderAck, LedgerStatus
from gputopo.kube.connect import from_kubeconfig
from gputopo.kube.rbac import EXTENDER
from scheduler_core.extender.ledger_registration import apply_body
from scheduler_core.extender.ledger_writer import LedgerWriter
from tests.api_server import Answer, ApiServer, Asked, api_server
from tests.gputopo.kube.serving import wait_for
from tests.scheduler_core.planner.packing.plans import ledger

DONE = Answer({"metadata": {"name": "gpus"}})


@contextmanager
def writing(answer: Callable[[Asked], Answer], folder: Path) -> Iterator[tuple[LedgerWriter, ApiServer]]:
    with api_server(answer) as server:
        kube = from_kubeconfig(EXTENDER, server.kubeconfig(folder / "config"))
        registrar = LedgerWriter(kube, "host_1")
        try:
            yield registrar, server
        finally:
            registrar.close()
            kube.close()


def test_acknowledgements_are_applied_by_their_own_field_manager(tmp_path: Path) -> None:
    with writing(lambda _: DONE, tmp_path) as (registrar, server):
        registrar.write_ack(ledger(), ExtenderAck("ns/extender", 3, ("R",), 2))
        registrar.close()

    (asked,) = server.asked
    assert (asked.method, asked.path) == ("PATCH", "/apis/gputopo.io/v1alpha1/placementledgers/gpus/status")
    assert asked.query["fieldManager"] == "gputopo-extender-host_1"
    assert asked.body["status"] == {
        "extenders": {"host_1": {"pod": "ns/extender", "generation": 3, "blocked": ["R"], "term": 2}}
    }


@given(st.builds(ExtenderAck, pod=st.text(max_size=9), generation=st.integers(0, 9), term=st.integers(0, 9)))
def test_every_acknowledgement_is_read_back_unchanged(said: ExtenderAck) -> None:
    """An extender waits until the ledger shows what it said: a part that is not written is never shown."""
    status = apply_body(ledger(), "host_1", said)["status"]

    assert msgspec.convert(status, LedgerStatus) == LedgerStatus({"host_1": said})


def test_only_the_last_of_many_acknowledgements_is_written(tmp_path: Path) -> None:
    said: list[int] = []

    def answer(asked: Asked) -> Answer:
        if not said:  # the first answer takes its time
            for generation in range(2, 9):
                running[0].write_ack(ledger(), ExtenderAck("", generation))
        said.append(asked.body["status"]["extenders"]["host_1"]["generation"])
        return DONE

    running: list[LedgerWriter] = []
    with writing(answer, tmp_path) as (registrar, _):
        running.append(registrar)
        registrar.write_ack(ledger(), ExtenderAck("", 1))
        wait_for(lambda: len(said) == 2, "both writes")

    assert said == [1, 8]


@pytest.mark.parametrize(
    ("status", "level"),
    [
        pytest.param(403, logging.WARNING, id="it may not"),
        pytest.param(500, logging.WARNING, id="no answer"),
        pytest.param(404, logging.INFO, id="the ledger is gone"),
        pytest.param(409, logging.INFO, id="it is another ledger"),
    ],
)
def test_an_error_is_logged_once_until_it_ends(
    status: int, level: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [Answer({"message": "no"}, status)] * 2 + [DONE]
    with (
        caplog.at_level(logging.INFO, "scheduler_core.extender.ledger_writer"),
        writing(lambda _: answers.pop(0), tmp_path) as (registrar, server),
    ):
        for number in (1, 2):
            registrar.write_ack(ledger(), ExtenderAck("", number))
            wait_for(partial(_asked, server, number), "a write")
        wait_for(lambda: registrar.error, "the trouble")
        registrar.write_ack(ledger(), ExtenderAck("", 3))
        wait_for(lambda: registrar.error is None, "the end of it")

    assert [each.levelno for each in caplog.records] == [level]


def _asked(server: ApiServer, times: int) -> bool:
    return len(server.asked) == times
