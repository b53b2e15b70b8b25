"""The benchmark of the host's work per step runs: it reaches into the engine."""

from __future__ import annotations

import pytest

from benchmarks import engine_overhead


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_overhead, "NUM_STEPS", 3)


@pytest.mark.parametrize("overlap", [False, True])
def test_every_part_of_a_step_is_timed(overlap: bool) -> None:
    spent = engine_overhead.in_thread(2, overlap=overlap)
    assert set(spent) == {"total", *engine_overhead.PARTS}
    assert all(spent.values())


async def test_steps_with_readers_are_timed() -> None:
    assert await engine_overhead.through_thread(2) > 0
