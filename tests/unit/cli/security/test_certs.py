"""`baton certs`: what it writes, and what a second time changes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from cli.errors import CommandError
from cli.security.authority import Authority
from cli.security.certs import SERVICE_NAME, make_certificates, run_certs
from shared.rpc.tls.certificates import read_certificates
from shared.rpc.tls.identity import PeerRole
from shared.rpc.tls.settings import TlsSettings

if TYPE_CHECKING:
    from pathlib import Path

    from cli.security.certs import CertificateFolder


def settings(folder: CertificateFolder, role: PeerRole) -> TlsSettings:
    return TlsSettings(tls_cert=folder.cert(role), tls_key=folder.key(role), tls_ca=folder.ca)


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_every_role_gets_a_certificate_that_its_service_accepts(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path / "certs", cluster="blue", hosts=("10.0.0.7", "gpu-1"))
    for role in PeerRole:
        (identity,) = read_certificates(settings(folder, role)).identities
        assert identity.uri == f"baton://blue/{role}/{role}"
        extensions = load(folder.cert(role)).extensions
        usages = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = names.get_values_for_type(x509.DNSName)
        addresses = [str(one) for one in names.get_values_for_type(x509.IPAddress)]
        if role in (PeerRole.CLIENT, PeerRole.OPERATOR):
            assert usages == {ExtendedKeyUsageOID.CLIENT_AUTH}
            assert hosts == addresses == []
        else:
            assert usages == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
            assert hosts == ["localhost", SERVICE_NAME, "gpu-1"]
            assert addresses == ["127.0.0.1", "::1", "10.0.0.7"]


def test_redis_gets_one_that_serves_and_is_nobody_in_the_cluster(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path / "certs", hosts=("baton-redis",))
    certificate, key = folder.redis
    found = read_certificates(TlsSettings(tls_cert=certificate, tls_key=key, tls_ca=folder.ca))
    assert found.identities == ()
    extensions = load(certificate).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "baton-redis"]
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.SERVER_AUTH in set(usages)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path / "certs")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    keys = [folder.ca_key, folder.redis[1], *(folder.key(role) for role in PeerRole)]
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    assert not list(folder.path.glob(".*"))


def test_a_second_time_keeps_the_ca_and_renews_the_rest(tmp_path: Path) -> None:
    first = make_certificates(tmp_path, days=1)
    ca, old = first.ca.read_bytes(), load(first.cert(PeerRole.ROUTER))
    again = make_certificates(tmp_path, days=30)
    new = load(again.cert(PeerRole.ROUTER))
    assert again.ca.read_bytes() == ca
    assert new.serial_number != old.serial_number
    assert timedelta(days=29) < new.not_valid_after_utc - datetime.now(UTC) < timedelta(days=31)
    assert read_certificates(settings(again, PeerRole.ROUTER)).ca_pem == ca


def test_no_certificate_outlives_the_ca(tmp_path: Path) -> None:
    folder = make_certificates(tmp_path, days=100_000)
    ca = load(folder.ca)
    assert load(folder.cert(PeerRole.DECODE)).not_valid_after_utc == ca.not_valid_after_utc


def test_a_ca_that_cannot_be_used_is_not_replaced(tmp_path: Path) -> None:
    authority = Authority.make("old", lifetime=timedelta(seconds=-10))
    authority.save(tmp_path / "ca.crt", tmp_path / "ca.key")
    with pytest.raises(CommandError, match="has expired"):
        make_certificates(tmp_path)
    (tmp_path / "ca.key").write_text("broken")
    with pytest.raises(CommandError, match="are no CA"):
        make_certificates(tmp_path)
    assert (tmp_path / "ca.key").read_text() == "broken"


def test_it_says_what_goes_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_certs(tmp_path, days=7, hosts=(), cluster="cluster")
    said = capsys.readouterr().out
    for role in ("router", "prefill", "decode"):
        assert f"--tls-cert {tmp_path}/{role}.crt --tls-key {tmp_path}/{role}.key" in said
    assert "PRIVATE KEY" not in said
