"""Where the native kernels' threads run."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.errors import ConfigError
from shared.model.native.threads import plan_threads
from shared.model.random_checkpoint import CheckpointSpec, write_random_checkpoint
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

CPUS = sorted(os.sched_getaffinity(0))


def test_a_thread_per_core_unless_told() -> None:
    assert plan_threads().num_threads == len(CPUS)
    assert plan_threads().cpus == ()
    assert plan_threads(num_threads=3).num_threads == 3


def test_cores_are_lists_and_ranges() -> None:
    first, last = CPUS[0], CPUS[-1]
    assert plan_threads(bind=f"{last}").cpus == (last,)
    everything = plan_threads(bind=",".join(map(str, CPUS)))
    assert everything.cpus == tuple(CPUS)
    assert everything.num_threads == len(CPUS)
    if list(range(first, last + 1)) == CPUS:
        assert plan_threads(bind=f"{first}-{last}") == everything
    assert plan_threads(num_threads=1, bind=",".join(map(str, CPUS))).cpus == (first,)


def test_ranks_divide_the_cores() -> None:
    num = len(CPUS)
    assert plan_threads(rank=num - 1, num_ranks=num).num_threads == 1
    assert plan_threads(num_ranks=num + 1).num_threads == 1
    everything = ",".join(map(str, CPUS))
    assert plan_threads(bind=everything, rank=num - 1, num_ranks=num).cpus == (CPUS[-1],)
    parts = [plan_threads(bind=everything, rank=rank, num_ranks=2).cpus for rank in range(2)]
    assert (*parts[0], *parts[1]) == tuple(CPUS)
    with pytest.raises(ConfigError, match=f"too few cores for {num + 1} ranks"):
        plan_threads(bind=everything, num_ranks=num + 1)
    with pytest.raises(ConfigError, match=f"too few cores for {4 * num} threads"):
        plan_threads(4 * num, everything, num_ranks=num)
    assert plan_threads(num_threads=6, num_ranks=2).num_threads == 3
    assert plan_threads(num_threads=1, num_ranks=2).num_threads == 1
    lists = f"{CPUS[-1]}|{CPUS[0]}"
    assert [plan_threads(bind=lists, rank=r, num_ranks=2).cpus for r in range(2)] == [
        (CPUS[-1],),
        (CPUS[0],),
    ]
    with pytest.raises(ConfigError, match="3 ranks need a list of cores each"):
        plan_threads(bind=lists, num_ranks=3)


@pytest.mark.parametrize("bind", ["", "a", "1-", "3-1", f"{CPUS[0]},{CPUS[0]}"])
def test_what_is_no_list_is_refused(bind: str) -> None:
    with pytest.raises(ConfigError, match="not a list of cores"):
        plan_threads(bind=bind)


def test_a_core_that_is_not_ours_is_named() -> None:
    with pytest.raises(ConfigError, match="may not use core 4096"):
        plan_threads(bind="4096")


def test_each_thread_needs_a_core() -> None:
    with pytest.raises(ConfigError, match="too few cores for 2 threads"):
        plan_threads(num_threads=2, bind=str(CPUS[0]))


def test_who_borrows_has_a_thread_for_each_further_core() -> None:
    assert plan_threads(num_threads=1, borrows=True).num_spare == len(CPUS) - 1
    assert plan_threads(borrows=True).num_spare == 0
    assert plan_threads(bind=str(CPUS[0]), borrows=True).num_spare == len(CPUS) - 1
    assert plan_threads(num_threads=1).num_spare == 0


def test_threads_stay_on_their_cores_and_say_the_same(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "model", CheckpointSpec())
    wanted = SamplingParams(max_tokens=6, temperature=0.0)
    settings: dict[str, Any] = {"num_blocks": 64, "attention_backend": "native"}
    free = LLM(tmp_path / "model", **settings).generate([[5, 6, 7]], wanted)
    seen: list[object] = []

    def generate() -> None:
        bound = LLM(tmp_path / "model", **settings, cpu_threads_bind=str(CPUS[-1]))
        seen.append(bound.generate([[5, 6, 7]], wanted)[0].outputs[0].token_ids)
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=generate)
    thread.start()
    thread.join()
    assert seen == [free[0].outputs[0].token_ids, {CPUS[-1]}]
    assert sorted(os.sched_getaffinity(0)) == CPUS
