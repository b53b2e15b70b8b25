"""A bound between two tokens reaches the engine: prompts beside the answer come in small parts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc
import pytest

from baton.v1 import common_pb2, worker_pb2
from shared.errors import InvalidRequestError
from shared.rpc.status import from_rpc_error
from tests.fakes.worker.live_worker import BLOCK_SIZE, live_worker
from tests.integration.worker.asking import assert_idle, expect, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM


async def test_an_answer_with_a_bound_cuts_the_prompts_beside_it(
    checkpoint: Path, oracle: LLM, tmp_path: Path
) -> None:
    async with live_worker(checkpoint, "w0", connector="shm", runtime_dir=tmp_path) as worker:
        # Without a bound it limits its steps less than one that prefers decode.
        await worker.orders.Prefer(worker_pb2.PreferRequest(role=common_pb2.ROLE_PREFILL))
        short = prompt_of(9, seed=1)
        limited = []
        for seed, bound_ms in enumerate((0.0, 1e-3)):
            pieces = worker.pieces(short, max_tokens=200, request_id="bound", max_itl_ms=bound_ms)
            tokens = [*(await anext(pieces)).token_ids]
            prompt = prompt_of(300, seed=seed)
            other = asyncio.create_task(worker.ask(prompt, request_id="long"))
            async for piece in pieces:
                tokens += piece.token_ids
            assert tuple(tokens) == expect(oracle, short, 200)
            assert (await other).token_ids == expect(oracle, prompt)
            limited.append((await worker.load()).counters["limited_steps"])
        # A block of the prompt in each step is the least.
        assert limited[1] - limited[0] >= 300 // BLOCK_SIZE - 2
        await assert_idle(worker)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await anext(worker.pieces(short, max_itl_ms=-1.0))
        error = from_rpc_error(caught.value, peer="w0")
        assert isinstance(error, InvalidRequestError)
        assert error.param == "max_itl_ms"
