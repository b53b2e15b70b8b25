"""An answer goes on as soon as its prompt's blocks have come, whatever the prefill worker does."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fakes.worker.live_worker import live_worker
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM


@pytest.mark.parametrize("connector", ["shm", "zmq"])
async def test_an_answer_does_not_wait_for_the_next_step_of_the_prefill_worker(
    checkpoint: Path, oracle: LLM, tmp_path: Path, connector: str
) -> None:
    """Its engine releases the blocks between two steps; a step with a long prompt takes seconds."""
    prompt, is_over = prompt_of(50, seed=1), threading.Event()
    async with (
        live_worker(checkpoint, "p", connector=connector, runtime_dir=tmp_path) as prefill,
        live_worker(checkpoint, "d", connector=connector, runtime_dir=tmp_path) as decode,
    ):
        pieces = decode.pieces(prompt, request_id="a", prefill=prefill)
        tokens = [*(await anext(pieces)).token_ids]
        step = asyncio.ensure_future(prefill.parts.engine.call(lambda _: is_over.wait(20)))
        try:
            async with asyncio.timeout(15):
                async for piece in pieces:
                    tokens += piece.token_ids
            assert not step.done()
        finally:
            is_over.set()
        assert await step, "the answer came after the step"
        assert tuple(tokens) == expect(oracle, prompt)
        assert decode.metric("prefill_place", place="remote") == 1
        await assert_idle(prefill, decode)
        # The call that ended after the blocks had come is no failed one.
        assert prefill.metric("prefills", outcome="ok") == 1
