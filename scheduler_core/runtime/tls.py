"""TLS of the servers, with certificates from files that may rotate, and its settings.

CertificateError(Exception)    the files are unusable; the message names them
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gputopo.process.settings import Setting, SettingError, parse_path

TLS_CERT_SETTING = Setting("--tls-cert", "FILE", "", parse_path)
TLS_CERT_HELP = (
    "The certificate of this server with its chain, PEM. It enables TLS. A rotated file is loaded within seconds."
)
TLS_KEY_SETTING = Setting("--tls-key", "FILE", "", parse_path)
TLS_KEY_HELP = "The private key of that certificate, PEM, not encrypted."


class CertificateError(Exception):
    """The files are unusable."""


class Certificates(NamedTuple):
    """The certificate files, in PEM."""

    certificate: Path  # of the server, with its chain
    key: Path
    client_ca: Path | None = None  # clients need a certificate of this CA; None: no client certificates
    client_name: str = ""  # that client certificates must have; "": any


def certificates_of(
    certificate: Path | None, key: Path | None, client_ca: Path | None = None, client_name: str = ""
) -> Certificates | None:
    """Return the files of the settings; None: plain HTTP. Raises ``SettingError``."""
    if (certificate is None) != (key is None):
        raise SettingError("--tls-cert and --tls-key go together: give both or none")
    if certificate is not None and key is not None:
        return Certificates(certificate, key, client_ca, client_name if client_ca else "")
    if client_ca is not None:
        raise SettingError("--client-ca needs --tls-cert and --tls-key: without TLS no client shows a certificate")
    return None


def read_files(files: Certificates) -> tuple[bytes | None, ...]:
    """Return the contents of the files, to detect a rotation; None for a missing file."""
    return tuple(_read_file(path) for path in files[:3] if path is not None)


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def server_context(files: Certificates) -> ssl.SSLContext:
    """Return the TLS context of a server. Raises ``CertificateError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(str(path) for path in files[:3] if path is not None)
        raise CertificateError(f"{names}: no usable certificate, key and client CA in PEM: {error}") from error
    return context


def has_name(certificate: Mapping[str, Any], name: str) -> bool:
    """Return whether a verified certificate (``SSLSocket.getpeercert()``) has a subject alternative name.

    Without any alternative name, its common name counts.
    """
    names = [value for _, value in certificate.get("subjectAltName", ())]
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return name in (names or common)


def _no_password() -> str:
    raise ValueError("the key is encrypted; an unencrypted key is needed")
