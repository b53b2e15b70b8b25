"""The results of `LLM`: finished answers with their texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.engine.sequence.events import Admitted, Failed, NewTokens
from shared.request.repetition import text_end

if TYPE_CHECKING:
    from shared.engine.sequence.events import EngineEvent
    from shared.request.answer import FinishReason, PositionLogprobs
    from shared.text.answer_text import AnswerText


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...]
    finish_reason: FinishReason | None
    #: The stop string or token that ended it, if one did.
    stop_reason: str | int | None
    #: One row per token, if requested: float32, little-endian.
    hidden_states: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt with its answers. Without a tokenizer, the texts of tokens are empty."""

    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None
    outputs: tuple[CompletionOutput, ...]
    #: Prompt tokens whose KV the first answer found in the prefix cache.
    num_cached_tokens: int


@dataclass(slots=True)
class GrowingOutput:
    """An answer while it is generated."""

    index: int
    text: AnswerText | None
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    hidden_states: list[bytes] = field(default_factory=list)
    prompt_logprobs: tuple[PositionLogprobs | None, ...] | None = None
    num_cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def take(self, event: EngineEvent) -> bool:
        """Add an event; return whether a stop string was found, so that generation can end.

        Raises the error that ended the answer, if one did.
        """
        match event:
            case Admitted() if self.num_cached_tokens is None:
                self.num_cached_tokens = event.num_cached_tokens
            case NewTokens() if not isinstance(self.stop_reason, str):
                return self._take_tokens(event)
            case Failed():
                raise event.error
            case _:
                pass
        return False

    def output(self) -> CompletionOutput:
        """Return the finished answer."""
        return CompletionOutput(
            index=self.index,
            text="".join(self.pieces),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            hidden_states=tuple(self.hidden_states),
        )

    def _take_tokens(self, event: NewTokens) -> bool:
        self.prompt_logprobs = event.prompt_logprobs or self.prompt_logprobs
        self.finish_reason, self.stop_reason = event.finish_reason, event.stop_token_id
        num_tokens = len(event.token_ids)
        if self.text is not None:
            is_final = event.finish_reason is not None
            piece = self.text.feed(
                event.token_ids, final=is_final, stop_token_id=event.stop_token_id
            )
            self.pieces.append(piece.text)
            if (end := text_end(piece)) is not None:
                num_tokens = piece.num_tokens
                self.finish_reason, self.stop_reason = end
        self.token_ids += event.token_ids[:num_tokens]
        self.logprobs += event.logprobs[:num_tokens]
        self.hidden_states += event.hidden_states[:num_tokens]
        return isinstance(self.stop_reason, str)
