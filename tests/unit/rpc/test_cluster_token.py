"""The cluster's secret: what its file may hold, whom it lets in, how it is changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shared.errors import AuthenticationError, ConfigError
from shared.rpc.auth import TOKEN_KEY, ClusterToken
from shared.rpc.watched_file import WatchedFile, following

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "1" * 32, "2" * 32


def allowed(token: ClusterToken, *values: str | bytes) -> bool:
    try:
        token.check([("user-agent", "x"), *((TOKEN_KEY, value) for value in values)])
    except AuthenticationError:
        return False
    return True


def test_only_the_token_lets_in(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(ONE + "\n")
    token = ClusterToken(path)
    assert allowed(token, ONE)
    assert allowed(token, ONE.encode())
    with pytest.raises(AuthenticationError) as error:
        token.check([(TOKEN_KEY, TWO)])
    assert ONE not in str(error.value)
    assert TWO not in str(error.value)
    assert token.metadata == ((TOKEN_KEY, ONE),)
    for wrong in ([], [TWO], [""], [ONE[:-1]], [ONE + "1"], [ONE, ONE], [ONE, TWO], [b"\xff" * 32]):
        assert not allowed(token, *wrong)


def test_a_token_is_changed_without_a_pause(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(ONE)
    token = ClusterToken(path)
    for lines, sent, accepted in (
        (f"{ONE}\n{TWO}\n", ONE, [True, True]),
        (f"{TWO}\n{ONE}\n", TWO, [True, True]),
        (f"{TWO}\n", TWO, [False, True]),
        # What cannot be used does not count.
        ("short", TWO, [False, True]),
    ):
        path.write_text(lines)
        token.file.reload()
        assert token.metadata == ((TOKEN_KEY, sent),)
        assert [allowed(token, ONE), allowed(token, TWO)] == accepted


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no token"),
        (b"\n \n", "no token"),
        (b"short", "token 1 has 5 characters"),
        (ONE.encode() + b"\n" + b"x" * 2000, "token 2 has 2000 characters"),
        (b"\xff" * 40, "not printable ASCII"),
        (b"a b" * 20, "not printable ASCII"),
    ],
)
def test_a_token_that_could_be_guessed_or_sent_is_required(
    tmp_path: Path, content: bytes, expected: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected) as error:
        ClusterToken(path)
    assert ONE not in str(error.value)


async def test_a_followed_file_is_read_again_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    has_changed = asyncio.Event()

    def parse(content: bytes) -> bytes:
        if content == b"2":
            has_changed.set()
        return content

    file = WatchedFile(path, parse)
    changed = asyncio.create_task(file.follow(0.001))
    # As Kubernetes does it: the name becomes a link to another file.
    (tmp_path / "other").write_text("2")
    path.unlink()
    path.symlink_to(tmp_path / "other")
    async with asyncio.timeout(10):
        await has_changed.wait()
    assert file.value == b"2"
    changed.cancel()
    num_tasks = len(asyncio.all_tasks())
    async with following([file]):
        assert len(asyncio.all_tasks()) == num_tasks + 1
    assert len(asyncio.all_tasks()) <= num_tasks
