"""TLS of the verbs: certificates from files, read again when they rotate.

CertificateError(Exception)    the files cannot be used; the message names them
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple


class CertificateError(Exception):
    """The files cannot be used."""


class Certificates(NamedTuple):
    """The files, in PEM."""

    certificate: Path  # ours, with its chain
    key: Path
    client_ca: Path | None = None  # who is not certified by it is refused; None: anybody may call


def read_files(files: Certificates) -> tuple[bytes | None, ...]:
    """What is in the files now: another value after they rotated. None for one that is not there at the moment."""
    return tuple(_read(path) for path in files if path is not None)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def server_context(files: Certificates) -> ssl.SSLContext:
    """A server's side of TLS. Raises ``CertificateError``."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    try:
        made.load_cert_chain(files.certificate, files.key, password=_no_password)
        if files.client_ca is not None:
            made.load_verify_locations(files.client_ca)
            made.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        names = ", ".join(str(path) for path in files if path is not None)
        raise CertificateError(f"{names}: no usable certificate, key and client CA in PEM: {error}") from error
    return made


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not")
