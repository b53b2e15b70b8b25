"""Numbers of another mode are those of one engine, of the first token and of the others."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.wire import sampling_to_wire
from tests.fakes.processes.call_threads import threads_of
from tests.fakes.worker.live_worker import live_pair
from tests.integration.worker.asking import assert_idle, prompt_of

if TYPE_CHECKING:
    from pathlib import Path

    from shared.engine.llm import LLM

PROMPT = prompt_of(40, seed=13)
SAMPLING: dict[str, Any] = {
    "temperature": 0.7, "top_k": 9, "seed": 4, "frequency_penalty": 1.5, "logprobs": 3,
    "prompt_logprobs": 1,
}  # fmt: skip


def numbers(position: Any) -> list[float]:
    return [each.logprob for each in (position.chosen, *position.top)]


async def test_both_workers_report_the_same_numbers(
    checkpoint: Path, oracle: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = {
        role: threads_of(monkeypatch, f"services.{role}.prompt_logprobs_to_wire")
        for role in ("prefill.job", "decode.answer")
    }
    found: dict[LogprobsMode, list[list[float]]] = {}
    async with live_pair(checkpoint, tmp_path, "shm") as (prefill, decode):
        for mode in LogprobsMode:
            params = SamplingParams(**SAMPLING, max_tokens=4, ignore_eos=True, logprobs_mode=mode)
            wire = sampling_to_wire(params).logprobs_mode
            pieces = [
                piece
                async for piece in decode.pieces(
                    PROMPT, max_tokens=4, prefill=prefill, **SAMPLING, logprobs_mode=wire
                )
            ]
            assert pieces[-1].timings.prefill_worker == "w0"
            [whole] = oracle.generate([PROMPT], params)
            found[mode] = [numbers(each) for piece in pieces for each in piece.logprobs]
            expected = [numbers(each) for each in whole.outputs[0].logprobs]
            assert len(expected) == 4
            for got, want in zip(found[mode], expected, strict=True):
                assert got == pytest.approx(want, abs=1e-4)
            [scores] = [p.prompt_logprobs for p in pieces if p.HasField("prompt_logprobs")]
            assert whole.prompt_logprobs is not None
            for got, want in zip(scores.positions[1:], whole.prompt_logprobs[1:], strict=True):
                assert numbers(got) == pytest.approx(numbers(want), abs=1e-4)
        # So many take a while, which other calls must not wait for.
        for helper in (prefill, None):
            many = {"max_tokens": 1, "prompt_logprobs": 30}
            assert [p async for p in decode.pieces(PROMPT, prefill=helper, **many)]
        assert all(found[-1] is not threading.main_thread() for found in threads.values())
        await assert_idle(prefill, decode)
    firsts = {mode: rows[0][0] for mode, rows in found.items()}
    lasts = {mode: rows[-1][0] for mode, rows in found.items()}
    assert len({round(value, 3) for value in firsts.values()}) == len(firsts)
    assert len({round(value, 3) for value in lasts.values()}) == len(lasts)
