"""A trial's certificates: their modes, and that nothing of a key is ever shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from cryptography import x509

from srl.distributed.certificates import SERVER_NAME, CertificateFiles


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        files = CertificateFiles.create(tmp_path / "keys")
    finally:
        os.umask(previous)
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    names = sorted(path.name for path in files.directory.iterdir())
    assert names == ["authority.pem", "server.key", "server.pem", "worker.key", "worker.pem"]
    assert {stat.S_IMODE((files.directory / name).stat().st_mode) for name in names} == {0o600}


def test_the_servers_certificate_names_it_and_its_hosts(tmp_path: Path) -> None:
    files = CertificateFiles.create(tmp_path / "keys", hosts=["cluster.example", "10.1.2.3"])
    certificate = x509.load_pem_x509_certificate(files.server.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {SERVER_NAME, "cluster.example", "localhost"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"10.1.2.3", "127.0.0.1", "::1"} <= {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}


def test_sides_differ_and_trials_differ(tmp_path: Path) -> None:
    one, two = (CertificateFiles.create(tmp_path / name) for name in ("one", "two"))
    assert one.server.authority == one.worker.authority != two.server.authority
    assert one.server.key != one.worker.key
    with pytest.raises(FileExistsError):
        CertificateFiles.create(tmp_path / "one")


def test_credentials_do_not_show_their_key(tmp_path: Path) -> None:
    credentials = CertificateFiles.create(tmp_path / "keys").worker
    assert b"PRIVATE" in credentials.key
    assert "PRIVATE" not in repr(credentials)
