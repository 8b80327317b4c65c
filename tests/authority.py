"""A certificate authority for tests of TLS."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH

_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """A CA that certifies what it is asked to, in a folder. ``strict``: with all extensions that RFC 5280 requires."""

    def __init__(self, folder: Path, *, strict: bool = True) -> None:
        self.folder = folder
        self._strict = strict
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gputopo-extender-ca")])
        made = self._builder(self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        if strict:
            made = made.add_extension(_SIGNS_CERTIFICATES, critical=True)
        (folder / "ca.crt").write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def certificate(
        self, common: str, *alternatives: x509.GeneralName, usage: x509.ObjectIdentifier | None = CLIENT
    ) -> Path:
        """A file with key and certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = self._builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]), key)
        if alternatives:
            built = built.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        if usage is not None:
            built = built.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        pem = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        encoding = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        path = self.folder / f"{len(list(self.folder.iterdir()))}.pem"
        path.write_bytes(pem + key.private_bytes(*encoding))
        return path

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        found = x509.CertificateBuilder(subject_name=subject, issuer_name=self._name, public_key=key.public_key())
        found = found.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        found = found.serial_number(x509.random_serial_number())
        if not self._strict:
            return found
        ours, theirs = self._key.public_key(), key.public_key()
        found = found.add_extension(x509.SubjectKeyIdentifier.from_public_key(theirs), critical=False)
        return found.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ours), critical=False)
