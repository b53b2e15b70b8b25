"""The kinds of requests that may stand in a step beside plain greedy ones: one row per feature.

A row says the same twice: to an engine, and to POST /v1/completions. A new feature adds its row
here; every company test then has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from shared.engine.prompt_hidden import HiddenWish
from shared.engine.step.hidden import HiddenNeeds
from shared.model.random_checkpoint import CheckpointSpec
from shared.request.grammar.spec import GrammarKind, GrammarSpec, Thinking
from shared.request.prompt_embeds import EmbeddingRows, EmbedsDtype, PromptEmbeds
from shared.request.thinking_budget import ThinkingBudget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shared.engine.engine import Engine

#: Tokens of a prompt that is longer than a step of the engines that these tests make.
LONG = 150
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """One kind."""

    kind: str
    #: Fields of SamplingParams; None where only a router knows the kind.
    sampling: Mapping[str, Any] | None
    #: Fields of the body beside model, prompt and max_tokens; None where only an engine knows it.
    body: Mapping[str, Any] | None
    #: Fields of EngineRequest, for an engine.
    request: Callable[[Engine], Mapping[str, Any]] = field(default=lambda engine: {})
    prompt_len: int = 20
    max_tokens: int = 10
    #: The client goes away after so many tokens.
    cancelled_after: int | None = None
    #: Its answers are those to a plain request with the same prompt.
    answers_plainly: bool = False


def both(kind: str, fields: Mapping[str, Any], **more: Any) -> Neighbour:
    """A kind whose fields an engine and the HTTP API call the same."""
    return Neighbour(kind=kind, sampling=fields, body=fields, **more)


def engine_only(kind: str, request: Mapping[str, Any], **more: Any) -> Neighbour:
    """A kind that clients cannot ask for."""
    return Neighbour(kind=kind, sampling={}, body=None, request=lambda engine: request, **more)


def _with_states(engine: Engine) -> Mapping[str, Any]:
    form = engine.hidden.format(HiddenNeeds(final=True, layers=(1,)))
    assert form is not None
    return {"hold_blocks": True, "hidden": HiddenWish(format=form)}


def _as_rows(_: Engine) -> Mapping[str, Any]:
    """Random rows in place of all tokens."""
    tensor = torch.randn(LONG, CheckpointSpec().hidden_size, generator=torch.Generator())
    data = tensor.numpy().tobytes()
    embeds = PromptEmbeds.whole(EmbeddingRows(EmbedsDtype.FLOAT32, tensor.shape[1], data))
    return {"prompt_token_ids": embeds.whole_ids, "embeds": embeds}


def _grammar(kind: GrammarKind, text: str, body: Mapping[str, Any]) -> Neighbour:
    spec = GrammarSpec(kind=kind, text=text)
    return Neighbour(
        kind=f"grammar: {kind.value}",
        sampling={"grammar": spec},
        body={"structured_outputs": body},
        max_tokens=16,
    )


_DRAWN = {"temperature": 1.3, "seed": 11}
_PLAIN = {"answers_plainly": True}

NEIGHBOURS: tuple[Neighbour, ...] = (
    # What asks for more than tokens, and must not change them.
    both("prompt scores", {"prompt_logprobs": 3}, **_PLAIN),
    both("prompt scores of a long prompt", {"prompt_logprobs": 1}, prompt_len=LONG, **_PLAIN),
    both("log probabilities", {"logprobs": 4}, **_PLAIN),
    both("named tokens", {"logprobs": 1, "logprob_token_ids": [9, 5]}, **_PLAIN),
    both("hidden states", {"return_hidden_states": True}, **_PLAIN),
    Neighbour(
        kind="echo with log probabilities",
        sampling={"prompt_logprobs": 2, "logprobs": 2},
        body={"echo": True, "logprobs": 2},
        **_PLAIN,
    ),
    Neighbour(kind="n", sampling=None, body={"n": 3}, **_PLAIN),
    both("seed", {"seed": 5}, **_PLAIN),
    Neighbour(kind="priority", sampling=None, body={"priority": -1}, **_PLAIN),
    engine_only("runs first", {"priority": -1}, **_PLAIN),
    both("long prompt", {}, prompt_len=LONG, **_PLAIN),
    both("min tokens", {"min_tokens": 8}, **_PLAIN),
    both("stop tokens", {"stop_token_ids": [0]}),
    Neighbour(kind="stop strings", sampling=None, body={"stop": ["a", "e"]}),
    engine_only("resumed", {"resumed_token_ids": (7, 8, 9, 10, 11)}),
    Neighbour(kind="embeddings", sampling={}, body=None, request=_as_rows),
    engine_only("another tenant", {"cache_salt": b"b"}, **_PLAIN),
    engine_only("held for a peer", {"hold_blocks": True}),
    Neighbour(kind="held with states", sampling={}, body=None, request=_with_states),
    Neighbour(
        kind="held and scored",
        sampling={"prompt_logprobs": 1},
        body=None,
        request=_with_states,
        prompt_len=LONG,
    ),
    # What chooses other tokens.
    both("drawn", _DRAWN),
    both("drawn with filters", _DRAWN | {"top_k": 20, "top_p": 0.8, "min_p": 0.01}),
    Neighbour(kind="drawn n", sampling=None, body=_DRAWN | {"n": 3}),
    both("drawn with scores", _DRAWN | {"prompt_logprobs": 2, "logprobs": 5}),
    Neighbour(kind="best of", sampling=None, body=_DRAWN | {"best_of": 3}),
    Neighbour(kind="beams", sampling=None, body={"use_beam_search": True, "n": 2, "best_of": 3}),
    Neighbour(kind="a step of beams", sampling={"logprobs": 8}, body=None, max_tokens=1),
    both("repetition penalty", {"repetition_penalty": 1.5}),
    both("presence penalty", {"presence_penalty": 1.5}),
    both("frequency penalty", {"frequency_penalty": -1.5}),
    both("bias", {"logit_bias": {9: 50.0, 12: -100.0}}),
    both("allowed tokens", {"allowed_token_ids": [20, 21, 22]}),
    Neighbour(
        kind="bad words",
        sampling={"bad_words_token_ids": ((30,), (31, 32))},
        body={"bad_words": ["a", "the"]},
    ),
    Neighbour(
        kind="bounded reasoning",
        sampling={
            "thinking_budget": ThinkingBudget(
                max_tokens=4, thinking=Thinking(begin_token_id=9, end_token_id=12, is_open=True)
            )
        },
        body=None,
    ),
    Neighbour(
        kind="processor",
        sampling={"extra_args": {"no_repeat": 4}},
        body={"vllm_xargs": {"no_repeat": 4}},
    ),
    _grammar(GrammarKind.JSON_SCHEMA, SCHEMA, {"json": SCHEMA}),
    _grammar(GrammarKind.REGEX, "[a-c]+", {"regex": "[a-c]+"}),
    both(
        "everything at once",
        _DRAWN
        | {
            "prompt_logprobs": 1,
            "logprobs": 1,
            "repetition_penalty": 1.2,
            "logit_bias": {9: 5.0},
            "min_tokens": 3,
        },
    ),
    # What does not end as it began.
    both("cancelled", {}, max_tokens=60, cancelled_after=3),
    both("cancelled at once", {}, prompt_len=LONG, cancelled_after=0),
    both(
        "cancelled while scored",
        {"prompt_logprobs": 2},
        prompt_len=LONG,
        max_tokens=60,
        cancelled_after=1,
    ),
)
