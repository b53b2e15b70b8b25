"""Requests of every kind beside each other, in an engine that is short of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shared.engine.sequence.request import EngineRequest
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.logprobs_mode import LogprobsMode
from shared.request.sampling_params import SamplingParams
from shared.request.thinking_budget import ThinkingBudget
from tests.fakes.engine.engines import Near, Run, drain, logprobs_of

if TYPE_CHECKING:
    from shared.engine.engine import Engine
    from shared.engine.llm import LLM

PHONE = GrammarSpec(kind=GrammarKind.REGEX, text=r"(\d{3}-){6}")
SHORT_OF_BLOCKS = {
    "num_blocks": 32,
    "block_size": 4,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 32,
}
#: What the requests need.
ALL_KINDS: dict[str, Any] = SHORT_OF_BLOCKS | {
    "logits_processors": ("tests.fakes.engine.logits_processors:NoRepeat",),
    "enable_return_hidden_states": True,
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.7},
    "bias": {"temperature": 0.7, "logit_bias": {5: 2.5, 9: -100.0}, "min_tokens": 3},
    "words": {"temperature": 0.0, "bad_words_token_ids": ((7,), (8, 9)), "stop_token_ids": (3,)},
    "allowed": {"temperature": 1.0, "allowed_token_ids": tuple(range(20, 60))},
    "logprobs": {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    "logits": {
        "temperature": 0.0,
        "logprobs": 3,
        "prompt_logprobs": 2,
        "logprobs_mode": LogprobsMode.RAW_LOGITS,
    },
    "hidden states": {"temperature": 0.0, "return_hidden_states": True},
    "named tokens": {"temperature": 0.0, "logprobs": 0, "logprob_token_ids": (3, 1)},
    "thinking": {
        "temperature": 0.0,
        "thinking_budget": ThinkingBudget(
            max_tokens=5, thinking=Thinking(begin_token_id=1, end_token_id=7, is_open=True)
        ),
    },
    "processor": {"temperature": 0.0, "extra_args": {"no_repeat": 4}},
    "grammar": {"temperature": 0.8, "grammar": PHONE},
    "late": {"temperature": 0.0, "max_tokens": 3},
}


def run(engine: Engine, llm: LLM) -> Run:
    """Requests of every kind, two of each: there is not room for all of them at a time."""
    eos = llm.tokenizer.eos_token_ids
    for i, (kind, fields) in enumerate(KINDS.items()):
        for j in range(2):
            params = {"max_tokens": 14, "seed": i, "sample_index": j, "eos_token_ids": eos} | fields
            prompt = [(i * 31 + n * (7 + j)) % 90 + 10 for n in range(5 + 9 * j)]
            request = EngineRequest(
                request_id=f"{kind} {j}",
                # Something to guess from.
                prompt_token_ids=(*prompt, *prompt[:4]),
                sampling=SamplingParams(**params),
            )
            engine.add(llm.grammars.ready_now(request))
    return drain(engine)


def rows_of(run: Run, request_id: str) -> Near:
    """The hidden states that an answer returns."""
    rows = [row for event in run.new_tokens(request_id) for row in event.hidden_states]
    return Near(np.frombuffer(b"".join(rows), "<f4"))


def assert_same(got: Run, want: Run) -> None:
    """Tokens, reasons, log probabilities and hidden states."""
    assert set(got.events) == set(want.events)
    for request_id in want.events:
        assert got.tokens(request_id) == want.tokens(request_id), request_id
        assert got.finish_reason(request_id) == want.finish_reason(request_id), request_id
        assert logprobs_of(got, request_id) == logprobs_of(want, request_id), request_id
        assert rows_of(got, request_id) == rows_of(want, request_id), request_id
