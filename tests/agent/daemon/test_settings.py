"""The agent's settings, and the errors of invalid values."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from agent.daemon.settings import AgentSettings, read_settings
from gputopo.process.settings import SettingError, options_of

DEFAULTS = AgentSettings(
    node="gpu-7",
    publish=("node", None),
    mirror=True,
    interval_s=60.0,
    heartbeat_s=300.0,
    lease_after_s=3600.0,
    hold_s=300.0,
    grace_s=120.0,
    socket=Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
    kubelet_config=(),
    node_resource_topology=False,
    events=True,
    listen=("", 9438),
    log="json",
    node_source=None,
)


def test_nothing_but_the_node_must_be_set() -> None:
    assert read_settings({}, {"NODE_NAME": "gpu-7"}) == DEFAULTS


def test_without_a_node_it_is_this_host() -> None:
    assert read_settings({}, {}).node == socket.gethostname()


def test_flags_override_the_environment_which_overrides_the_default() -> None:
    environ = {"NODE_NAME": "gpu-7", "GPUTOPO_INTERVAL": "30s", "GPUTOPO_GRACE": "1m"}

    settings = read_settings({"interval_s": "10", "hold_s": None}, environ)

    assert (settings.interval_s, settings.grace_s, settings.hold_s) == (10.0, 60.0, 300.0)


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        pytest.param("interval_s", "1.5m", 90.0, id="minutes"),
        pytest.param("heartbeat_s", "1h", 3600.0, id="an hour"),
        pytest.param("hold_s", "0", 0.0, id="no hysteresis"),
        pytest.param("publish", "nodefeature:nfd", ("nodefeature", "nfd"), id="a namespace"),
        pytest.param("publish", "features.d:/run/f", ("features.d", "/run/f"), id="a file"),
        pytest.param("publish", "stdout", ("stdout", None), id="standard output"),
        pytest.param("mirror", "off", False, id="no mirrors"),
        pytest.param("events", "off", False, id="no events"),
        pytest.param("socket", "off", None, id="no kubelet"),
        pytest.param("listen", "off", None, id="no server"),
        pytest.param("listen", "127.0.0.1:0", ("127.0.0.1", 0), id="an address"),
        pytest.param("listen", "[::1]:80", ("::1", 80), id="an IPv6 address"),
        pytest.param("node_source", "m.json", Path("m.json"), id="a recorded machine"),
    ],
)
def test_a_value_is_read(field: str, text: str, value: object) -> None:
    assert getattr(read_settings({field: text}, {}), field) == value


@pytest.mark.parametrize(
    ("field", "text", "says"),
    [
        pytest.param(
            "interval_s", "often", "--interval: 'often': expected a time such as 90s, 5m or 1h", id="no number"
        ),
        pytest.param("interval_s", "0.5s", "--interval: '0.5s': it must be at least 1s", id="too often"),
        pytest.param("heartbeat_s", "-1", "--heartbeat: '-1': expected a time such as 90s, 5m or 1h", id="negative"),
        pytest.param("mirror", "on", "--mirror: 'on': expected one of auto, off", id="not a choice"),
        pytest.param(
            "publish",
            "nfd",
            "--publish: 'nfd': expected one of node, nodefeature, features.d, stdout",
            id="not a place",
        ),
        pytest.param("publish", "node:x", "--publish: 'node:x': node takes no argument", id="too much"),
        pytest.param("publish", "features.d:", "--publish: 'features.d:': write features.d:FILE", id="too little"),
        pytest.param(
            "listen", "9438", "--listen: '9438': expected HOST:PORT, with a port of at most 65535", id="no colon"
        ),
        pytest.param(
            "listen",
            ":70000",
            "--listen: ':70000': expected HOST:PORT, with a port of at most 65535",
            id="no such port",
        ),
    ],
)
def test_an_invalid_value_is_quoted_with_the_expected_form(field: str, text: str, says: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings({field: text}, {})

    assert str(refused.value) == says


def test_an_invalid_value_in_the_environment_is_reported_by_its_variable() -> None:
    with pytest.raises(SettingError, match=r"^GPUTOPO_LOG: 'xml': expected one of json, text, json:debug, text:debug$"):
        read_settings({}, {"GPUTOPO_LOG": "xml"})


def test_every_setting_has_a_help_text_and_there_are_few() -> None:
    options = options_of(AgentSettings)
    assert tuple(each.field for each in options) == AgentSettings.__struct_fields__
    assert all(len(each.help) > 40 for each in options)
    assert len(options) <= 15
