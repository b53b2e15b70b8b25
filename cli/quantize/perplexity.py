"""The perplexity of a checkpoint, as it would be served."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared.engine.llm import LLM
from shared.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cli.quantize.texts import Text

#: Texts of a batch.
_AT_ONCE = 16
#: Probabilities of the prompt's tokens; the engine answers with at least one.
_SCORING = SamplingParams(max_tokens=1, prompt_logprobs=0)


def perplexity(model_dir: Path, texts: Sequence[Text]) -> float:
    """Return the perplexity of all tokens that are not given.

    Raises:
        ConfigError, ModelLoadError: the checkpoint cannot be served.
    """
    longest = max(len(each.tokens) for each in texts) + 1
    llm = LLM(model_dir, max_model_len=longest, enable_prefix_caching=False)
    scores: list[float] = []
    try:
        for start in range(0, len(texts), _AT_ONCE):
            some = texts[start : start + _AT_ONCE]
            outputs = llm.generate([each.tokens for each in some], _SCORING)
            for text, output in zip(some, outputs, strict=True):
                assert output.prompt_logprobs is not None  # they are asked for
                own = output.prompt_logprobs[text.num_given :]
                scores += [each.chosen.logprob for each in own if each is not None]
    finally:
        llm.close()
    return math.exp(-math.fsum(scores) / len(scores))
