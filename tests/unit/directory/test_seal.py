"""Seals on records: whose they are, how old they may be, and how the token is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shared.directory.redis.seal import MAX_AGE_S, RecordSeals, SealError, SealFault
from shared.identity import WorkerId
from shared.rpc.auth import ClusterToken

if TYPE_CHECKING:
    from pathlib import Path

ONE, TWO = "1" * 32, "2" * 32
A = WorkerId("a", "1")
RECORD = b"address and role and model"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def token(tmp_path: Path) -> ClusterToken:
    (tmp_path / "token").write_text(ONE)
    return ClusterToken(tmp_path / "token")


def fault(seals: RecordSeals, worker: WorkerId, record: bytes, seal: bytes) -> SealFault | None:
    try:
        seals.check_age(seals.open(worker, record, seal))
    except SealError as error:
        return error.fault
    return None


def test_a_seal_is_of_one_record_of_one_life_of_one_worker(
    token: ClusterToken, clock: Clock
) -> None:
    seals = RecordSeals(token, clock=clock)
    seal = seals.make(A, RECORD)
    assert ONE.encode() not in seal
    assert fault(seals, A, RECORD, seal) is None
    assert fault(seals, A, RECORD, b"") is SealFault.MISSING
    others = [
        (A, RECORD + b"x", seal),
        (A, b"", seal),
        (WorkerId("a", "2"), RECORD, seal),
        (WorkerId("b", "1"), RECORD, seal),
        # What is between the parts cannot be moved.
        (WorkerId("a1", ""), RECORD, seal),
        (WorkerId("", "a1"), RECORD, seal),
        (A, RECORD, seal[:-1]),
        (A, RECORD, seal + b"x"),
        (A, RECORD, b"x"),
        *[(A, RECORD, bytes([*seal[:i], seal[i] ^ 1, *seal[i + 1 :]])) for i in range(len(seal))],
    ]
    assert {fault(seals, *other) for other in others} == {SealFault.FORGED}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_seal_counts_for_a_while(token: ClusterToken, clock: Clock, sign: int) -> None:
    seals = RecordSeals(token, clock=clock)
    seal = seals.make(A, RECORD)
    clock.now_s += sign * (MAX_AGE_S - 1)
    assert fault(seals, A, RECORD, seal) is None
    clock.now_s += sign * 2
    assert fault(seals, A, RECORD, seal) is SealFault.STALE


def test_the_token_is_changed_without_a_pause(
    token: ClusterToken, tmp_path: Path, clock: Clock
) -> None:
    """Each step of docs/security.md reaches worker and router one after the other."""
    (tmp_path / "router").write_text(ONE)
    other = ClusterToken(tmp_path / "router")
    for lines in (f"{ONE}\n{TWO}", f"{TWO}\n{ONE}", TWO):
        for path, changed in ((tmp_path / "token", token), (tmp_path / "router", other)):
            path.write_text(lines)
            changed.file.reload()
            # A heartbeat later.
            seal = RecordSeals(token, clock=clock).make(A, RECORD)
            assert fault(RecordSeals(other, clock=clock), A, RECORD, seal) is None
    (tmp_path / "router").write_text(ONE)
    assert fault(RecordSeals(ClusterToken(tmp_path / "router")), A, RECORD, seal) is (
        SealFault.FORGED
    )
