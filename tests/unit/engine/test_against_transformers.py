"""Greedy tokens and logprobs equal those of Hugging Face's transformers, however we batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.fakes.engine.engines import generate, make_engine, make_request

if TYPE_CHECKING:
    from shared.model.loaded import LoadedModel
    from shared.request.answer import PositionLogprobs

NUM_TOKENS = 12
RNG = np.random.default_rng(5)
PROMPTS = [RNG.integers(3, 512, n).tolist() for n in (1, 3, 4, 5, 16, 17, 40, 61)]
PROMPTS += [[*PROMPTS[-1][:40], *PROMPTS[0]], PROMPTS[5]]


@pytest.fixture(scope="module")
def expected(hf_llama: Any) -> list[list[int]]:
    with torch.inference_mode():
        return [
            hf_llama.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=NUM_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )[0, len(prompt) :].tolist()
            for prompt in PROMPTS
        ]


@pytest.mark.parametrize(
    "settings",
    [
        {"num_blocks": 256, "max_num_batched_tokens": 512},
        {"num_blocks": 256, "max_num_batched_tokens": 11},
        {"num_blocks": 19, "max_num_batched_tokens": 64},
        {"num_blocks": 256, "block_size": 16, "max_num_seqs": 3},
        {"num_blocks": 256, "enable_prefix_caching": False},
        {"num_blocks": 256, "long_prefill_token_threshold": 7},
        {
            "num_blocks": 32,
            "max_model_len": 100,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 108,
        },
    ],
    ids=["mixed", "chunked", "preempted", "few", "uncached", "threshold", "unchunked"],
)
def test_greedy_tokens(
    llama: LoadedModel, expected: list[list[int]], settings: dict[str, Any]
) -> None:
    engine = make_engine(llama, **settings)
    for turn in range(2):  # the second time prefixes are cached
        run = generate(
            engine,
            *(
                make_request(f"{turn}-{i}", prompt, max_tokens=NUM_TOKENS)
                for i, prompt in enumerate(PROMPTS)
            ),
        )
        assert [run.tokens(f"{turn}-{i}") for i in range(len(PROMPTS))] == expected
    counters = engine.stats().counters
    assert (counters["num_preemptions"] > 0) == (engine.num_blocks < 100)
    assert (counters["prefix_cache_hits"] > 0) == settings.get("enable_prefix_caching", True)


def hf_logprobs(hf_llama: Any, tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocab]; row i predicts token i + 1."""
    with torch.inference_mode():
        return hf_llama(torch.tensor([tokens])).logits[0].float().log_softmax(dim=-1)


def check_position(record: PositionLogprobs, row: torch.Tensor, token: int, num_top: int) -> None:
    assert record.chosen.token_id == token
    assert record.chosen.logprob == pytest.approx(float(row[token]), abs=2e-4)
    assert record.chosen.rank == int((row > row[token]).sum()) + 1
    best = row.topk(num_top)
    assert [t.logprob for t in record.top] == pytest.approx(best.values.tolist(), abs=2e-4)
    assert [t.rank for t in record.top] == list(range(1, num_top + 1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_of_the_answer(llama: LoadedModel, hf_llama: Any, temperature: float) -> None:
    prompt = PROMPTS[5]
    run = generate(
        make_engine(llama),
        make_request("a", prompt, logprobs=4, temperature=temperature, presence_penalty=1.5),
        make_request("b", prompt, logprobs=0, temperature=temperature),
        make_request("c", prompt),
    )
    tokens = run.tokens("a")
    rows = hf_logprobs(hf_llama, [*prompt, *tokens])[len(prompt) - 1 :]
    records = [record for event in run.new_tokens("a") for record in event.logprobs]
    for token, record, row in zip(tokens, records, rows, strict=False):
        check_position(record, row, token, 4)
    assert [e.logprobs[0].top for e in run.new_tokens("b")] == [()] * 8
    assert [e.logprobs for e in run.new_tokens("c")] == [()] * 8


@pytest.mark.parametrize("max_num_batched_tokens", [8, 512])
@pytest.mark.parametrize("num_blocks", [22, 256])
def test_logprobs_of_the_prompt(
    llama: LoadedModel, hf_llama: Any, max_num_batched_tokens: int, num_blocks: int
) -> None:
    engine = make_engine(
        llama, max_num_batched_tokens=max_num_batched_tokens, num_blocks=num_blocks
    )
    prompt = PROMPTS[7]
    generate(engine, make_request("warm", prompt))
    run = generate(
        engine,
        make_request("other", PROMPTS[4], max_tokens=30),
        make_request("a", prompt, prompt_logprobs=3),
    )
    assert run.admitted("a")[0].num_cached_tokens == 0
    # In the small pool the other one's growth interrupts the reading of the prompt.
    if max_num_batched_tokens == 8:
        assert (len(run.admitted("a")) > 1) == (num_blocks == 22)
    first, *later = run.new_tokens("a")
    assert first.prompt_logprobs is not None
    assert all(event.prompt_logprobs is None for event in later)
    assert first.prompt_logprobs[0] is None
    assert len(first.prompt_logprobs) == len(prompt)
    rows = hf_logprobs(hf_llama, prompt)
    for i, record in enumerate(first.prompt_logprobs[1:], start=1):
        assert record is not None
        check_position(record, rows[i - 1], prompt[i], 3)
