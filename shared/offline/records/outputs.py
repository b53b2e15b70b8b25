"""The answers of an engine, in vLLM's records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.engine.offline.request_output import GrowingOutput
    from shared.offline.records.sampling_params import SamplingParams
    from shared.request.answer import PositionLogprobs
    from shared.text.tokenizer import Tokenizer


@dataclass
class Logprob:
    """A token's log probability, and its place among all, from 1."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer, or what is new of it."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None
    #: Beyond vLLM's record: float32 [tokens, hidden size], if they were asked for.
    hidden_states: torch.Tensor | None = None

    def finished(self) -> bool:
        """Return whether it has ended."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """A prompt and its answers so far."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: Any = None
    lora_request: Any = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    kv_transfer_params: dict[str, Any] | None = None
    #: Beyond vLLM's record: the version of the weights that all tokens come from.
    weight_version: str | None = None


@dataclass
class Seen:
    """How much of an answer was shown before: its tokens and pieces of text."""

    num_tokens: int = 0
    num_pieces: int = 0


def completion(
    answer: GrowingOutput, tokenizer: Tokenizer | None, seen: Seen, params: SamplingParams
) -> CompletionOutput:
    """Return an answer from where `seen` ends, with what `params` ask for."""
    has_logprobs = params.logprobs is not None
    rows = answer.hidden_states[seen.num_tokens :] if params.return_hidden_states else None
    logprobs = answer.logprobs[seen.num_tokens :] if has_logprobs else None
    return CompletionOutput(
        index=answer.index,
        text="".join(answer.pieces[seen.num_pieces :]),
        token_ids=answer.token_ids[seen.num_tokens :],
        cumulative_logprob=sum(each.chosen.logprob for each in answer.logprobs)
        if has_logprobs
        else None,
        logprobs=None if logprobs is None else [position(each, tokenizer) for each in logprobs],
        finish_reason=None if answer.finish_reason is None else answer.finish_reason.value,
        stop_reason=_stop_reason(answer.stop_reason, tokenizer),
        hidden_states=None if rows is None else _tensor(rows),
    )


def _tensor(rows: Sequence[bytes]) -> torch.Tensor:
    """Return rows of float32 as one tensor; [0, 0] without any."""
    if not rows:
        return torch.empty(0, 0)
    return torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.float32).view(len(rows), -1)


def _stop_reason(found: str | int | None, tokenizer: Tokenizer | None) -> str | int | None:
    if tokenizer is None or isinstance(found, str):
        return found
    return tokenizer.stop_reason(found)


def position(found: PositionLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Return a position's tokens: the chosen one first, then the most likely ones."""
    return {
        each.token_id: Logprob(each.logprob, each.rank, _text(each.token_id, tokenizer))
        for each in (found.chosen, *found.top)
    }


def prompt_positions(
    found: Sequence[PositionLogprobs | None] | None, tokenizer: Tokenizer | None
) -> list[dict[int, Logprob] | None] | None:
    """Return the prompt's tokens; the first one has no log probability."""
    if found is None:
        return None
    return [None if each is None else position(each, tokenizer) for each in found]


def _text(token_id: int, tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False)
