"""Checkpoints whose config names the length before RoPE stretches it: tokens are transformers'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams
from tests.fakes.model.transformers_models import greedy, random_model, random_prompt, save

if TYPE_CHECKING:
    from pathlib import Path

ORIGINAL, LENGTH, NUM_TOKENS = 64, 170, 12
CASES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn, said twice": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
}


@pytest.mark.parametrize(
    ("case", "backend"), [*((case, "native") for case in CASES), ("yarn", "torch")]
)
def test_tokens_beyond_the_original_length(case: str, backend: str, tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, **CASES[case]}
    oracle = random_model("llama", seed=1, max_position_embeddings=ORIGINAL, rope_parameters=rope)
    llm = LLM(save(oracle, tmp_path), attention_backend=backend, num_blocks=64)
    assert llm.engine.max_model_len == ORIGINAL * CASES[case]["factor"]
    prompt = random_prompt(LENGTH, vocab_size=321, seed=1)
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0)
    answer = llm.generate([prompt], sampling)[0].outputs[0]
    llm.close()
    assert list(answer.token_ids) == greedy(oracle, prompt, NUM_TOKENS)
    assert len(set(answer.token_ids)) > 2
