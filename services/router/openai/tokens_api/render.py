"""POST /v1/chat/completions/render and /v1/completions/render: a body as a request of tokens.

What they return can be sent to /inference/v1/generate, and gives the answers of the body.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework

from services.router.openai.errors import FieldError
from services.router.openai.generating.chat import ChatCompletions
from services.router.openai.generating.completions import Completions
from services.router.openai.http.arrival import arrived_s
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.chat import ChatBody
from services.router.openai.schema.completion import CompletionBody
from services.router.openai.tokens_api.schema import TokenSampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.openai.backend import Backend
    from services.router.openai.schema.base import GenerationBody
    from services.router.request.generation import GenerationRequest

#: Fields of a body that have a place of their own, or say how its prompt and its reply are written.
_NOT_SAMPLING = frozenset(
    {
        "model",
        "user",
        "stream",
        "stream_options",
        "echo",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "truncation_side",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "request_id",
        "cache_salt",
        "priority",
        "max_tokens",
        "logprobs",
    }
)
_SAMPLING = frozenset(TokenSampling.model_fields) - _NOT_SAMPLING


class RenderChatBody(ChatBody):
    """A chat to render."""

    #: Start and end of each token in the prompt's text, in characters.
    return_token_offsets: bool | None = None


class RenderCompletionBody(CompletionBody):
    """Prompts to render."""

    return_token_offsets: bool | None = None


class Rendered(msgspec.Struct):
    """The body of POST /inference/v1/generate."""

    request_id: str
    token_ids: Sequence[int]
    sampling_params: dict[str, Any]
    model: str | None
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int
    #: None: the answer has no format, or the prompt's tokens say it.
    reasoning_ended: bool | None
    token_offsets: list[tuple[int, int]] | None = None


class RenderEndpoints:
    """The endpoints that write prompts and generate nothing."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._chat = ChatCompletions(backend)
        self._completions = Completions(backend)

    async def chat(self, request: Request) -> Response:
        """Return the tokens of a chat's prompt, and the parameters of its answers."""
        arrival_s = arrived_s(request)
        raw = await read_body(request, self._backend.limits)
        body = await parse_body(request, RenderChatBody, raw, self._backend.unknown_fields)
        _check(body)
        prepared = await self._chat.prepare(request, body, raw, arrival_s)
        if prepared.generation.embeds is not None:
            message = "prompt_embeds have no tokens to return: send them to /v1/chat/completions"
            raise FieldError(message, param="messages")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        rendered = self._rendered(body, prepared.generation, logprobs)
        if body.return_token_offsets:
            special = bool(body.add_special_tokens)
            rendered.token_offsets = self._offsets(prepared.prompt, rendered, special=special)
        return json_response(rendered)

    async def completions(self, request: Request) -> Response:
        """Return the tokens of every prompt, and the parameters of its answers."""
        arrival_s = arrived_s(request)
        raw = await read_body(request, self._backend.limits)
        body = await parse_body(request, RenderCompletionBody, raw, self._backend.unknown_fields)
        _check(body)
        if body.prompt_embeds:
            message = "prompt_embeds have no tokens to return: send them to /v1/completions"
            raise FieldError(message, param="prompt_embeds")
        if body.echo:
            raise FieldError("echo is not available here: the client has the prompt", param="echo")
        prompts, generations = await self._completions.read(request, body, raw, arrival_s)
        found = []
        for prompt, generation in zip(prompts, generations, strict=True):
            rendered = self._rendered(body, generation, body.logprobs)
            if body.return_token_offsets and prompt.text is not None:
                special = body.add_special_tokens is not False
                rendered.token_offsets = self._offsets(prompt.text, rendered, special=special)
            found.append(rendered)
        return json_response(found)

    def _rendered(
        self, body: GenerationBody, generation: GenerationRequest, logprobs: int | None
    ) -> Rendered:
        grammar = generation.params.grammar
        return Rendered(
            request_id=generation.request_id,
            token_ids=generation.prompt_token_ids,
            sampling_params=self._sampling(body, generation, logprobs),
            model=body.model,
            stream=bool(body.stream),
            stream_options=None
            if body.stream_options is None
            else body.stream_options.model_dump(exclude_none=True),
            cache_salt=body.cache_salt,
            priority=generation.priority,
            reasoning_ended=None if grammar is None else grammar.thinking is None,
        )

    def _sampling(
        self, body: GenerationBody, generation: GenerationRequest, logprobs: int | None
    ) -> dict[str, Any]:
        params = generation.params
        room = self._backend.models.max_model_len - len(generation.prompt_token_ids)
        given = body.model_dump(include=set(_SAMPLING), exclude_none=True, exclude_unset=True)
        given["max_tokens"] = room if params.max_tokens is None else params.max_tokens
        if logprobs is not None:
            given["logprobs"] = logprobs
        if params.grammar is not None and params.grammar.param == "tools":
            # The answer must be calls of the tools, which are not part of a request of tokens.
            schema = json.loads(params.grammar.text)
            given["structured_outputs"] = {"json": schema, "disable_any_whitespace": True}
        return given

    def _offsets(
        self, text: str, rendered: Rendered, *, special: bool
    ) -> list[tuple[int, int]] | None:
        """Return where each token is in `text`; None if the prompt's tokens are not all of it."""
        found = self._backend.tokenizer.encode_with_offsets(text, special)
        if tuple(token_id for token_id, _, _ in found) != tuple(rendered.token_ids):
            return None
        return [(start, end) for _, start, end in found]


def _check(body: GenerationBody) -> None:
    """Refuse ways to generate that take more than one request of tokens."""
    for name in ("use_beam_search", "best_of"):
        if getattr(body, name):
            message = f"{name} cannot be rendered: it takes more than one request of tokens"
            raise FieldError(message, param=name)
