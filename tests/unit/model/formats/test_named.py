"""Checkpoints that documents name: served as the dense models that they mean."""

from __future__ import annotations

from contextlib import nullcontext
from operator import eq
from typing import TYPE_CHECKING

import pytest
import torch
import transformers

from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams
from tests.fakes.model.transformers_models import logits_after
from tests.fakes.stored.answers import (
    NUM_ROUNDED_TOKENS,
    NUM_TOKENS,
    PROMPTS,
    SHORT_PROMPTS,
)
from tests.fakes.stored.named import NAMED, PAGE, page
from tests.fakes.stored.rounded import Rounded

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.stored.base import RoundingWriter
    from tests.fakes.stored.named import Named


def rounding(named: Named, model: transformers.PreTrainedModel) -> Rounded | None:
    def writer_of(name: str) -> RoundingWriter | None:
        writer = named.writer_of(name)
        return writer if hasattr(writer, "round_inputs") else None

    mode = Rounded(model, writer_of)
    return mode if any(writer_of(f"{pattern}.weight") for pattern in named.writers) else None


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.name)
def test_answers_are_those_of_the_dense_model(named: Named, tmp_path: Path) -> None:
    stored, dense = named.write(tmp_path)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        dense, dtype=torch.float32, experts_implementation="eager"
    )
    mode = rounding(named, oracle)
    settings = {"block_size": 8, "num_blocks": 64, "num_threads": 1}
    # The oracle rounds no keys and values.
    llm = LLM(stored, dtype="float32", kv_cache_dtype="float32", **settings)
    try:
        prompts = PROMPTS if mode is None else SHORT_PROMPTS
        num_tokens = NUM_TOKENS if mode is None else NUM_ROUNDED_TOKENS
        greedy = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        equal: list[bool] = []
        for prompt, answer in zip(prompts, llm.generate(prompts, greedy), strict=True):
            tokens = list(answer.outputs[0].token_ids)
            with mode or nullcontext():
                expected = logits_after(oracle, prompt, tokens)
            equal += map(eq, tokens, expected.argmax(dim=-1).tolist())
    finally:
        llm.close()
    assert mode is None or mode.num_rounded
    assert sum(equal) >= (1 if mode is None else 0.8) * len(equal)


def test_the_page_has_them() -> None:
    again = "python -m tests.fakes.stored.named writes it"
    assert PAGE.read_text(encoding="utf-8") == page(), again
