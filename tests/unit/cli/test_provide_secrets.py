"""The secrets of a cluster of containers: random, each role's apart, kept."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import pytest

from cli.containers.provide_secrets import ACL, provide_secrets, require_keys
from cli.errors import CommandError
from shared.rpc.auth import ClusterToken

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("router", "worker", "redis", "grafana")


@pytest.fixture
def provided(tmp_path: Path) -> Path:
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    return tmp_path


def files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_each_role_gets_its_own_and_no_more(provided: Path) -> None:
    assert "made cluster-token, redis-password, admin-password" in provide_secrets(provided)
    found = files(provided)
    assert set(found) == {
        "router/cluster-token", "router/redis-password",
        "worker/cluster-token", "worker/redis-password",
        "redis/users.acl", "grafana/admin-password",
    }  # fmt: skip
    assert (
        ClusterToken(provided / "worker" / "cluster-token").metadata[0][1]
        in (found["router/cluster-token"])
    )
    assert found["worker/redis-password"] == found["router/redis-password"]
    password = found["router/redis-password"].strip()
    # Redis has the password's hash and the rights of the ACL's file.
    digest = hashlib.sha256(password.encode()).hexdigest()
    assert found["redis/users.acl"] == f"{ACL.read_text().rstrip()} #{digest}\n"
    assert password not in found["redis/users.acl"]
    for name in ("cluster-token", "redis-password"):
        for role in ("router", "worker"):
            assert (provided / role / name).stat().st_mode & 0o077 == 0
    for name in ("redis/users.acl", "grafana/admin-password"):
        assert (provided / name).stat().st_mode & 0o004


def test_what_is_there_stays_and_what_is_missing_is_made_from_it(provided: Path) -> None:
    provide_secrets(provided)
    before = files(provided)
    assert "all secrets are there" in provide_secrets(provided)
    assert files(provided) == before
    for name in ("worker/cluster-token", "redis/users.acl"):
        (provided / name).unlink()
    provide_secrets(provided)
    assert files(provided) == before


def test_no_two_clusters_have_the_same(provided: Path) -> None:
    provide_secrets(provided)
    before = files(provided)
    for path in provided.rglob("*"):
        if path.is_file():
            path.unlink()
    provide_secrets(provided)
    after = files(provided)
    assert all(after[name] != before[name] for name in before)
    assert all(re.fullmatch(r"[\w-]{32,}\s?", after[name]) for name in after if "acl" not in name)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="router/"):
        provide_secrets(tmp_path)


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", ""])
def test_beyond_this_machine_keys_are_asked_for(host: str) -> None:
    with pytest.raises(CommandError, match=r"API_KEYS_FILE") as error:
        require_keys(host, "")
    assert "INSECURE_BIND_ADDRESS" in error.value.advice
    require_keys(host, "./keys.toml")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_this_machine_they_are_not(host: str) -> None:
    require_keys(host, "")
