"""The extender's settings, and the errors of invalid values."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputopo.process.settings import SettingError, options_of
from scheduler_core.extender.settings import ExtenderSettings, read_settings
from scheduler_core.runtime.tls import Certificates

DEFAULTS = ExtenderSettings(
    verbs=("127.0.0.1", 9440),
    prefix="",
    tls_cert=None,
    tls_key=None,
    client_ca=None,
    client_name="kube-scheduler",
    plain=False,
    listen=("", 9439),
    pages="loopback",
    policy=None,
    reservations=True,
    shortlist=48,
    max_body=64 * 2**20,
    decisions=256,
    decisions_file=None,
    log="json",
    lease=None,
)
TLS = {"tls_cert": "/c", "tls_key": "/k"}


def test_every_setting_has_a_default() -> None:
    assert read_settings({}, {}) == DEFAULTS
    assert DEFAULTS.certificates is None


def test_certificates_with_and_without_a_client_ca() -> None:
    assert read_settings(TLS, {}).certificates == Certificates(Path("/c"), Path("/k"))
    assert read_settings({**TLS, "client_ca": "/a"}, {}).certificates == Certificates(
        Path("/c"), Path("/k"), Path("/a"), "kube-scheduler"
    )


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"verbs": ":9440", **TLS, "client_ca": "/a"}, id="clients show certificates"),
        pytest.param({"verbs": ":9440", "plain": "allow"}, id="explicitly allowed"),
        pytest.param({"verbs": "[::1]:9440"}, id="loopback of IPv6"),
        pytest.param({"verbs": "localhost:9440"}, id="loopback by name"),
    ],
)
def test_accepted_addresses_of_the_verbs(flags: dict[str, str]) -> None:
    assert read_settings(flags, {}).verbs[1] == 9440


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        pytest.param("prefix", "/a/b/", "/a/b", id="a path"),
        pytest.param("prefix", "/", "", id="no path"),
        pytest.param("max_body", "1Gi", 2**30, id="a size"),
        pytest.param("decisions_file", "/d", Path("/d"), id="a file"),
        pytest.param("listen", "off", None, id="no pages"),
    ],
)
def test_a_value_is_parsed(field: str, text: str, value: object) -> None:
    assert getattr(read_settings({field: text}, {}), field) == value


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        pytest.param({"verbs": "off"}, "--verbs: 'off': this address cannot be off: expected HOST:PORT", id="no verbs"),
        pytest.param({"prefix": "a b"}, "--prefix: 'a b': expected a path such as /gputopo", id="no path"),
        pytest.param({"max_body": "64"}, "--max-body: '64': expected a size such as 64Mi", id="no unit"),
        pytest.param({"max_body": "0Mi"}, "--max-body: '0Mi': expected a size such as 64Mi", id="zero"),
        pytest.param({"tls_cert": "/c"}, "--tls-cert and --tls-key go together: give both or none", id="half of TLS"),
        pytest.param({"client_ca": "/a"}, "--client-ca needs --tls-cert and --tls-key", id="a CA without TLS"),
        pytest.param({"verbs": "10.0.0.1:1"}, "--verbs 10.0.0.1: every client", id="plain verbs"),
        pytest.param({"verbs": "a.example:1", **TLS}, "--verbs a.example: every client", id="TLS without client CA"),
        pytest.param({"verbs": ":1"}, "--verbs on every address: every client that reaches", id="every address"),
    ],
)
def test_an_invalid_value_is_an_error(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings(flags, {})

    assert str(refused.value).startswith(message)


def test_every_setting_has_a_help_text_and_a_variable_of_its_own() -> None:
    options = options_of(ExtenderSettings)
    assert tuple(each.field for each in options) == ExtenderSettings.__struct_fields__
    assert all(len(each.help) > 40 for each in options)
    assert len({each.variable for each in options}) == len(options)


def test_a_missing_directory_of_the_decisions_file_is_an_error(tmp_path: Path) -> None:
    there, missing = tmp_path / "d.jsonl", tmp_path / "no" / "d.jsonl"

    assert read_settings({"decisions_file": str(there)}, {}).decisions_file == there
    with pytest.raises(SettingError, match=f"the directory {missing.parent} does not exist"):
        read_settings({"decisions_file": str(missing)}, {})
