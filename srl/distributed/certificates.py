"""Certificates of one trial, for mutual TLS on the control plane: who has the trial's files takes part, nobody else.

A new authority is made per trial and signs one certificate for the server and one for all workers; its own key is
thrown away. Files are 0600 in a 0700 directory and go to workers by path, never on a command line or into a log.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SERVER_NAME = "srl-controller"
"""Name in the server's certificate; workers expect it whatever address they dialled."""

_VALID = datetime.timedelta(days=365)
_CLOCK_SKEW = datetime.timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Credentials:
    """PEM texts of one side: the authority's certificate, the own certificate chain and its private key."""

    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Nothing of the key ever reaches a log."""
        return "Credentials(...)"


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """Where a trial's certificates lie.

    Attributes:
        directory: Mode 0700; holds ``authority.pem`` and, per side, ``SIDE.pem`` and ``SIDE.key``.
    """

    directory: Path

    @classmethod
    def create(cls, directory: Path, hosts: Sequence[str] = ()) -> CertificateFiles:
        """Make a trial's certificates.

        Args:
            directory: Made with mode 0700; must not exist.
            hosts: Names and addresses of the controller beside its host name, ``localhost`` and the loopbacks.
        """
        directory.mkdir(mode=0o700)
        authority_key = ec.generate_private_key(ec.SECP256R1())
        authority = _authority(authority_key)
        _write(directory / "authority.pem", _pem(authority))
        names = [SERVER_NAME, socket.gethostname(), "localhost", "127.0.0.1", "::1", *hosts]
        for side, purpose in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("worker", ExtendedKeyUsageOID.CLIENT_AUTH)):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _signed(side, key, purpose, names if side == "server" else [], authority, authority_key)
            _write(directory / f"{side}.pem", _pem(certificate))
            _write(directory / f"{side}.key", _private_pem(key))
        return cls(directory)

    @property
    def server(self) -> Credentials:
        """The controller's credentials."""
        return self._read("server")

    @property
    def worker(self) -> Credentials:
        """The workers' credentials."""
        return self._read("worker")

    def _read(self, side: str) -> Credentials:
        texts = ((self.directory / name).read_bytes() for name in ("authority.pem", f"{side}.pem", f"{side}.key"))
        return Credentials(*texts)


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    name = _name("authority")
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        _builder(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )


def _signed(
    side: str,
    key: ec.EllipticCurvePrivateKey,
    purpose: x509.ObjectIdentifier,
    names: Sequence[str],
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    builder = (
        _builder(_name(side), authority.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if names:
        unique = list(dict.fromkeys(names))
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(n) for n in unique]), critical=False)
    return builder.sign(authority_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
    )


def _name(side: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"srl {side}")])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that is 0600 from its first moment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
