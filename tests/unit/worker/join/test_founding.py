"""What a worker remembers of its generation for those who come later."""

from __future__ import annotations

from dataclasses import replace

import pytest
import structlog

from shared.directory.base import WorkerRecord
from shared.identity import Role, WorkerId
from shared.worker.join.founding import FORGET_S, Founding

X, Y = "aa" * 32, "bb" * 32


def record(name: str, identity: str, **facts: object) -> WorkerRecord:
    plain = WorkerRecord(
        worker=WorkerId(name, "1"),
        role=Role.DECODE,
        address=f"{name}:1",
        model="m",
        namespace="cc" * 32,
        block_size=16,
        num_blocks=8,
        max_model_len=64,
        identity=identity,
    )
    return replace(plain, **facts)  # type: ignore[arg-type]


A = Founding(record("a", X), []).record


def test_the_first_worker_founds_its_generation() -> None:
    assert A.generation_identity == X
    assert A.joined_ms > 0


def test_a_later_one_remembers_the_first_whatever_the_clocks_say() -> None:
    ahead = replace(A, joined_ms=A.joined_ms + 3_600_000)
    b = Founding(record("b", Y), [ahead]).record
    assert b.generation_identity == X
    # The first one is gone, and comes back: it learns from the other who was first.
    assert Founding(record("a", X), [b]).record.generation_identity == X
    assert Founding(record("c", Y), [b]).record.generation_identity == X


def test_other_models_and_generations_and_its_own_former_life_do_not_count() -> None:
    others = [
        replace(A, model="other"),
        replace(A, generation=1),
        replace(A, worker=WorkerId("b", "0")),
    ]
    assert Founding(record("b", Y), others).record.generation_identity == Y


def test_what_an_older_directory_passes_over_is_no_difference() -> None:
    stripped = replace(A, identity="", generation_identity="", joined_ms=0)
    assert Founding(record("c", X), [stripped]).record.generation_identity == X
    older = replace(stripped, namespace="ee" * 32)
    assert Founding(record("c", X), [older]).record.generation_identity == "ee" * 32


def test_a_worker_with_other_weights_says_so_itself() -> None:
    with structlog.testing.capture_logs() as logs:
        Founding(record("b", Y), [A])
    assert [entry["event"] for entry in logs] == ["other_weights"]
    assert "--model-generation" in logs[0]["hint"]


def test_two_that_joined_at_the_same_moment_agree_when_they_look_again() -> None:
    b = Founding(record("b", Y, joined_ms=0), [])
    b.record = replace(b.record, joined_ms=A.joined_ms + 1)
    assert b.look([A, b.record])
    assert b.record.generation_identity == X
    assert not b.look([A, b.record])


def test_an_identity_that_is_long_gone_is_forgotten() -> None:
    now_s = 0.0
    b = Founding(record("b", Y), [A], clock=lambda: now_s)
    now_s = FORGET_S - 1
    assert not b.look([b.record])
    assert not b.look([A, b.record])
    now_s += FORGET_S - 1
    assert not b.look([b.record])
    now_s += 2
    assert b.look([b.record])
    assert b.record.generation_identity == Y


@pytest.mark.parametrize("known", ["", X])
def test_the_first_never_changes_its_mind_while_it_lives(known: str) -> None:
    a = Founding(record("a", X), [])
    late = replace(Founding(record("b", Y), []).record, generation_identity=known)
    late = replace(late, joined_ms=a.record.joined_ms + 5)
    assert not a.look([late, a.record])
