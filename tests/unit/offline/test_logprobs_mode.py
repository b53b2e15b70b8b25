"""`logprobs_mode` of a program's engine."""

from __future__ import annotations

import math

import pytest

from baton import LLM, SamplingParams
from cli.places import SHIPPED_MODEL

PARAMS = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, prompt_logprobs=0)


def test_logits_have_the_same_differences() -> None:
    found = []
    for mode in ("raw_logprobs", "raw_logits"):
        llm = LLM(
            SHIPPED_MODEL, dtype="float32", num_blocks=16, max_logprobs=-1, logprobs_mode=mode
        )
        found += llm.generate("What does os.path.join do?", PARAMS, use_tqdm=False)
        llm.close()
    plain, other = found
    for logprobs, logits in zip(plain.outputs[0].logprobs, other.outputs[0].logprobs, strict=True):
        total = math.log(math.fsum(math.exp(each.logprob) for each in logits.values()))
        assert abs(total) > 0.1
        for token_id, each in logprobs.items():
            assert each.logprob == pytest.approx(logits[token_id].logprob - total, abs=1e-4)
    scores = [entry.logprob for each in other.prompt_logprobs[1:] for entry in each.values()]
    assert max(scores) > 0
