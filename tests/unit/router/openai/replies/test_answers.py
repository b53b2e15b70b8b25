"""Several prompts in one stream: nothing lost, nothing left running."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from services.router.openai.replies.answers import stream_answers
from services.router.request.generation import AnswerPiece, GenerationRequest
from shared.errors import NoWorkerError
from shared.generation.params import GenerationParams
from tests.fakes.scripted.generator import HANG, ScriptedGenerator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.fakes.scripted.generator import Step


def requests(num: int) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=str(i), model="m", prompt_token_ids=(i,), params=GenerationParams()
        )
        for i in range(num)
    ]


def count_up(request: GenerationRequest) -> Iterable[Step]:
    return [AnswerPiece(index=0, token_ids=(i,)) for i in range(100)]


@pytest.mark.parametrize("num_prompts", [1, 2, 5])
async def test_pieces_keep_their_order_per_prompt(num_prompts: int) -> None:
    generator = ScriptedGenerator(count_up)
    seen: list[list[int]] = [[] for _ in range(num_prompts)]
    async for place, piece in stream_answers(generator, requests(num_prompts)):
        seen[place] += piece.token_ids
    assert seen == [list(range(100))] * num_prompts
    assert generator.num_open == 0


@pytest.mark.parametrize("num_prompts", [1, 3])
async def test_closing_closes_every_prompt(num_prompts: int) -> None:
    generator = ScriptedGenerator(lambda _: [AnswerPiece(index=0), HANG])
    async with aclosing(stream_answers(generator, requests(num_prompts))) as parts:
        await anext(parts)
        assert generator.num_open == num_prompts
    assert generator.num_open == 0


async def test_one_error_ends_the_others() -> None:
    def script(request: GenerationRequest) -> Iterable[Step]:
        return [NoWorkerError("none")] if request.request_id == "1" else [HANG]

    generator = ScriptedGenerator(script)
    with pytest.raises(NoWorkerError):
        await anext(stream_answers(generator, requests(3)))
    assert generator.num_open == 0


async def test_a_slow_reader_slows_the_pipeline_down() -> None:
    num_made = 0

    def endless(request: GenerationRequest) -> Iterable[Step]:
        nonlocal num_made
        while True:
            num_made += 1
            yield AnswerPiece(index=0)

    async with aclosing(stream_answers(ScriptedGenerator(endless), requests(2))) as parts:
        await anext(parts)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert num_made < 100
