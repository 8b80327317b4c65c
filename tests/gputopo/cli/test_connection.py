"""The connection of a command to a cluster."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import gputopo.kube.connect as connect_module
from gputopo.cli.cluster import nodes
from gputopo.cli.connection import connected_cluster, listing_cluster
from gputopo.kube.client import Kube
from tests.api_server import Answer, api_server


def test_threads_take_turns_less_often_while_lists_are_read(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    with api_server(lambda _: Answer({"items": []})) as server:
        config = str(server.kubeconfig(tmp_path / "config"))
        with listing_cluster(config, None):
            while_listing = sys.getswitchinterval()

    assert (while_listing > before, sys.getswitchinterval()) == (True, before)


@pytest.fixture
def unfrozen() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unfrozen")
def test_garbage_collection_pauses_until_the_command_ends_and_does_not_search_the_lists(tmp_path: Path) -> None:
    with api_server(lambda _: Answer({"items": []})) as server:
        config = str(server.kubeconfig(tmp_path / "config"))
        with click.Context(nodes):
            with listing_cluster(config, None):
                while_listing = gc.isenabled()
            while_printing = gc.isenabled()

    assert (while_listing, while_printing) == (False, False)
    assert (gc.isenabled(), gc.get_freeze_count() > 0) == (True, True)


@pytest.mark.usefixtures("unfrozen")
def test_garbage_collection_goes_on_in_programs_that_run_long(tmp_path: Path) -> None:
    with api_server(lambda _: Answer({"items": []})) as server:
        config = str(server.kubeconfig(tmp_path / "config"))
        with listing_cluster(config, None):
            pass
        after_a_list = gc.isenabled()
        with connected_cluster(config, None):
            while_connected = gc.isenabled()

    assert (after_a_list, while_connected) == (True, True)


def test_garbage_collection_pauses_while_the_packages_of_the_connection_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, while_connecting = connect_module.connect, list[bool]()

    def observed_connect(*arguments: Any) -> Kube:
        while_connecting.append(gc.isenabled())
        return connect(*arguments)

    monkeypatch.setattr(connect_module, "connect", observed_connect)
    with (
        api_server(lambda _: Answer({"items": []})) as server,
        listing_cluster(str(server.kubeconfig(tmp_path / "config")), None),
    ):
        pass

    assert while_connecting == [False]
