"""POST /tokenize and POST /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from fastapi import Request, Response  # noqa: TC002 read at run time by the framework
from msgspec import UNSET, UnsetType

from services.router.chat.tools import check_tools
from services.router.openai.generating.endpoint import encode
from services.router.openai.http.body import parse_body, read_body
from services.router.openai.http.kind import is_chat
from services.router.openai.reading.messages import encode_chat
from services.router.openai.reading.prompts import check_vocabulary
from services.router.openai.reading.tools import template_tools
from services.router.openai.replies.responses import json_response
from services.router.openai.schema.tokenize import (
    DetokenizeBody,
    TokenizeChatBody,
    TokenizeTextBody,
)
from shared.generation.limits import check_texts

if TYPE_CHECKING:
    from services.router.openai.backend import Backend


class Tokens(msgspec.Struct):
    """Response with the tokens of a prompt."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None
    offsets: list[tuple[int, int]] | UnsetType = UNSET


class Text(msgspec.Struct):
    """Response with the text of tokens."""

    prompt: str


class TokenizeEndpoints:
    """The endpoints of the router's tokenizer."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text, or of a conversation in the model's template."""
        raw = await read_body(request, self._backend.limits)
        body = await _parse(request, raw, self._backend)
        self._backend.models.resolve(body.model)
        if isinstance(body, TokenizeTextBody):
            check_texts([body.prompt], self._backend.limits, param="prompt")
        tokens, _ = await encode(raw, lambda: self._tokens(body))
        return json_response(tokens)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens, special ones included."""
        backend = self._backend
        raw = await read_body(request, backend.limits)
        body = await parse_body(request, DetokenizeBody, raw, backend.unknown_fields)
        backend.models.resolve(body.model)
        text, _ = await encode(raw, lambda: self._text(body))
        return json_response(text)

    def _text(self, body: DetokenizeBody) -> Text:
        tokenizer = self._backend.tokenizer
        check_vocabulary(body.tokens, self._backend.models, param="tokens")
        tokenizer.require_text("tokens")
        return Text(tokenizer.decode(body.tokens, skip_special_tokens=False))

    def _tokens(self, body: TokenizeTextBody | TokenizeChatBody) -> Tokens:
        tokenizer = self._backend.tokenizer
        spans: list[tuple[int, int]] | UnsetType = UNSET
        if isinstance(body, TokenizeChatBody):
            check_tools(template_tools(body.tools) or (), self._backend.limits)
            special = bool(body.add_special_tokens)
            prompt = encode_chat(
                body,
                self._backend.template_of(body),
                tokenizer,
                self._backend.limits,
                tools=template_tools(body.tools),
                add_special_tokens=special,
            )
            ids = list(prompt.token_ids)
        elif body.return_offsets:
            special = body.add_special_tokens is not False
            found = tokenizer.encode_with_offsets(body.prompt, special)
            ids = [token_id for token_id, _, _ in found]
            spans = [(start, end) for _, start, end in found]
        else:
            ids = tokenizer.encode(body.prompt, body.add_special_tokens is not False)
        strings = [tokenizer.token(i) or "" for i in ids] if body.return_token_strs else None
        return Tokens(len(ids), self._backend.models.max_model_len, ids, strings, spans)


async def _parse(
    request: Request, raw: bytes, backend: Backend
) -> TokenizeTextBody | TokenizeChatBody:
    """Return the parsed body: its fields show which of the two kinds it is."""
    if is_chat(raw):
        return await parse_body(request, TokenizeChatBody, raw, backend.unknown_fields)
    # The error for what is no JSON is this schema's, too.
    return await parse_body(request, TokenizeTextBody, raw, backend.unknown_fields)
