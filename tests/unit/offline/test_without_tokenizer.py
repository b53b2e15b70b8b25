"""Programs that leave the tokenizer out: the folder has none of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from baton import LLM, SamplingParams, TokensPrompt
from cli.places import SHIPPED_MODEL
from shared.engine.llm import LLM as Oracle  # noqa: N811 a class, whose name is an abbreviation
from shared.errors import InvalidRequestError
from shared.request.sampling_params import SamplingParams as TokenSampling

if TYPE_CHECKING:
    from pathlib import Path

SIZES: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_blocks": 128}
GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_tokens_are_answered_with_tokens(tmp_path: Path) -> None:
    for path in SHIPPED_MODEL.iterdir():
        if "token" not in path.name:
            (tmp_path / path.name).symlink_to(path)
    oracle = Oracle(SHIPPED_MODEL, **SIZES)
    prompts = [oracle.tokenizer.encode(prompt) for prompt in ("def add(a, b):", "Sort")]
    answers = oracle.generate(prompts, TokenSampling(temperature=0, max_tokens=8))
    expected = [list(output.outputs[0].token_ids) for output in answers]
    oracle.close()
    alone = LLM(model=tmp_path, skip_tokenizer_init=True, **SIZES)
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    outputs = alone.generate([TokensPrompt(prompt_token_ids=each) for each in prompts], params)
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
    assert {output.outputs[0].text for output in outputs} == {""}
    first = (outputs[0].outputs[0].logprobs or [{}])[0]
    assert first[expected[0][0]].decoded_token is None
    for call in (
        lambda: alone.generate("Hi", GREEDY),
        lambda: alone.chat([{"role": "user", "content": "Hi"}], GREEDY),
        lambda: alone.generate([prompts[0]], SamplingParams(stop="x")),
        lambda: alone.generate([prompts[0]], SamplingParams(bad_words=["x"])),
        alone.get_tokenizer,
    ):
        with pytest.raises(InvalidRequestError, match="token"):
            call()
    alone.close()
