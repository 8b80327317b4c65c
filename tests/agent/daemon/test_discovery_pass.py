"""One look after another: what is seen, what is to be published, what only a restart can mend."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from agent.daemon.discovery_pass import View, look, only_a_restart_helps
from agent.snapshot import Host, Nvml, Snapshot, Sysfs
from gputopo.model import NodeTopology
from tests.agent.recordings import broken, lanes_down, machine, nvml_of

HOLD_S = 300.0
WELL = machine("4a100-1n-mesh4")
DOWN = machine("link-down")


def looks(*snapshots: Snapshot, view: View | None = None) -> View:
    """One look a minute."""
    view = view or View()
    for minute, snapshot in enumerate(snapshots):
        view = look(view, snapshot, 60.0 * minute, HOLD_S)
    return view


def topology(view: View) -> NodeTopology:
    assert view.topology is not None
    return view.topology


def test_a_link_that_goes_down_is_degraded_and_not_forgotten() -> None:
    ports = [link.link for link in nvml_of(WELL).gpus[1].nvlinks if link.remote_bus_id == nvml_of(WELL).gpus[2].bus_id]
    gone = lanes_down(lanes_down(WELL, 1, *ports), 2, *range(12))

    view = looks(WELL, gone)

    assert topology(looks(WELL)).degraded == ()
    assert {"gpu0-gpu2", "gpu1-gpu2", "gpu2-gpu3"} <= {each.what for each in topology(view).degraded}
    assert topology(view) == view.observed


def test_while_nvml_fails_what_is_to_be_published_stays() -> None:
    before, view = looks(DOWN), looks(DOWN, broken(DOWN, "UNKNOWN"), broken(DOWN, "UNKNOWN"))

    assert (view.topology, view.observed) == (before.topology, before.observed)
    assert view.failures == {"nvml": "nvmlInit_v2: UNKNOWN"}
    assert view.failing_since == 60.0
    assert (view.good_at["nvml"], view.good_at["sysfs"]) == (0.0, 120.0)


def test_when_nvml_is_back_nothing_is_held_against_it() -> None:
    view = looks(WELL, broken(WELL, "UNKNOWN"), WELL)

    assert topology(view) == topology(looks(WELL))
    assert (view.failures, view.failing_since) == ({}, None)
    assert view.good_at["nvml"] == 120.0


def test_a_source_that_fails_beside_nvml_changes_nothing() -> None:
    blind = replace(WELL, sysfs=None, host=None, errors={"sysfs": "OSError", "host": "OSError"})

    view = looks(WELL, blind)

    assert topology(view) == topology(looks(WELL))
    assert view.failures == {"sysfs": "OSError", "host": "OSError"}


def test_a_machine_without_a_driver_has_nothing_to_publish() -> None:
    view = looks(broken(WELL, "DRIVER_NOT_LOADED"))

    assert (view.topology, view.observed, view.failing_since) == (None, None, 0.0)
    assert topology(looks(broken(WELL, "DRIVER_NOT_LOADED"), WELL)) == topology(looks(WELL))


@pytest.mark.parametrize(
    ("boot", "degraded"),
    [pytest.param(None, True, id="in this boot"), pytest.param("another", False, id="before a reboot")],
)
def test_what_an_earlier_agent_published_is_missed_in_the_same_boot_only(boot: str | None, degraded: bool) -> None:
    published = topology(looks(WELL))
    assert published.boot_id is not None
    published = msgspec.structs.replace(published, boot_id=boot or published.boot_id)
    nvml = nvml_of(WELL)
    linkless = replace(nvml, gpus=tuple(replace(gpu, nvlinks=(), nvlink_count=None) for gpu in nvml.gpus))

    view = look(View(recalled=published), replace(WELL, nvml=linkless, smi=None), 0.0, HOLD_S)

    assert bool(topology(view).degraded) is degraded


def test_a_machine_that_tells_no_boot_recalls_nothing() -> None:
    published = msgspec.structs.replace(topology(looks(WELL)), boot_id=None)
    unknown = replace(machine("1l4-1n"), host=Host())

    view = look(View(recalled=published), unknown, 0.0, HOLD_S)

    assert topology(view) == topology(looks(unknown))


LOADED = Sysfs({"module/nvidia/version": "580.95.05\n"})


@pytest.mark.parametrize(
    ("snapshots", "helps"),
    [
        pytest.param([WELL], False, id="nothing fails"),
        pytest.param([WELL, broken(WELL, "UNKNOWN")], True, id="the devices were taken away"),
        pytest.param([WELL, broken(WELL, "LIB_RM_VERSION_MISMATCH")], True, id="the driver was upgraded"),
        pytest.param([WELL, broken(WELL, "NO_PERMISSION")], True, id="the device rules changed"),
        pytest.param([WELL, broken(WELL, "DRIVER_NOT_LOADED")], False, id="the driver is being reloaded"),
        pytest.param([broken(WELL, "LIB_RM_VERSION_MISMATCH")], False, id="it never worked"),
        pytest.param([Snapshot(nvml=Nvml("nvmlInit_v2: LIBRARY_NOT_FOUND"))], False, id="no driver at all"),
        pytest.param(
            [Snapshot(nvml=Nvml("nvmlInit_v2: LIBRARY_NOT_FOUND"), sysfs=LOADED)], True, id="a driver without library"
        ),
        pytest.param([Snapshot(nvml=Nvml("nvmlInit_v2: UNKNOWN"), sysfs=LOADED)], False, id="a driver that is ill"),
    ],
)
def test_a_restart_helps_where_a_process_is_stuck_with_what_it_started_with(
    snapshots: list[Snapshot], helps: bool
) -> None:
    assert only_a_restart_helps(looks(*snapshots)) is helps
