"""The bodies of the /derender endpoints.

Pydantic reads these annotations at run time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from services.router.openai.schema.base import Body, RequestObject
from services.router.openai.schema.chat import ChatBody  # noqa: TC001 read at run time
from services.router.openai.schema.completion import CompletionBody  # noqa: TC001 read at run time
from services.router.openai.schema.field_types import TokenId  # noqa: TC001 read at run time


class Candidate(RequestObject):
    """A token with its log probability."""

    token_id: TokenId
    logprob: float
    rank: Annotated[int, Field(ge=1)] | None = None


class Position(Candidate):
    """A position of an answer."""

    top_logprobs: list[Candidate] = Field(default_factory=list)


class Logprobs(RequestObject):
    """The positions of an answer."""

    content: list[Position] | None = None


class TokenChoice(RequestObject):
    """An answer of tokens."""

    ignored = frozenset({"routed_experts", "sampling_mask", "weight_versions"})

    index: Annotated[int, Field(ge=0)]
    token_ids: list[TokenId]
    finish_reason: Literal["stop", "length", "abort", "repetition"] = "stop"
    stop_reason: str | int | None = None
    logprobs: Logprobs | None = None


class TokenReply(RequestObject):
    """A whole reply of /inference/v1/generate, in the mode `tokens`."""

    ignored = frozenset({"request_id", "model", "created", "usage", "prompt_logprobs", "metrics"})

    choices: Annotated[list[TokenChoice], Field(min_length=1)]
    output_mode: Literal["tokens"] = "tokens"
    prompt_token_ids: list[TokenId] | None = None


class _Derender(Body):
    #: A reply in parts needs a parser's state between them: send the whole reply.
    stream: Literal[False] | None = None


class DerenderChatBody(_Derender):
    """Answers of tokens to a chat."""

    generate_response: TokenReply
    prompt_tokens: Annotated[int, Field(ge=0)] | None = None
    prompt_token_ids: list[TokenId] | None = None
    chat_request: ChatBody | None = None


class DerenderCompletionBody(_Derender):
    """Answers of tokens to prompts."""

    generate_responses: Annotated[list[TokenReply], Field(min_length=1)]
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[TokenId] | None] | None = None
    completion_request: CompletionBody | None = None
