"""Whose request it is, by its headers; a changed file counts at once, a broken one never."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from shared.errors import AuthenticationError, ConfigError
from tests.fakes.security.keys import keys_on_disk, wrong_secret

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.security.keys import KeysOnDisk


@pytest.fixture
def disk(tmp_path: Path) -> KeysOnDisk:
    return keys_on_disk(tmp_path)


def bearer(key: str | bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Bearer " + (key if isinstance(key, bytes) else key.encode()))


def x_api_key(key: str) -> tuple[bytes, bytes]:
    return (b"x-api-key", key.encode())


def refusal(ring: KeyRing, *headers: tuple[bytes, bytes]) -> str:
    with pytest.raises(AuthenticationError) as error:
        ring.caller(headers)
    return str(error.value)


def test_a_key_is_its_tenants(disk: KeysOnDisk) -> None:
    ring = KeyRing(FileKeys(disk.path))
    for name in ("a", "b", "ops"):
        key = disk.keys[name]
        for header in (bearer(key), x_api_key(key), (b"authorization", b"bEARER  " + key.encode())):
            caller = ring.caller([(b"host", b"x"), header])
            assert caller.tenant.name == name
            assert caller.is_operator == (name == "ops")
    assert ring.caller([bearer(disk.keys["a"])]).tenant.max_concurrent_requests == 3
    # Twice the same is no contradiction.
    assert ring.caller([bearer(disk.keys["a"]), x_api_key(disk.keys["a"])]).tenant.name == "a"


def test_a_calls_metadata_is_read_like_headers(disk: KeysOnDisk) -> None:
    ring = KeyRing(FileKeys(disk.path))
    key = disk.keys["b"]
    assert ring.caller_of_call([("authorization", f"Bearer {key}")]).tenant.name == "b"
    assert ring.caller_of_call([("x-api-key", key.encode())]).tenant.name == "b"
    with pytest.raises(AuthenticationError):
        ring.check([("x-bin", b"\xff"), ("authorization", "Bearer \udcff")])


def test_whoever_has_no_valid_key_is_nobody(disk: KeysOnDisk) -> None:
    ring = KeyRing(FileKeys(disk.path))
    key, other = disk.keys["a"], disk.keys["b"]
    for nothing in ([], [bearer("")], [x_api_key(" ")], [(b"authorization", b"Bearer")]):
        assert refusal(ring, *nothing).startswith("no API key")
    for wrong in (
        wrong_secret(key),
        # The id of one and the secret of the other.
        key[:20] + other[20:],
        "bt-" + "0" * 16 + key[19:],
    ):
        assert refusal(ring, bearer(wrong)) == "the API key is not valid"
    for malformed in (
        [(b"authorization", b"Basic dTpw")],
        [(b"authorization", key.encode())],
        [bearer(key), bearer(other)],
        [bearer(key), x_api_key(other)],
        [bearer(key), x_api_key("")],
        [bearer(key), (b"authorization", b"Basic dTpw")],
        [bearer(key + "," + other)],
        [bearer(b"\xff\xfe" * 40)],
        [bearer(b"\x00" * 63)],
        [bearer("bt-" + "a" * 1_000_000)],
        [bearer(key + "\r\nx: y")],
    ):
        message = refusal(ring, *malformed)
        assert message.startswith("the API key cannot be read")
        assert key not in message


def test_an_ended_key_is_refused_from_its_moment(disk: KeysOnDisk) -> None:
    key = disk.add("late", key_lines=("expires = 2030-01-01T00:00:00Z",))
    now_s = 1893455999.0
    ring = KeyRing(FileKeys(disk.path, now=lambda: now_s))
    assert ring.caller([bearer(key)]).tenant.name == "late"
    now_s += 1
    with capture_logs() as logs:
        assert refusal(ring, bearer(key)) == "the API key has expired"
    assert key not in repr(logs)
    # Who does not have the secret does not learn that there was such a key.
    assert refusal(ring, bearer(wrong_secret(key))) == "the API key is not valid"


def test_a_changed_file_counts_at_once(disk: KeysOnDisk) -> None:
    ring = KeyRing(FileKeys(disk.path))
    old = disk.keys["a"]
    disk.remove("a")
    new = disk.add("c")
    assert ring.caller([bearer(old)]).tenant.name == "a"
    ring.files[0].reload()
    assert refusal(ring, bearer(old)) == "the API key is not valid"
    assert ring.caller([bearer(new)]).tenant.name == "c"


@pytest.mark.parametrize("broken", ["", "tenants = 3", "[[[", None])
def test_a_broken_file_changes_nothing_but_a_metric_and_the_log(
    disk: KeysOnDisk, broken: str | None
) -> None:
    ring = KeyRing(FileKeys(disk.path))
    registry = CollectorRegistry()
    registry.register(ring)
    good = disk.path.read_text()
    if broken is None:
        disk.path.unlink()
    else:
        disk.path.write_text(broken)
    with capture_logs() as logs:
        ring.files[0].reload()
        ring.files[0].reload()
    # Once, however often it is looked at.
    assert [entry["event"] for entry in logs] == ["file_not_reloaded"]
    assert logs[0]["log_level"] == "error"
    for name in ("a", "b", "ops"):
        assert ring.caller([bearer(disk.keys[name])]).tenant.name == name
    assert registry.get_sample_value("baton_api_keys_broken") == 1
    assert registry.get_sample_value("baton_api_keys") == 3
    disk.path.write_text(good)
    ring.files[0].reload()
    assert registry.get_sample_value("baton_api_keys_broken") == 0
    with pytest.raises(ConfigError):
        FileKeys(disk.path.parent / "none.toml")


def test_refusals_are_counted_by_reason(disk: KeysOnDisk) -> None:
    ring = KeyRing(FileKeys(disk.path))
    registry = CollectorRegistry()
    registry.register(ring)
    refusal(ring)
    refusal(ring, bearer(wrong_secret(disk.keys["a"])))
    refusal(ring, bearer(wrong_secret(disk.keys["b"])))
    counts = {
        reason: registry.get_sample_value("baton_auth_refused_total", {"reason": reason})
        for reason in ("missing", "unknown", "malformed", "expired")
    }
    assert counts == {"missing": 1, "unknown": 2, "malformed": 0, "expired": 0}
