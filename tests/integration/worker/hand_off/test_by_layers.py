"""Hand-offs by layers: answers and blocks are those of whole ones; the first layers go early."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest

from shared.connector.group.outbound import GroupOutbound
from shared.engine.pipeline import step_pipeline
from shared.engine.step.parts import StepInParts
from shared.identity import Role
from shared.model.random_checkpoint import write_random_checkpoint
from tests.fakes.checkpoints.group_kinds import SPECS
from tests.fakes.worker.live_worker import live_worker
from tests.integration.worker.asking import (
    assert_idle,
    eventually,
    expect,
    kept_blocks,
    prompt_of,
)
from tests.integration.worker.hand_off.test_landings import PROMPTS, full_worker, has_received

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM

Mode = Literal["on", "off"]
#: Of one step, of several, and of a part of a block.
LENGTHS = (40, 64, 233)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The slices that left before the others. A part is a layer, and the loop has time for it."""
    pushed: list[range] = []
    push, advance = GroupOutbound.push, StepInParts.advance

    async def noting(self: GroupOutbound, *args: Any) -> None:
        if len(args[-1]) < self.num_slices:
            pushed.append(args[-1])
        await push(self, *args)

    def slowly(self: StepInParts, room_ms: float) -> Any:
        time.sleep(0.01)
        return advance(self, room_ms)

    monkeypatch.setattr(step_pipeline, "PART_MS", 0.0)
    monkeypatch.setattr(GroupOutbound, "push", noting)
    monkeypatch.setattr(StepInParts, "advance", slowly)
    return pushed


async def ask(folder: Path, tmp_path: Path, modes: tuple[Mode, Mode], **options: Any) -> list[Any]:
    """Answers and blocks of all lengths."""
    async with AsyncExitStack() as stack:
        prefill, decode = [
            await stack.enter_async_context(
                live_worker(folder, f"w{number}", runtime_dir=tmp_path, by_layers=mode, **options)
            )
            for number, mode in enumerate(modes)
        ]
        await prefill.parts.engine.call(lambda engine: engine.prefer(Role.PREFILL))
        found: list[Any] = []
        for length in LENGTHS:
            prompt = prompt_of(length, seed=length)
            reply = await decode.ask(prompt, max_tokens=8, prefill=prefill)
            assert reply.timings.prefill_worker == "w0"
            found += [reply.token_ids, await kept_blocks(decode, prompt)]
        assert found[-1]
        await assert_idle(prefill, decode)
        return found


@pytest.mark.parametrize(
    ("name", "connector"),
    [("shared", "zmq"), ("latent", "shm"), ("state", "zmq_ipc"), ("window", "shm")],
)
async def test_answers_and_blocks_are_those_of_whole_hand_offs(
    name: str, connector: str, tmp_path: Path, early: list[range]
) -> None:
    write_random_checkpoint(tmp_path / name, SPECS[name])
    options = {"connector": connector, "model_settings": {"dtype": "bfloat16"}}
    whole = await ask(tmp_path / name, tmp_path, ("on", "off"), **options)
    assert not early
    assert await ask(tmp_path / name, tmp_path, ("off", "on"), **options) == whole
    assert any(slices.start == 0 for slices in early)
    assert any(slices.start > 0 for slices in early)


async def test_a_worker_that_computes_whole_steps_sends_whole_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does one of an older version, which says nothing."""
    monkeypatch.setattr(GroupOutbound, "connect", None)
    write_random_checkpoint(tmp_path / "m", SPECS["window"])
    options = {"connector": "shm", "model_settings": {"attention_backend": "torch"}}
    await ask(tmp_path / "m", tmp_path, ("on", "on"), **options)


async def test_layers_land_in_host_memory_while_the_pool_is_full(
    checkpoint: Path, oracle: LLM, tmp_path: Path, early: list[range]
) -> None:
    async with full_worker(checkpoint, tmp_path, "zmq", by_layers="on") as (prefill, decode, room):
        await prefill.parts.engine.call(lambda engine: engine.prefer(Role.PREFILL))
        answer = decode.pieces(PROMPTS[0], request_id="r", prefill=prefill)
        pieces = [await anext(answer)]
        await eventually(partial(has_received, decode, 1))
        assert any(slices.start == 0 for slices in early)
        room.set()
        pieces += [piece async for piece in answer]
        tokens = [token for piece in pieces for token in piece.token_ids]
        assert tuple(tokens) == expect(oracle, PROMPTS[0])
        assert pieces[-1].usage.sources.transferred == len(PROMPTS[0])
