"""`baton keys`: what it prints, what it leaves in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from cli.errors import CommandError
from cli.security.keys import app
from services.router.admission.keys.api_key import key_id_of
from services.router.admission.keys.file_keys import FileKeys
from services.router.admission.keys.key_ring import KeyRing
from shared.errors import AuthenticationError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def run(file: Path, *arguments: str) -> str:
    """What it writes to its standard output."""
    result = CliRunner().invoke(app, [*arguments, "--file", str(file)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def tenant_of(file: Path, key: str) -> str:
    return KeyRing(FileKeys(file)).caller([(b"x-api-key", key.encode())]).tenant.name


def test_a_new_key_is_printed_once_and_works(file: Path) -> None:
    keys = {name: run(file, "new", "--tenant", name).strip() for name in ("a", "b")}
    more = run(file, "new", "--tenant", "a", "--note", "laptop", "--expires-days", "1").strip()
    assert file.stat().st_mode & 0o777 == 0o600
    content = file.read_text()
    for key in (*keys.values(), more):
        assert key not in content
        assert key[20:] not in content
    assert {name: tenant_of(file, key) for name, key in keys.items()} == {"a": "a", "b": "b"}
    shown = run(file, "list")
    for key in (*keys.values(), more):
        assert str(key_id_of(key.encode())) in shown
    assert "laptop" in shown
    assert "until" in shown
    assert more not in shown


def test_a_revoked_key_is_gone_and_the_rest_stays(file: Path) -> None:
    one, two = (run(file, "new", "--tenant", "a").strip() for _ in range(2))
    file.write_text("# mine\n" + file.read_text().replace('name = "a"', 'name = "a"  # first'))
    file.chmod(0o640)
    run(file, "revoke", str(key_id_of(one.encode())))
    with pytest.raises(AuthenticationError):
        tenant_of(file, one)
    assert tenant_of(file, two) == "a"
    # What an operator wrote is kept.
    assert file.read_text().startswith("# mine\n")
    assert "# first" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    # A key given in the place of its id is not repeated.
    with pytest.raises(CommandError) as error:
        run(file, "revoke", two)
    assert two not in str(error.value)


def test_a_broken_file_or_a_bad_name_leaves_everything_as_it_was(file: Path) -> None:
    key = run(file, "new", "--tenant", "a").strip()
    before = file.read_bytes()
    with pytest.raises(ConfigError, match="name"):
        run(file, "new", "--tenant", "not a name")
    assert file.read_bytes() == before
    assert tenant_of(file, key) == "a"
    file.write_text("[[[")
    with pytest.raises(ConfigError, match="TOML"):
        run(file, "new", "--tenant", "a")
    assert file.read_text() == "[[["
    assert list(file.parent.iterdir()) == [file]


def test_without_a_file_it_says_how_to_make_one(file: Path) -> None:
    with pytest.raises(CommandError, match="cannot read"):
        run(file, "list")
    with pytest.raises(CommandError):
        run(file, "revoke", "0" * 16)
    assert not file.exists()
