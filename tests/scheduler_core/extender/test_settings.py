"""What an operator can set at the extender, and what is said to one who sets it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gputopo.process.settings import SettingError
from scheduler_core.extender.settings import TABLE, ExtenderSettings, read_settings
from scheduler_core.runtime.tls import Certificates

DEFAULTS = ExtenderSettings(
    verbs=("127.0.0.1", 9440),
    prefix="",
    tls_cert=None,
    tls_key=None,
    client_ca=None,
    plain=False,
    listen=("", 9439),
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


def test_nothing_must_be_set() -> None:
    assert read_settings({}, {}) == DEFAULTS
    assert DEFAULTS.certificates is None


def test_certificates_are_three_files_or_two() -> None:
    assert read_settings(TLS, {}).certificates == Certificates(Path("/c"), Path("/k"))
    assert read_settings({**TLS, "client_ca": "/a"}, {}).certificates == Certificates(
        Path("/c"), Path("/k"), Path("/a")
    )


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param({"verbs": ":9440", **TLS, "client_ca": "/a"}, id="clients show certificates"),
        pytest.param({"verbs": ":9440", "plain": "allow"}, id="whoever set it up knows better"),
        pytest.param({"verbs": "[::1]:9440"}, id="loopback of IPv6"),
        pytest.param({"verbs": "localhost:9440"}, id="loopback by name"),
    ],
)
def test_verbs_may_be_there(flags: dict[str, str]) -> None:
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
def test_a_value_is_read(field: str, text: str, value: object) -> None:
    assert getattr(read_settings({field: text}, {}), field) == value


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        pytest.param({"verbs": "off"}, "--verbs: 'off': the verbs cannot be off: write HOST:PORT", id="no verbs"),
        pytest.param({"prefix": "a b"}, "--prefix: 'a b': write a path like /gputopo", id="no path"),
        pytest.param({"max_body": "64"}, "--max-body: '64': write a size like 64Mi", id="no unit"),
        pytest.param({"max_body": "0Mi"}, "--max-body: '0Mi': write a size like 64Mi", id="nothing"),
        pytest.param({"tls_cert": "/c"}, "--tls-cert and --tls-key go together: give both or none", id="half of TLS"),
        pytest.param({"client_ca": "/a"}, "--client-ca needs --tls-cert and --tls-key", id="a CA without TLS"),
        pytest.param({"verbs": "10.0.0.1:1"}, "--verbs 10.0.0.1: whoever reaches the verbs beyond", id="plain verbs"),
        pytest.param({"verbs": "a.example:1", **TLS}, "--verbs a.example: whoever reaches", id="TLS for everybody"),
        pytest.param({"verbs": ":1"}, "--verbs on every address: whoever reaches", id="everywhere"),
    ],
)
def test_a_wrong_value_is_quoted_with_what_to_write(flags: dict[str, str], says: str) -> None:
    with pytest.raises(SettingError) as refused:
        read_settings(flags, {})

    assert str(refused.value).startswith(says)


def test_the_table_has_a_row_for_every_field_and_a_reason_in_each() -> None:
    assert tuple(row.field for row in TABLE) == ExtenderSettings.__struct_fields__
    assert all(len(row.reason) > 40 for row in TABLE)
    assert len({row.variable for row in TABLE}) == len(TABLE)


def test_folder_of_the_decisions_that_is_not_there_is_refused(tmp_path: Path) -> None:
    there, missing = tmp_path / "d.jsonl", tmp_path / "no" / "d.jsonl"

    assert read_settings({"decisions_file": str(there)}, {}).decisions_file == there
    with pytest.raises(SettingError, match=f"--decisions-file {missing}: there is no folder {missing.parent}"):
        read_settings({"decisions_file": str(missing)}, {})
