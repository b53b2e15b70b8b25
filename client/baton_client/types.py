"""The client's results. Plain frozen values: no protobuf message leaves this package."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from baton_client.deltas import content_of, reasoning_of
from baton_client.hidden_states import NO_HIDDEN_STATES, HiddenStates

if TYPE_CHECKING:
    from baton_client.deltas import Delta, ToolCall
    from baton_client.messages import Message


class FinishReason(StrEnum):
    """The reason for which an answer ended."""

    #: An end token, a stop token or a stop string.
    STOP = "stop"
    #: `max_tokens`, or the end of the model's context.
    LENGTH = "length"
    #: Cancelled.
    ABORT = "abort"
    #: The answer ended without a limit, and calls tools.
    TOOL_CALLS = "tool_calls"
    #: The answer repeated itself, and `repetition_detection` was given.
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One candidate token; `rank` 1 is the most likely."""

    token_id: int
    text: str
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDetail:
    """One position: the chosen token (None for a prompt's first) and the best others."""

    chosen: TokenLogprob | None
    utf8: bytes = b""
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSources:
    """Sources of the prompt's KV, in tokens: computed + local_hit + transferred = prompt."""

    computed: int = 0
    local_hit: int = 0
    transferred: int = 0
    #: Part of `transferred` that came from a cache, not computed for this request.
    transferred_hit: int = 0
    #: Part of `transferred_hit` that the computing worker fetched from a peer.
    fetched: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Cost of a request, over all of its answers."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Prompt tokens that came from a cache.
    cached_tokens: int = 0
    sources: PromptSources = field(default_factory=PromptSources)
    #: Tokens whose KV was recomputed because a server was lost, and the number of losses.
    recomputed_tokens: int = 0
    num_replays: int = 0
    #: Draft tokens that were checked, and those that were accepted.
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Timings of a request, measured by the servers."""

    router_queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    route_ms: float = 0.0
    #: Wait on the decode worker for reserved blocks.
    decode_queue_ms: float = 0.0
    prefill_queue_ms: float = 0.0
    prefill_ms: float = 0.0
    #: From the first token to the arrival of the last block: the cost of the transfer.
    transfer_exposed_ms: float = 0.0
    transfer_ms: float = 0.0
    #: From the arrival at the router until the first token leaves it.
    first_token_ms: float = 0.0
    #: From the first token to the last.
    decode_ms: float = 0.0
    total_ms: float = 0.0
    transfer_bytes: int = 0
    connector: str = ""
    prefill_worker: str = ""
    decode_worker: str = ""
    #: Time of fetching a prefix from a peer before the computation, and the peer's name.
    prefix_fetch_ms: float = 0.0
    prefix_fetch_bytes: int = 0
    prefix_source: str = ""
    #: From the loss of a worker to the next token from another one.
    replay_ms: float = 0.0
    #: Where the prompt was computed: remote, split, local_chosen, local_short, local_no_worker or
    #: local_fallback.
    prefill_place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of one answer, as generated. Answers of one request (n > 1) are interleaved.

    `text` never ends in half a character and may lag behind `token_ids`. An answer's last piece has
    `finish_reason`; the request's last piece has `usage` and `timings`.

    `text` is the model's text, `deltas` its parsed content; they differ for chats in which the
    model reasons or calls tools, and `deltas` may lag behind.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    details: tuple[TokenDetail, ...] = ()
    finish_reason: FinishReason | None = None
    stop_string: str | None = None
    stop_token_id: int | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    prompt_details: tuple[TokenDetail, ...] = ()
    deltas: tuple[Delta, ...] = ()
    #: The operator's name of the weights, in an answer's last piece; empty if it is not known.
    weight_version: str = ""
    #: A row for each token of the piece, if they were asked for.
    hidden_states: HiddenStates = NO_HIDDEN_STATES

    @property
    def content(self) -> str:
        """The next part of the text for the user."""
        return content_of(self.deltas)

    @property
    def reasoning(self) -> str:
        """The next part of the reasoning before the answer."""
        return reasoning_of(self.deltas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One complete answer. `text` is the model's text.

    For a chat, `content`, `reasoning` and `tool_calls` are its parsed content.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    details: tuple[TokenDetail, ...] = ()
    stop_string: str | None = None
    stop_token_id: int | None = None
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    #: The operator's name of the weights that all tokens come from; empty if it is not known.
    weight_version: str = ""
    hidden_states: HiddenStates = NO_HIDDEN_STATES

    @property
    def message(self) -> Message:
        """The message for the conversation's history, before the messages of tools."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialAnswer:
    """The beginning of an answer that arrived before an error ended the request, without gaps."""

    index: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    #: None: the answer had not ended.
    finish_reason: FinishReason | None = None
    details: tuple[TokenDetail, ...] = ()
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    hidden_states: HiddenStates = NO_HIDDEN_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request's complete result: its answers (one, unless `n` was given) and their cost."""

    request_id: str
    answers: tuple[Answer, ...]
    usage: Usage
    timings: Timings
    prompt_details: tuple[TokenDetail, ...] = ()

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.answers[0].text

    @property
    def content(self) -> str:
        """The first answer's text for the user."""
        return self.answers[0].content

    @property
    def reasoning(self) -> str:
        """The model's reasoning before the first answer."""
        return self.answers[0].reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The first answer's tool calls."""
        return self.answers[0].tool_calls

    @property
    def finish_reason(self) -> FinishReason:
        """The reason for which the first answer ended."""
        return self.answers[0].finish_reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A served model."""

    id: str
    #: Longest prompt plus answer, in tokens.
    max_model_len: int
    #: Unix seconds.
    created: int
    #: Of an adapter: the name of the model that it changes. Empty: it is a model.
    parent: str = ""
    #: The model's own name; of an adapter: its folder.
    root: str = ""
