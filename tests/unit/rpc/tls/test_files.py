"""Certificates that are replaced while they are in use."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from shared.errors import ConfigError
from shared.rpc.tls.files import CertificateFiles, open_certificates
from shared.rpc.tls.identity import Identity, PeerRole
from shared.rpc.tls.settings import TlsSettings
from tests.fakes.security.certificates import DAY, authority, followed, issue

if TYPE_CHECKING:
    from pathlib import Path


def test_new_files_are_taken_up_once_they_fit_together(tmp_path: Path) -> None:
    ca = authority()
    files = followed(issue(ca, tmp_path, PeerRole.DECODE))
    first = files.current()
    assert files.current() is first
    other = issue(ca, tmp_path / "new", PeerRole.DECODE)
    shutil.copy(other.tls_cert, tmp_path / "decode.crt")
    assert files.current() is first, "the key is still the old one"
    shutil.copy(other.tls_key, tmp_path / "decode.key")
    assert files.current().cert_pem == other.tls_cert.read_bytes()


@pytest.mark.parametrize("what", ["gone", "expired", "garbage", "stranger"])
def test_files_that_cannot_be_used_change_nothing(tmp_path: Path, what: str) -> None:
    ca = authority()
    files = followed(issue(ca, tmp_path, PeerRole.DECODE))
    first = files.current()
    if what == "gone":
        (tmp_path / "decode.crt").unlink()
    elif what == "expired":
        issue(ca, tmp_path, PeerRole.DECODE, age=9 * DAY, lifetime=DAY)
    elif what == "garbage":
        (tmp_path / "decode.key").write_text("garbage")
    else:
        issue(authority(), tmp_path, PeerRole.DECODE, trusted=ca)
    assert files.current() is first
    issue(ca, tmp_path, PeerRole.DECODE)
    assert files.current() is not first


def test_the_files_are_looked_at_once_in_a_while(tmp_path: Path) -> None:
    ca, now = authority(), [0.0]
    settings = issue(ca, tmp_path, PeerRole.DECODE)
    files = CertificateFiles(settings, look_every_s=1.0, clock=lambda: now[0])
    first = files.current()
    issue(ca, tmp_path, PeerRole.DECODE)
    now[0] = 0.9
    assert files.current() is first
    now[0] = 1.0
    assert files.current() is not first


def test_a_service_needs_a_certificate_of_its_own_role(tmp_path: Path) -> None:
    settings = issue(authority(), tmp_path, PeerRole.CLIENT)
    with pytest.raises(ConfigError, match=r"not for a prefill: .* baton://cluster/client/client"):
        open_certificates(settings, PeerRole.PREFILL)
    files = open_certificates(settings, PeerRole.CLIENT)
    assert files is not None
    assert files.identity(PeerRole.CLIENT) == Identity("cluster", PeerRole.CLIENT, "client")
    assert open_certificates(TlsSettings(), PeerRole.PREFILL) is None
