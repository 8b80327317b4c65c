"""The client certificates that give access to the verbs, over real TLS connections."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from scheduler_core.runtime.tls import Certificates
from tests.authority import SERVER, Authority
from tests.scheduler_core.runtime.served import Passing, Running, app_of, call, serving

NAME = "kube-scheduler"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def served_as(running: Running, authority: Authority, client: Path) -> int:
    """The status of a call that shows a certificate. Raises ``OSError`` if it is refused."""
    secure = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
    secure.load_cert_chain(client)
    caller = running.client(secure, "localhost")
    try:
        caller.request("POST", "/filter", call("n1"))
        return caller.getresponse().status
    finally:
        caller.close()


def files(authority: Authority, name: str = NAME) -> Certificates:
    ours = authority.certificate("gputopo-extender", x509.DNSName("localhost"), usage=SERVER)
    return Certificates(ours, ours, authority.folder / "ca.crt", name)


def test_only_the_name_of_the_caller_opens_the_verbs(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    uri = x509.UniformResourceIdentifier(NAME)
    admitted = [
        authority.certificate("x", x509.DNSName("other"), x509.DNSName(NAME)),
        authority.certificate("x", uri),
        authority.certificate(NAME),  # without alternative names
        authority.certificate(NAME, usage=None),
    ]
    refused = [
        authority.certificate("another", x509.DNSName("another")),
        authority.certificate(NAME, x509.DNSName("another")),  # alternative names beat the common name
        authority.certificate("x", x509.DNSName(f"{NAME}.example.org")),
        authority.certificate("x", x509.DNSName("*")),
        authority.certificate(f"{NAME}\x00x"),
        authority.certificate(NAME, x509.DNSName(NAME), usage=SERVER),  # the extender's own key is no client's
    ]
    with caplog.at_level(logging.WARNING), serving(app_of(Passing()), certificates=files(authority)) as running:
        assert [served_as(running, authority, each) for each in admitted] == [200] * len(admitted)
        for each in refused:
            with pytest.raises(OSError, match=r"alert|reset|EOF|closed|Broken|unsuitable"):
                served_as(running, authority, each)
        assert running.listener.closed["client"] == 5

    assert [each.message for each in caplog.records] == ["client certificate"]  # once, however often it happens


def test_without_a_name_every_client_of_the_ca_is_served(authority: Authority) -> None:
    with serving(app_of(Passing()), certificates=files(authority, "")) as running:
        assert served_as(running, authority, authority.certificate("another", x509.DNSName("another"))) == 200
