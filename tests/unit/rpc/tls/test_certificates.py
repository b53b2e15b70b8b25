"""What is said of certificate files that cannot be used, and what of those that can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from shared.errors import ConfigError
from shared.rpc.tls.certificates import read_certificates
from shared.rpc.tls.identity import Identity, PeerRole, identities
from shared.rpc.tls.settings import TlsSettings
from tests.fakes.security.certificates import DAY, authority, issue

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from cli.security.authority import Authority


@pytest.fixture
def ca() -> Authority:
    return authority()


def test_good_files_say_who_their_holder_is(ca: Authority, tmp_path: Path) -> None:
    found = read_certificates(issue(ca, tmp_path, PeerRole.PREFILL))
    assert found.identities == (Identity("cluster", PeerRole.PREFILL, "prefill"),)


def test_two_of_the_three_files_are_not_enough(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give --tls-ca, too"):
        TlsSettings(tls_cert=tmp_path / "a", tls_key=tmp_path / "b")
    with pytest.raises(ConfigError, match="--tls-server-name needs"):
        TlsSettings(tls_server_name="a")


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_ca"])
def test_a_file_that_is_missing_or_no_pem_is_named(
    ca: Authority, tmp_path: Path, name: str
) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL)
    path = getattr(settings, name)
    flag = "--" + name.replace("_", "-")
    path.write_text("hello")
    with pytest.raises(ConfigError, match=f"{flag} {path} is no .* in PEM"):
        read_certificates(settings)
    path.unlink()
    with pytest.raises(ConfigError, match=f"{flag} {path}: No such file"):
        read_certificates(settings)


def test_a_key_of_another_certificate_is_refused(ca: Authority, tmp_path: Path) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL)
    other = issue(ca, tmp_path / "other", PeerRole.PREFILL)
    settings.tls_key.write_bytes(other.tls_key.read_bytes())
    with pytest.raises(ConfigError, match="is not the key of"):
        read_certificates(settings)


@pytest.mark.parametrize(
    ("age", "words"),
    [(5 * DAY, "has expired: valid from "), (-DAY, "is not valid yet: valid from ")],
)
def test_a_certificate_that_is_not_valid_now_is_refused_with_its_dates(
    ca: Authority, tmp_path: Path, age: timedelta, words: str
) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL, age=age, lifetime=2 * DAY)
    with pytest.raises(ConfigError, match=rf"{words}\d{{4}}-\d\d-\d\d .* to \d{{4}}-\d\d-\d\d"):
        read_certificates(settings)


def test_a_certificate_of_another_ca_is_refused_although_the_names_are_equal(
    ca: Authority, tmp_path: Path
) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL, trusted=authority())
    with pytest.raises(ConfigError, match="was not issued by the CA"):
        read_certificates(settings)


def test_one_of_several_cas_suffices(ca: Authority, tmp_path: Path) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL)
    other = issue(authority(), tmp_path / "other", PeerRole.PREFILL)
    both = other.tls_ca.read_bytes() + settings.tls_ca.read_bytes()
    settings.tls_ca.write_bytes(both)
    assert read_certificates(settings).ca_pem == both


def test_a_key_that_others_can_read_is_warned_of(ca: Authority, tmp_path: Path) -> None:
    settings = issue(ca, tmp_path, PeerRole.PREFILL)
    with structlog.testing.capture_logs() as quiet:
        read_certificates(settings)
    assert quiet == []
    settings.tls_key.chmod(0o640)
    with structlog.testing.capture_logs() as logs:
        read_certificates(settings)
    assert [(line["event"], line["mode"]) for line in logs] == [
        ("tls_key_readable_by_others", "0640")
    ]


def test_names_that_are_none_of_ours_are_passed_over() -> None:
    names = [
        "https://cluster/prefill/a", "baton://cluster/king/a", "baton://cluster/prefill",
        "baton:///prefill/a", "baton://cluster/prefill/", "baton://c/decode/d-0",
    ]  # fmt: skip
    assert identities(names) == (Identity("c", PeerRole.DECODE, "d-0"),)
